//! The outcome of a world: its statistics, or the violation of an invariant.

use core::fmt;

use serde::Serialize;

/// Counts of the events and faults of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultStats {
    /// Nodes of the world.
    pub nodes: u64,
    /// Requests accepted.
    pub requests: u64,
    /// Requests forwarded.
    pub forwarded: u64,
    /// Requests that the initial node served itself because the service node did not answer.
    pub taken_back: u64,
    /// Requests aborted in mid-reply.
    pub aborted: u64,
    /// Requests cut off with their initial node.
    pub cut: u64,
    /// Protocol messages that arrived, including duplicates.
    pub heard: u64,
    /// Messages lost.
    pub lost: u64,
    /// Crashes, each followed by a start under a new epoch.
    pub crashes: u64,
    /// Pauses of nodes.
    pub pauses: u64,
    /// Partitions of the network.
    pub partitions: u64,
    /// Time from the last fault until all views were exact, in milliseconds.
    pub converged_ms: u64,
}

impl FaultStats {
    /// Adds the counts of two worlds; the time to converge is the longer one.
    pub(super) fn sum(self, other: Self) -> Self {
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

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The world's seed, which reproduces the violation.
    pub seed: u64,
    /// The time of the violation, in milliseconds of simulated time.
    pub at_ms: u64,
    /// A description of the violation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: at {} ms: {}", self.seed, self.at_ms, self.what)
    }
}

impl core::error::Error for Violation {}
