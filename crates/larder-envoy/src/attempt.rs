//! The filter of an attempt: it sees the reply and the end, and tells the dispatcher.
//!
//! Envoy creates upstream filters for each attempt of a request, retries and hedged requests included, and destroys them when the
//! attempt has ended, in whatever way.

use crate::host::{Body, Filter, Map};
use crate::pending::{self, Pending};
use crate::prompt;
use larder_core::cache_status::members;
use larder_core::{CacheResult, Time};
use larder_embed::Feedback;
use std::time::Duration;

/// The namespace of the dynamic metadata.
const NAMESPACE: &str = "larder";

/// The counters of the filter's config, in Envoy's stats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    pub(crate) replies: Option<usize>,
    pub(crate) hits: Option<usize>,
    pub(crate) misses: Option<usize>,
    pub(crate) bytes: Option<usize>,
    pub(crate) bypassed: Option<usize>,
}

/// An attempt of a request at a node.
#[derive(Debug)]
pub(crate) struct Attempt {
    pending: Pending,
    counters: Counters,
    /// Whether the decision belongs to another attempt.
    is_other: bool,
    first_byte: Option<Duration>,
    /// The time from the decision to the end of the reply, once the reply is complete.
    elapsed: Option<Duration>,
    status: u16,
    cache: Option<CacheResult>,
    bytes: u64,
}

impl Attempt {
    /// Creates the attempt of this thread's last decision. `None` if there is none.
    pub(crate) fn take(counters: Counters) -> Option<Self> {
        let pending = pending::take()?;
        Some(Self {
            pending,
            counters,
            is_other: false,
            first_byte: None,
            elapsed: None,
            status: 0,
            cache: None,
            bytes: 0,
        })
    }

    pub(crate) const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns whether the decision is the one of this attempt, and not one that no filter has taken.
    pub(crate) fn is_of(&self, filter: Filter<'_>) -> bool {
        filter.upstream_address().is_some_and(|address| address == self.pending.host.as_bytes())
    }

    /// Ends the decision of another attempt.
    pub(crate) fn abandon(mut self) {
        self.is_other = true;
    }

    /// Shows the reason of the decision to access logs.
    pub(crate) fn note_request(&self, filter: Filter<'_>) {
        self.pending.filter_check.note_taken();
        filter.set_metadata(NAMESPACE, "reason", self.pending.decision.reason.name());
        // Nodes do not need the name of the prompt.
        filter.remove_field(prompt::FIELD);
    }

    /// Handles the head of the reply. `is_end`: the reply has no body.
    pub(crate) fn note_head(&mut self, filter: Filter<'_>, is_end: bool) {
        let now = crate::now();
        self.first_byte = Some(now.since(self.pending.at));
        self.status = filter.header(Map::Response, ":status", 0).and_then(status).unwrap_or_default();
        self.cache = found(filter);
        if let Some(prompt) = &mut self.pending.prompt {
            prompt.note_reply(self.status);
        }
        if self.status == 101 {
            self.become_long_lived(now);
        }
        if is_end {
            self.complete(filter);
        }
    }

    /// Handles a piece of the reply's body.
    pub(crate) fn note_body(&mut self, filter: Filter<'_>, is_end: bool) {
        let bytes = filter.body_bytes(Body::ReceivedResponse) as u64;
        self.bytes += bytes;
        if bytes > 0
            && let Some(prompt) = &mut self.pending.prompt
        {
            prompt.lease.note_piece();
        }
        if is_end {
            self.complete(filter);
        }
    }

    /// Handles the end of a reply.
    pub(crate) fn complete(&mut self, filter: Filter<'_>) {
        if self.elapsed.is_some() {
            return;
        }
        self.elapsed = Some(crate::now().since(self.pending.at));
        let Counters { replies, hits, misses, bytes, .. } = self.counters;
        let by_cache = match self.cache {
            Some(CacheResult::Hit) => hits,
            Some(CacheResult::Miss) => misses,
            None => None,
        };
        for (counter, value) in [(replies, 1), (by_cache, 1), (bytes, self.bytes)] {
            if let Some(counter) = counter {
                filter.add(counter, value);
            }
        }
    }

    /// Takes a tunnel, such as a WebSocket, out of the admission limit.
    fn become_long_lived(&mut self, now: Time) {
        let Pending { cluster, decision, .. } = &mut self.pending;
        let changed = cluster.dispatcher().map(|dispatcher| dispatcher.become_long_lived(now, decision));
        if let Some(Ok(Some(long_lived))) = changed {
            *decision = long_lived;
        }
    }
}

/// An attempt that ends in a shorter time without a reply counts as one that has not been at the node. Envoy does not tell a filter
/// whether a circuit breaker has stopped the attempt, which takes far less time than most failures of nodes.
const NODE_TIME_MIN: Duration = Duration::from_millis(1);

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.is_other {
            return self.pending.abandon();
        }
        if let (None, Some(prompt)) = (self.first_byte, &self.pending.prompt) {
            prompt.note_unanswered();
        }
        let now = crate::now();
        let elapsed = self.elapsed.unwrap_or_else(|| now.since(self.pending.at));
        let feedback = Feedback {
            elapsed,
            first_byte: self.first_byte,
            bytes: self.bytes,
            status: self.status,
            cache: self.cache,
            failed: self.elapsed.is_none(),
        };
        let was_at_node = self.first_byte.is_some() || elapsed >= NODE_TIME_MIN;
        self.pending.cluster.end(now, &self.pending.decision, was_at_node.then_some(&feedback));
    }
}

/// Returns what the node says about its cache: the last member of the last `Cache-Status` field (RFC 9211).
fn found(filter: Filter<'_>) -> Option<CacheResult> {
    let values = (0..).map_while(|index| filter.header(Map::Response, "cache-status", index));
    members(values.last()?).last()?.found()
}

/// Reads a status: three digits.
fn status(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|status| (100..=999).contains(status))
}
