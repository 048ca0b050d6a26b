//! The arguments and results of calls.

use larder_core::{CacheResult, Reason, ServiceClass, TargetId};
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// The largest number of nodes in [`RequestFacts::exclude`].
pub const EXCLUDE_MAX: usize = 64;

/// The largest [`Feedback::status`].
pub const STATUS_MAX: u16 = 999;

/// The id of a node, never used again for another node.
///
/// The lower half is the node's slot in the node table. The upper half is the slot's generation, which changes when another node
/// takes the slot. Generations wrap after 65,535 nodes in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeHandle(NonZeroU32);

impl NodeHandle {
    /// Creates the id of the node in a slot. Generations begin at 1.
    pub(crate) fn new(generation: u16, slot: u16) -> Self {
        let raw = u32::from(generation.max(1)) << 16 | u32::from(slot);
        Self(NonZeroU32::new(raw).unwrap_or(NonZeroU32::MIN))
    }

    /// Returns the id as a number, which is never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// Returns the id with this number; `None` for 0. A number that no node has had is an error of the call that uses the id.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match NonZeroU32::new(raw) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// Returns the node's slot in the node table, from 0 to `limits.nodes_max` - 1. A later node may have the same slot.
    pub const fn slot(self) -> u16 {
        (self.get() & 0xFFFF) as u16
    }

    /// Returns the generation of the slot.
    pub(crate) const fn generation(self) -> u16 {
        (self.get() >> 16) as u16
    }
}

impl fmt::Display for NodeHandle {
    /// Writes the id in hexadecimal, such as `0x10002`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.get())
    }
}

/// The facts of a request that decisions use.
///
/// The nodes may have been removed, because nodes leave at any time. The id of a removed node has no effect once another node has its
/// slot.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// The target: the hash of a key, by [`TargetId::of`], or another 64-bit hash.
    pub target: TargetId,
    /// The service class. Only `cap`, `cap-load` and `static` use it.
    pub class: ServiceClass,
    /// Whether the request asks for a connection that is likely to last, such as a WebSocket.
    pub lasting: bool,
    /// The node that keeps the client's session. It is used unless it is at T_high or takes no requests. A request has a sticky node
    /// or an origin, not both.
    pub sticky: Option<NodeHandle>,
    /// The node that accepted the client's connection. Only `ward` and `part` use it.
    pub origin: Option<NodeHandle>,
    /// The nodes at which the request has failed, the latest last. They are not chosen. At most [`EXCLUDE_MAX`]; the last 8 count.
    pub exclude: &'a [NodeHandle],
}

impl RequestFacts<'_> {
    /// Creates the facts of an unclassified request for a target, without nodes.
    pub const fn new(target: TargetId) -> Self {
        Self { target, class: ServiceClass::N, lasting: false, sticky: None, origin: None, exclude: &[] }
    }
}

/// A decision. Keep it until the request ends, because [`crate::Embedded::done`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The target of the request.
    pub target: TargetId,
    /// The chosen node.
    pub node: NodeHandle,
    /// The reason of the choice. Calls do not read it.
    pub reason: Reason,
    /// The service class of the request.
    pub class: ServiceClass,
    /// Whether the request is long-lived: set by [`crate::Embedded::become_long_lived`].
    pub long_lived: bool,
}

/// The result of a request. The default is a reply of which nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// The time from the decision to the last byte. Zero: unknown, and no policy learns from the reply.
    pub elapsed: Duration,
    /// The time from the decision to the first byte of the reply; `None` if unknown.
    pub first_byte: Option<Duration>,
    /// The size of the reply's body. Bytes. For [`crate::Embedded::status`] only.
    pub bytes: u64,
    /// The HTTP status, at most [`STATUS_MAX`]; 0: unknown. Whether the target was in memory counts for 200 to 299, 304 and 0.
    pub status: u16,
    /// Whether the node had the target in memory; `None` if unknown.
    pub cache: Option<CacheResult>,
    /// Whether the node did not send a whole reply: it failed, timed out or was cancelled.
    pub failed: bool,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request starts at the decision's node, and must be ended with [`crate::Embedded::done`].
    Start(Decision),
    /// The request is refused, and nothing is counted.
    Refused(Refusal),
}

/// The reason why a request is refused. A later request may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No node takes requests. Reply 503.
    NoNode,
    /// The admission limit S is reached. Reply 503, or hold the request and ask again later.
    Limit,
}
