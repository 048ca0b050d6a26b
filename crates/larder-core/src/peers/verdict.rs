//! What a node decides about a request, and why.

use crate::id::NodeId;

/// Why a request is served where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// This node is by itself.
    Alone,
    /// It is large.
    Large,
    /// It is here in memory.
    Here,
    /// It has no server yet.
    First,
    /// A peer has it.
    Peer,
    /// Its servers are overloaded, and this node is not.
    Relief,
    /// Its servers and this node are overloaded, and another node is not.
    Spread,
    /// All are overloaded.
    Crowded,
    /// Another node forwarded it.
    Forwarded,
    /// The service node did not answer.
    Unanswered,
}

impl Why {
    /// All, in order.
    pub const ALL: [Self; 10] = [
        Self::Alone,
        Self::Large,
        Self::Here,
        Self::First,
        Self::Peer,
        Self::Relief,
        Self::Spread,
        Self::Crowded,
        Self::Forwarded,
        Self::Unanswered,
    ];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Large => "large",
            Self::Here => "here",
            Self::First => "first",
            Self::Peer => "peer",
            Self::Relief => "relief",
            Self::Spread => "spread",
            Self::Crowded => "crowded",
            Self::Forwarded => "forwarded",
            Self::Unanswered => "unanswered",
        }
    }
}

/// A decision of an initial node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The service node.
    pub node: NodeId,
    /// Why.
    pub why: Why,
    /// Whether this node keeps what it serves itself.
    pub keep: bool,
}
