//! Messages between a distributor and its dispatcher.

use crate::id::TargetId;
use alloc::vec::Vec;

/// Largest number of requests in one batch, and of incarnations whose ended requests one batch reports.
pub const BATCH_MAX: usize = 1_024;

/// Name of a node in messages: its XXH3-64. No name has the key 0, which stands for the distributor that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameKey(pub u64);

impl NameKey {
    /// Key of the distributor that asks.
    pub const REQUESTER: Self = Self(0);

    /// Computes the key of a name.
    pub fn of(name: &str) -> Self {
        Self(TargetId::of(name.as_bytes()).0.max(1))
    }
}

/// Node that a dispatcher chose for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeInstance {
    /// Key of the node's name.
    pub node: NameKey,
    /// Incarnation of the node. The dispatcher numbers from 1 each node that joins or joins again.
    pub incarnation: u64,
}

impl NodeInstance {
    /// The distributor that asks. The dispatcher does not count the request.
    pub const REQUESTER: Self = Self { node: NameKey::REQUESTER, incarnation: 0 };
}

/// Ended requests of one distributor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequests {
    /// Incarnation of their node.
    pub incarnation: u64,
    /// Number of requests.
    pub count: u32,
}

/// Requests and reports of a distributor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Epoch of the distributor.
    pub epoch: u64,
    /// Number of the first batch of the account.
    pub account: u64,
    /// Number of the batch, increasing.
    pub number: u64,
    /// Number of the last batch of the account whose answers were used; 0 if there is none.
    pub acknowledged: u64,
    /// Number of the group of ended requests, from 1; 0 if there is none yet.
    pub group: u64,
    /// Ended requests, at most [`BATCH_MAX`].
    pub ended: Vec<EndedRequests>,
    /// Requested targets, at most [`BATCH_MAX`].
    pub targets: Vec<TargetId>,
}

/// Message between a distributor and a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardMessage {
    /// Request for placements, and report of ended requests.
    Batch(Batch),
    /// Answer to a batch.
    Answers {
        /// Number of the batch.
        number: u64,
        /// Node for each requested target, in order.
        instances: Vec<NodeInstance>,
    },
    /// Answer to a batch whose account is unknown.
    Unknown {
        /// Number of the batch.
        number: u64,
    },
}
