//! The filter `larder_prompts` of a listener: it reads the bodies of completions before Envoy chooses their hosts.

use super::{FIELD, StoredPrompt};
use crate::cluster::Cluster;
use crate::host::{Body, Filter, Map, Reply};
use larder_core::rules::Head;
use larder_prompts::{HeldBody, Prompt, PromptFault, PromptRoute, has_prompt};
use std::sync::Arc;
use std::time::Instant;

/// The largest piece of a body that Envoy passes to filters at once. Bytes.
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// The counters of the filter's config, in Envoy's stats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderCounters {
    pub(crate) read: Option<usize>,
    pub(crate) too_large: Option<usize>,
    pub(crate) timed_out: Option<usize>,
    pub(crate) no_memory: Option<usize>,
    pub(crate) no_prompt: Option<usize>,
}

impl ReaderCounters {
    const fn of(self, fault: &PromptFault) -> Option<usize> {
        match fault {
            PromptFault::TooLarge(_) => self.too_large,
            PromptFault::TimedOut(_) => self.timed_out,
            PromptFault::MemoryFull => self.no_memory,
            PromptFault::NoPrompt(_) => self.no_prompt,
        }
    }
}

/// The next step of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The request continues.
    Continue,
    /// The rest of the body is needed first.
    Wait,
    /// The filter replies.
    Reply(Reply),
}

/// The filter of a request.
#[derive(Debug)]
pub(crate) struct Reader {
    counters: ReaderCounters,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The request is not a completion, or has a reply.
    Idle,
    /// The body is not complete.
    Reading { route: Arc<PromptRoute>, held: HeldBody, began: Instant },
    /// The prompt is known. Envoy may keep the body until the request ends, for retries.
    Read { stored: StoredPrompt, _held: HeldBody },
}

impl Reader {
    pub(crate) const fn new(counters: ReaderCounters) -> Self {
        Self { counters, state: State::Idle }
    }

    /// Handles the head of the request. `is_end`: there is no body.
    pub(crate) fn note_head(&mut self, filter: Filter<'_>, is_end: bool) -> Step {
        // Only this filter may name prompts.
        filter.remove_field(FIELD);
        let value = |name| filter.header(Map::Request, name, 0).unwrap_or_default();
        let head = Head::new(value(":method"), value(":authority"), value(":path"), &filter);
        if !has_prompt(&head) {
            return Step::Continue;
        }
        let cluster = filter.cluster_name().and_then(|name| Cluster::named(&name));
        let Some(prompts) = cluster.and_then(|cluster| cluster.prompts().cloned()) else {
            return Step::Continue;
        };
        let (route, bytes_max) = (Arc::clone(&prompts.route), prompts.route.config.body_bytes_max);
        filter.raise_buffer_limit(2 * bytes_max as u64 + PIECE_BYTES_MAX);
        let held = HeldBody::new(Arc::clone(route.budget()));
        self.state = State::Reading { route, held, began: Instant::now() };
        if is_end { self.read(filter, &[]) } else { Step::Wait }
    }

    /// Handles a piece of the body. `is_end`: it is the last one.
    pub(crate) fn note_body(&mut self, filter: Filter<'_>, is_end: bool) -> Step {
        if let Some(fault) = self.lateness() {
            return self.refuse(filter, &fault);
        }
        let State::Reading { route, held, .. } = &mut self.state else { return Step::Continue };
        let bodies = filter.request_bodies();
        let bytes: usize = bodies.iter().map(|body| filter.body_bytes(*body)).sum();
        let bytes_max = route.config.body_bytes_max;
        if bytes > bytes_max {
            return self.refuse(filter, &PromptFault::TooLarge(bytes_max));
        }
        if !held.grow_to(bytes, bytes_max) {
            return self.refuse(filter, &PromptFault::MemoryFull);
        }
        if is_end { self.read(filter, bodies) } else { Step::Wait }
    }

    /// Handles the end of a request whose body is followed by trailers.
    pub(crate) fn note_trailers(&mut self, filter: Filter<'_>) -> Step {
        match (&self.state, self.lateness()) {
            (State::Reading { .. }, Some(fault)) => self.refuse(filter, &fault),
            (State::Reading { .. }, None) => self.read(filter, &[Body::BufferedRequest]),
            (State::Idle | State::Read { .. }, _) => Step::Continue,
        }
    }

    /// Returns the fault of a body whose time is over. Only Envoy has timers, so a client that sends nothing more is not late before
    /// its next piece.
    fn lateness(&self) -> Option<PromptFault> {
        let State::Reading { route, began, .. } = &self.state else { return None };
        let time_max = route.config.body_timeout;
        (began.elapsed() > time_max).then_some(PromptFault::TimedOut(time_max))
    }

    /// Handles the start of the reply.
    pub(crate) fn note_reply(&mut self) {
        if let State::Reading { .. } = self.state {
            // Another filter has replied.
            self.state = State::Idle;
        }
    }

    /// Handles a reply of Envoy, with the details for access logs.
    pub(crate) fn note_local_reply(&self, details: &[u8]) {
        if let State::Read { stored, .. } = &self.state {
            stored.note_local_reply(details);
        }
    }

    /// Reads the prompt of the whole body.
    fn read(&mut self, filter: Filter<'_>, bodies: &[Body]) -> Step {
        let mut content = Vec::with_capacity(bodies.iter().map(|body| filter.body_bytes(*body)).sum());
        for body in bodies {
            filter.append_body(*body, &mut content);
        }
        let prompt = match Prompt::parse(&content) {
            Ok(prompt) => prompt,
            Err(error) => return self.refuse(filter, &error.into()),
        };
        let stored = StoredPrompt::new(prompt);
        filter.set_field(FIELD, &stored.name());
        if let Some(counter) = self.counters.read {
            filter.add(counter, 1);
        }
        if let State::Reading { held, .. } = std::mem::replace(&mut self.state, State::Idle) {
            self.state = State::Read { stored, _held: held };
        }
        Step::Continue
    }

    fn refuse(&mut self, filter: Filter<'_>, fault: &PromptFault) -> Step {
        self.state = State::Idle;
        if let Some(counter) = self.counters.of(fault) {
            filter.add(counter, 1);
        }
        let (status, code) = fault.status();
        Step::Reply(Reply { status: status.into(), body: fault.body(), details: format!("larder_{code}") })
    }
}
