//! The outcome of a world: what it went through, or the rule that did not hold.

use core::fmt;

use serde::Serialize;

/// The events that a world went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survived {
    /// Nodes.
    pub nodes: u64,
    /// Requests accepted.
    pub requests: u64,
    /// Requests forwarded.
    pub forwarded: u64,
    /// Answered by the initial node itself because the service node did not answer.
    pub taken_back: u64,
    /// Aborted in mid-reply.
    pub aborted: u64,
    /// Cut off with their initial node.
    pub cut: u64,
    /// Messages of the protocol that arrived, a repeated one each time.
    pub heard: u64,
    /// Messages lost.
    pub lost: u64,
    /// Crashes, each followed by a start under a new epoch.
    pub crashes: u64,
    /// Times that a node stood still.
    pub pauses: u64,
    /// Times that the network fell into two parts.
    pub partitions: u64,
    /// Milliseconds from the last fault until all views were exact.
    pub converged_ms: u64,
}

impl Survived {
    /// Both together; of the times to converge the longer one.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            nodes: self.nodes + other.nodes,
            requests: self.requests + other.requests,
            forwarded: self.forwarded + other.forwarded,
            taken_back: self.taken_back + other.taken_back,
            aborted: self.aborted + other.aborted,
            cut: self.cut + other.cut,
            heard: self.heard + other.heard,
            lost: self.lost + other.lost,
            crashes: self.crashes + other.crashes,
            pauses: self.pauses + other.pauses,
            partitions: self.partitions + other.partitions,
            converged_ms: self.converged_ms.max(other.converged_ms),
        }
    }
}

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The world's seed: the same again shows the same.
    pub seed: u64,
    /// The time, in milliseconds of the simulation.
    pub at_ms: u64,
    /// The breach.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: at {} ms: {}", self.seed, self.at_ms, self.what)
    }
}

impl core::error::Error for Violation {}
