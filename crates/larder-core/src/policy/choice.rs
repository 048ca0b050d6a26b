//! The answer of a policy: a node, and the reason for choosing it.

use crate::id::NodeId;
use crate::nodes::ClusterView;
use core::fmt;

/// The reason why a node was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The node was drawn at random.
    Random,
    /// It was the node's turn.
    Turn,
    /// The node had the fewest requests in flight.
    LeastLoaded,
    /// The target's hash maps to the node.
    Hash,
    /// The target had no assignment (or it was evicted): the least loaded node gets it.
    First,
    /// The target's servers have failed or left: the least loaded node gets it.
    Lost,
    /// The node is a server of the target.
    Local,
    /// The node is a server of the target. A more loaded server was dropped, because the set had not changed for K.
    Shrink,
    /// The target's server was overloaded: the target moves to the least loaded node.
    Migrate,
    /// The target's servers were overloaded: the least loaded node joins them.
    Replicate,
    /// The nodes tried before this one failed.
    Retry,
    /// The target is in the routing table's core, and the request arrived at this node.
    Core,
    /// The routing table assigns the target to this node; the request arrived at another node.
    Owner,
    /// The routing table does not assign the target, and the request arrived at this node.
    Origin,
    /// No cache has the target, and this node's cache contains the object unused for the longest time.
    Oldest,
    /// The nodes that the target's hash prefers had more than their share of the load.
    Overflow,
    /// The node had the shorter expected wait of two nodes drawn at random.
    Quickest,
    /// The forwarding plane reused an earlier decision for the target.
    Reuse,
    /// The node keeps the client's session (a sticky session).
    Sticky,
    /// Chosen by the policy: the node with the client's session had T_high or more.
    StickyFull,
    /// Chosen by the policy: the node with the client's session is down, has left, or is not in the route's group.
    StickyDown,
    /// Chosen by the policy: the node with the client's session drains, and its time for sticky clients is over.
    StickyDrained,
    /// The caller chose the node; see [`RequestAffinity::Placed`](super::RequestAffinity::Placed).
    Placed,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 23] = [
        Self::Random,
        Self::Turn,
        Self::LeastLoaded,
        Self::Hash,
        Self::First,
        Self::Lost,
        Self::Local,
        Self::Shrink,
        Self::Migrate,
        Self::Replicate,
        Self::Retry,
        Self::Core,
        Self::Owner,
        Self::Origin,
        Self::Oldest,
        Self::Overflow,
        Self::Quickest,
        Self::Reuse,
        Self::Sticky,
        Self::StickyFull,
        Self::StickyDown,
        Self::StickyDrained,
        Self::Placed,
    ];

    /// Returns the name used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Turn => "turn",
            Self::LeastLoaded => "least_loaded",
            Self::Hash => "hash",
            Self::First => "first",
            Self::Lost => "lost",
            Self::Local => "local",
            Self::Shrink => "shrink",
            Self::Migrate => "migrate",
            Self::Replicate => "replicate",
            Self::Retry => "retry",
            Self::Core => "core",
            Self::Owner => "owner",
            Self::Origin => "origin",
            Self::Oldest => "oldest",
            Self::Overflow => "overflow",
            Self::Quickest => "quickest",
            Self::Reuse => "reuse",
            Self::Sticky => "sticky",
            Self::StickyFull => "sticky_full",
            Self::StickyDown => "sticky_down",
            Self::StickyDrained => "sticky_drained",
            Self::Placed => "placed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A node, and the reason why it was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The node that serves the request.
    pub node: NodeId,
    /// The reason for the choice.
    pub reason: Reason,
}

impl Choice {
    /// Counts the request at the chosen node and returns the choice.
    pub(super) fn count_request(self, nodes: ClusterView<'_>) -> Self {
        nodes.start(self.node);
        self
    }
}
