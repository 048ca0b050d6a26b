//! The events that lead to decisions, and the changes between decisions. A record consists of both.

use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::{LoadReport, NodeSpec, NodeState, PeerSwitchState, Weight};
use crate::policy::table::RouteTable;
use crate::policy::{CacheEvent, LearnedState};
use crate::time::Time;
use alloc::sync::Arc;

/// The event that led to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A request arrived.
    Arrive,
    /// A request failed at this node, which its `exclude` now contains.
    Retry(NodeId),
    /// There is room for the queued request with this ticket and this deadline.
    Admit(Ticket, Time),
    /// The forwarding plane started a request at this node by reusing an earlier decision for the target.
    Reuse(NodeId),
}

/// A change of the dispatcher's state, other than a change of loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node joined.
    Join(NodeSpec),
    /// A node failed, drained, left or recovered.
    State(NodeId, NodeState),
    /// The weight of a node changed.
    Reweigh(NodeId, Weight),
    /// A node became a backup, or an ordinary node.
    Backup(NodeId, bool),
    /// The number of long-lived requests at a node changed to this value.
    LongLived(NodeId, u32),
    /// A node sent a load report.
    Report(NodeId, LoadReport),
    /// A node's cache changed.
    Cache(NodeId, TargetId, CacheEvent),
    /// A route received a new routing table.
    Table(RouteId, Arc<RouteTable>),
    /// The state of the other switches changed.
    PeerSwitches(Arc<PeerSwitchState>),
    /// Server sets of another switch were adopted where they are newer than the route's own.
    Sets(RouteId, Arc<LearnedState>),
}

impl Change {
    /// The node of a change that concerns no single node.
    pub const NO_NODE: NodeId = NodeId(u16::MAX);
}
