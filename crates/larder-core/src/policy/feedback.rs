//! Facts that a policy learns after its decisions: changes of the nodes' caches, and how requests went.

use core::time::Duration;

/// A change in a node's cache. Source: the node, at the moment of the change; an event that is lost leaves the
/// mirror wrong about that target until the next event or the target's next use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// The target is in the cache now.
    Stored,
    /// The target has left the cache, just now and to make room.
    Evicted,
    /// The target is not in the cache, though it was. When it left, and for what, is not known: it was found out later.
    Gone,
}

/// Whether a node had the target in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Found {
    /// It had.
    Hit,
    /// It had to go further.
    Miss,
}

impl Found {
    /// The word for it in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
        }
    }
}

/// The outcome of a request that was answered. Source: the shell; its clock, and what the node says of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// From the decision to the last byte. Includes what the client takes to read.
    pub elapsed: Duration,
    /// From the decision to the first byte of the reply; `None` if that was not seen.
    pub first_byte: Option<Duration>,
    /// Whether the node had the target; `None` if it does not say.
    pub found: Option<Found>,
}
