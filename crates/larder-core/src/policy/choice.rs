//! A policy's answer: a node, and the reason why it was chosen.

use crate::id::NodeId;
use crate::nodes::Sight;
use core::fmt;

/// The reason why a node was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// By lot.
    Random,
    /// It was its turn.
    Turn,
    /// It had the fewest requests in flight.
    LeastLoaded,
    /// The target's hash names it.
    Hash,
    /// The target had never been assigned (or was forgotten): the least loaded node gets it.
    First,
    /// The target's servers have failed or left: the least loaded node gets it.
    Lost,
    /// It has the target.
    Local,
    /// It has the target, and another, more loaded server was dropped because the set had not changed for K.
    Shrink,
    /// The target's server was overloaded: the target moves to the least loaded node.
    Migrate,
    /// The target's servers were overloaded: the least loaded node joins them.
    Replicate,
    /// The nodes tried before it failed.
    Retry,
    /// The target is in the routing table's core, and the request came to this node.
    Core,
    /// The routing table gives the target to it; the request came elsewhere.
    Owner,
    /// The routing table does not say where the target goes, and the request came to this node.
    Origin,
    /// No cache has the target, and this node holds the one that was not used the longest.
    Oldest,
    /// The nodes that the target's hash names before it had more than their share of the load.
    Overflow,
    /// It promised the shorter wait of two nodes drawn by lot.
    Quickest,
    /// The forwarding plane has used an earlier decision for the target again.
    Reuse,
    /// The client wished it, which keeps something for it (a sticky session).
    Sticky,
    /// By the policy: the node that the client wished had T_high or more.
    StickyFull,
    /// By the policy: the node that the client wished is down, has left, or is none of the route's.
    StickyDown,
    /// By the policy: the node that the client wished drains, and its time for that is over.
    StickyDrained,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 22] = [
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
    ];

    /// The word used in logs and metric labels.
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
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A node and why it was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The node that serves.
    pub node: NodeId,
    /// Why.
    pub reason: Reason,
}

impl Choice {
    /// Counts the request at the node chosen.
    pub(super) fn counted(self, nodes: Sight<'_>) -> Self {
        nodes.start(self.node);
        self
    }
}
