//! Feedback to a policy after its decisions: changes of the nodes' caches, and the results of requests.

use core::time::Duration;

/// A change in a node's cache. Source: the node, at the moment of the change. If an event is lost, the mirror is
/// wrong about that target until the next event or the target's next use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// The target is now in the cache.
    Stored,
    /// The target has just been evicted to make room.
    Evicted,
    /// The target is no longer in the cache. The time and the reason are unknown, because this was noticed later.
    Gone,
}

/// Whether a node had the target in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheResult {
    /// The target was in memory.
    Hit,
    /// The target was not in memory.
    Miss,
}

impl CacheResult {
    /// Returns the name used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
        }
    }
}

/// The result of a request that was answered. Source: the caller's clock, and the node's report of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyFeedback {
    /// The time from the decision to the last byte. It includes the time that the client takes to read.
    pub elapsed: Duration,
    /// The time from the decision to the first byte of the reply; `None` if it was not observed.
    pub first_byte: Option<Duration>,
    /// Whether the node had the target in memory; `None` if the node does not report it.
    pub found: Option<CacheResult>,
}
