//! The values that a policy of chains reads about a node that may serve a request.

use crate::id::NodeId;

/// The outstanding work of a node, estimated from the requests that were sent to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeWork {
    /// The requests that have not ended.
    pub requests: u32,
    /// The requests whose replies have not begun.
    pub waiting: u32,
    /// The tokens that the waiting requests must still prefill: their prompts without the credited tokens. Tokens of
    /// a prompt count until its reply begins.
    pub prefill: u64,
}

impl NodeWork {
    /// No work.
    pub const NONE: Self = Self { requests: 0, waiting: 0, prefill: 0 };

    /// Returns the sum of two.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            waiting: self.waiting.saturating_add(other.waiting),
            prefill: self.prefill.saturating_add(other.prefill),
        }
    }
}

/// An open node, as one request sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// The node's outstanding work, of this and of other dispatchers, without this request.
    pub work: NodeWork,
    /// The tokens of this request's prompt that the node's cache is expected to have. 0 if the policy does not follow
    /// caches.
    pub credited: u64,
    /// The tokens of this request's prompt that the node would prefill; at least 1, because an engine computes the last
    /// token even if it has all blocks.
    pub missing: u64,
    /// The tokens of prompts that requests at the node use with this one; shared blocks count once. 0 if the policy does
    /// not follow caches.
    pub active: u64,
    /// The tokens that the node's cache is expected to have in total.
    pub resident: u64,
    /// The number of requests since the last use of the block that the node's cache would evict next; the largest
    /// number if there is free memory for the whole prompt.
    pub coldness: u32,
}

impl Candidate {
    /// Returns the tokens that the node would prefill before this request's reply begins, with those of the requests
    /// before it.
    pub const fn wait(&self) -> u64 {
        self.work.prefill.saturating_add(self.missing)
    }
}
