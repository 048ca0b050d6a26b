//! Decisions of PRESS about a request, and their reasons.

use crate::id::NodeId;

/// Reason for the choice of the service node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PressReason {
    /// This node does not share its cache.
    Alone,
    /// The target is large.
    Large,
    /// The target is in memory here.
    Here,
    /// No node has the target.
    First,
    /// A peer has the target.
    Peer,
    /// The servers of the target are overloaded, and this node is not.
    Relief,
    /// The servers and this node are overloaded, and another node is not.
    Spread,
    /// All nodes are overloaded.
    Crowded,
    /// Another node has forwarded the request.
    Forwarded,
    /// The service node did not answer.
    Unanswered,
}

impl PressReason {
    /// All reasons, in order.
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

    /// Returns the name of the reason in logs and metrics.
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

/// Decision of an initial node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressDecision {
    /// Service node.
    pub node: NodeId,
    /// Reason.
    pub reason: PressReason,
    /// True if this node keeps a target that it serves itself.
    pub keep: bool,
}
