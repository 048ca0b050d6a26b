//! Completions of OpenAI's API, which go to the host that has the longest part of their prompt cached.
//!
//! Envoy chooses a host once the last filter of the listener has passed the head on. The filter `larder_prompts` ([`reader`]) keeps the
//! head until the body is complete and reads the prompt. It stores the prompt in a table of the thread, and names it in a field of the
//! head, because Envoy shows a policy nothing but the head. The filter of the attempt removes the field again.
//!
//! A retry has no such field, but the same context, Envoy's object of the request. So the table keeps the address of the context as well.
//!
//! Envoy does not tell a filter why an attempt has ended without a reply. If a retry or a 503 of Envoy follows, the node has failed. If
//! nothing follows, the client has left.

pub(crate) mod reader;
mod section;

pub(crate) use section::{SectionError, read};

use crate::host::Context;
use larder_core::NodeId;
use larder_core::nodes::Nodes;
use larder_prompts::{HeldBody, Prompt, PromptLease, PromptRoute};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;

/// The field that names the prompt of a request.
pub(crate) const FIELD: &str = "x-larder-prompt";

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
    /// The node of an attempt that has ended without a reply: it has failed, or the client has left.
    unanswered: Option<(Arc<PromptRoute>, NodeId)>,
}

impl Request {
    /// Ends the credits of a node that has failed, because its server may have restarted with an empty cache.
    fn forget_failed(&mut self) {
        if let Some((route, node)) = self.unanswered.take() {
            route.chains.restarted(node);
        }
    }
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::default();
}

/// A prompt in the table. Dropping it removes the prompt.
#[derive(Debug)]
struct StoredPrompt(u64);

impl StoredPrompt {
    fn new(prompt: Prompt) -> Self {
        TABLE.with_borrow_mut(|table| {
            table.stored += 1;
            let name = table.seed.hash_one(table.stored);
            table.requests.insert(name, Request { prompt: Rc::new(prompt), unanswered: None });
            Self(name)
        })
    }

    /// Returns the value of the field.
    fn name(&self) -> String {
        format!("{:016x}", self.0)
    }

    /// Notes that Envoy has replied 503 instead of a node.
    fn note_failure(&self) {
        TABLE.with_borrow_mut(|table| table.requests.get_mut(&self.0).map(Request::forget_failed));
    }
}

impl Drop for StoredPrompt {
    fn drop(&mut self) {
        // The thread may be ending.
        let _ = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            table.requests.remove(&self.0);
            table.contexts.retain(|_, name| *name != self.0);
        });
    }
}

/// A prompt whose host is to be chosen.
#[derive(Debug)]
pub(crate) struct NamedPrompt {
    name: u64,
    pub(crate) prompt: Rc<Prompt>,
}

/// Returns the prompt of a request; `None` if the filter has read none.
pub(crate) fn of(context: Context<'_>) -> Option<NamedPrompt> {
    let named = context.header(FIELD).and_then(parse);
    TABLE.with_borrow_mut(|table| {
        let name = match named {
            Some(name) => name,
            None => *table.contexts.get(&context.address())?,
        };
        let request = table.requests.get_mut(&name)?;
        // This is a retry, so that the node of the attempt before has failed.
        request.forget_failed();
        table.contexts.insert(context.address(), name);
        Some(NamedPrompt { name, prompt: Rc::clone(&request.prompt) })
    })
}

/// The work of a prompt at a host.
#[derive(Debug)]
pub(crate) struct PlacedPrompt {
    name: u64,
    route: Arc<PromptRoute>,
    pub(crate) lease: PromptLease,
}

impl PlacedPrompt {
    /// Places a prompt.
    pub(crate) fn new(route: &Arc<PromptRoute>, nodes: &Nodes, named: &NamedPrompt) -> Self {
        let held = HeldBody::new(Arc::clone(route.budget()));
        let lease = PromptLease::place(Arc::clone(route), nodes, named.prompt.blocks(), held, None);
        Self { name: named.name, route: Arc::clone(route), lease }
    }

    /// Notes that the attempt has ended without a reply.
    pub(crate) fn note_unanswered(&self) {
        let Some(node) = self.lease.node() else { return };
        // The thread may be ending.
        let _ = TABLE.try_with(|table| {
            if let Some(request) = table.borrow_mut().requests.get_mut(&self.name) {
                request.unanswered = Some((Arc::clone(&self.route), node));
            }
        });
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
