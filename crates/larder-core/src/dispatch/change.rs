//! The events that lead to decisions, and the changes between them: what a record names.

use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::{Elsewhere, LoadReport, NodeSpec, NodeState, Weight};
use crate::policy::table::RouteTable;
use crate::policy::{CacheEvent, Memory};
use crate::time::Time;
use std::sync::Arc;

/// The event that led to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A request arrived.
    Arrive,
    /// A request failed at this node, which its `exclude` now names.
    Retry(NodeId),
    /// There is room for a request that has waited with this ticket, until this deadline at the longest.
    Admit(Ticket, Time),
    /// The forwarding plane has started a request at this node, by an earlier decision for its target.
    Reuse(NodeId),
}

/// A change of something beside loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node joined.
    Join(NodeSpec),
    /// A node failed, drained, left or recovered.
    State(NodeId, NodeState),
    /// A node got another weight.
    Reweigh(NodeId, Weight),
    /// A node became a backup, or an ordinary node.
    Backup(NodeId, bool),
    /// So many requests at a node are long-lived now.
    LongLived(NodeId, u32),
    /// A node said how loaded it is.
    Report(NodeId, LoadReport),
    /// A node's cache changed.
    Cache(NodeId, TargetId, CacheEvent),
    /// A route got another routing table.
    Table(RouteId, Arc<RouteTable>),
    /// Other switches were heard: what they have at the nodes.
    Elsewhere(Arc<Elsewhere>),
    /// Another switch's server sets were taken over, as far as they are later.
    Sets(RouteId, Arc<Memory>),
}

impl Change {
    /// Stands for no node: the change concerns no single one.
    pub const NO_NODE: NodeId = NodeId(u16::MAX);
}
