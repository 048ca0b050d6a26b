//! Completions of OpenAI's API, which go to the host that has the longest part of their prompt cached.
//!
//! Envoy chooses a host once the last filter of the listener has passed the head on. The filter `larder_prompts` ([`reader`]) keeps the
//! head until the body is complete and reads the prompt. It stores the prompt in a table of the thread, and names it in a field of the
//! head, because Envoy shows a policy nothing but the head. The filter of the attempt removes the field again.
//!
//! A retry has no such field, but the same context, Envoy's object of the request. So the table keeps the address of the context as well.
//!
//! Envoy does not tell the filter of an attempt why it has ended without a reply. If a retry follows, the node has failed. If Envoy
//! replies itself, the details of its reply tell why. If nothing follows, the client has left.

pub(crate) mod reader;
mod section;

pub(crate) use section::{SectionError, read};

use crate::host::Context;
use larder_core::NodeId;
use larder_core::dispatch::SettingsError;
use larder_core::nodes::{GroupId, Nodes};
use larder_prompts::{HeldBody, Prompt, PromptConfig, PromptLease, PromptRoute};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The field that names the prompt of a request.
pub(crate) const FIELD: &str = "x-larder-prompt";

/// The prompts of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterPrompts {
    pub(crate) route: Arc<PromptRoute>,
    /// The number of attempts in a row that have failed without a reply, by the slots of their nodes.
    failed: Box<[AtomicU8]>,
}

/// A node that fails so many attempts in a row may have restarted. A single failure may be a connection that the node has closed
/// because it was idle.
const FAILED_MAX: u8 = 2;

impl ClusterPrompts {
    /// # Errors
    /// A setting is out of range.
    pub(crate) fn new(config: &PromptConfig, nodes_max: usize) -> Result<Self, SettingsError> {
        let route = Arc::new(PromptRoute::new(config, GroupId::ALL)?);
        Ok(Self { route, failed: (0..nodes_max).map(|_| AtomicU8::new(0)).collect() })
    }

    fn note_reply(&self, node: NodeId) {
        if let Some(failed) = self.failed.get(node.index())
            && failed.load(Relaxed) > 0
        {
            failed.store(0, Relaxed);
        }
    }

    fn note_failure(&self, node: NodeId) {
        let failed = self.failed.get(node.index());
        if failed.is_none_or(|failed| failed.fetch_add(1, Relaxed) + 1 >= FAILED_MAX) {
            self.forget(node);
        }
    }

    /// Ends the credits of a node, because its server has probably lost its cache.
    fn forget(&self, node: NodeId) {
        self.note_reply(node);
        self.route.chains.forget_node(node);
    }
}

/// The prompts of the requests that this thread serves.
#[derive(Debug, Default)]
struct Table {
    /// Makes names that clients cannot guess.
    seed: RandomState,
    stored: u64,
    requests: HashMap<u64, Request>,
    /// The names of prompts, by the contexts of their requests.
    contexts: HashMap<usize, u64>,
}

/// A request with a prompt.
#[derive(Debug)]
struct Request {
    prompt: Rc<Prompt>,
    /// The context, from the first choice of a host. Mirrors of the request have other contexts.
    context: Option<usize>,
    /// The node of an attempt that has ended without a reply: the node has failed, or the client has left.
    unanswered: Option<(Arc<ClusterPrompts>, NodeId)>,
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::default();
}

/// Changes a request in the table. Does nothing if the request has ended, or if the thread is ending.
fn change(name: u64, body: impl FnOnce(&mut Request)) {
    let _ = TABLE.try_with(|table| table.borrow_mut().requests.get_mut(&name).map(body));
}

/// A prompt in the table. Dropping it removes the prompt.
#[derive(Debug)]
struct StoredPrompt(u64);

impl StoredPrompt {
    fn new(prompt: Prompt) -> Self {
        TABLE.with_borrow_mut(|table| {
            table.stored += 1;
            let name = table.seed.hash_one(table.stored);
            table.requests.insert(name, Request { prompt: Rc::new(prompt), context: None, unanswered: None });
            Self(name)
        })
    }

    /// Returns the value of the field.
    fn name(&self) -> String {
        format!("{:016x}", self.0)
    }

    /// Notes that Envoy has replied instead of a node, with these details for access logs.
    fn note_local_reply(&self, details: &[u8]) {
        let says = |cause: &[u8]| details.windows(cause.len()).any(|part| part == cause);
        change(self.0, |request| match request.unanswered.take() {
            Some((prompts, node)) if says(b"connection_failure") => prompts.forget(node),
            Some((prompts, node)) if says(b"connection_termination") => prompts.note_failure(node),
            _ => {}
        });
    }
}

impl Drop for StoredPrompt {
    fn drop(&mut self) {
        // The thread may be ending.
        let _ = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            if let Some(context) = table.requests.remove(&self.0).and_then(|request| request.context) {
                table.contexts.remove(&context);
            }
        });
    }
}

/// A prompt whose host is to be chosen.
#[derive(Debug)]
pub(crate) struct NamedPrompt {
    pub(crate) prompt: Rc<Prompt>,
    /// The name of the prompt; `None` for a mirror of the request.
    name: Option<u64>,
}

/// Returns the prompt of a request; `None` if the filter has read none.
pub(crate) fn of(context: Context<'_>) -> Option<NamedPrompt> {
    let (named, context) = (context.header(FIELD).and_then(parse), context.address());
    TABLE.with_borrow_mut(|table| {
        let name = named.or_else(|| table.contexts.get(&context).copied())?;
        let request = table.requests.get_mut(&name)?;
        let is_mirror = *request.context.get_or_insert(context) != context;
        if !is_mirror {
            // If there was an attempt, this is a retry, because the node of that attempt has failed.
            if let Some((prompts, node)) = request.unanswered.take() {
                prompts.note_failure(node);
            }
            table.contexts.insert(context, name);
        }
        Some(NamedPrompt { prompt: Rc::clone(&request.prompt), name: (!is_mirror).then_some(name) })
    })
}

/// The work of a prompt at a host.
#[derive(Debug)]
pub(crate) struct PlacedPrompt {
    name: Option<u64>,
    prompts: Arc<ClusterPrompts>,
    pub(crate) lease: PromptLease,
}

impl PlacedPrompt {
    /// Places a prompt.
    pub(crate) fn new(prompts: &Arc<ClusterPrompts>, nodes: &Nodes, named: &NamedPrompt) -> Self {
        // The filter of the listener holds the reservation of the body.
        let held = HeldBody::new(Arc::clone(prompts.route.budget()));
        let lease = PromptLease::place(Arc::clone(&prompts.route), nodes, named.prompt.blocks(), held, None);
        Self { name: named.name, prompts: Arc::clone(prompts), lease }
    }

    /// Notes the status of the reply, which shows that the node is alive.
    pub(crate) fn note_reply(&mut self, status: u16) {
        self.lease.note_reply(status);
        if let Some(node) = self.lease.node() {
            self.prompts.note_reply(node);
        }
        if let Some(name) = self.name {
            change(name, |request| request.unanswered = None);
        }
    }

    /// Notes that the attempt has ended without a reply.
    pub(crate) fn note_unanswered(&self) {
        if let (Some(name), Some(node)) = (self.name, self.lease.node()) {
            change(name, |request| request.unanswered = Some((Arc::clone(&self.prompts), node)));
        }
    }
}

/// Returns the number of prompts of this thread.
#[cfg(test)]
pub(crate) fn stored() -> usize {
    TABLE.with_borrow(|table| table.requests.len())
}

fn parse(name: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}
