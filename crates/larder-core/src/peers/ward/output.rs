//! Outputs of the state machine of WARD.

use super::current_placement::CurrentPlacement;
use super::wire::{Count, WardMessage};
use crate::id::NodeId;
use crate::unit::Bytes;
use alloc::vec::Vec;

/// Reason for the choice of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WardReason {
    /// The target is in the core.
    Core,
    /// This node owns the target.
    Own,
    /// Another node owns the target.
    Owner,
    /// The owner is gone or does not answer; the hash decides.
    Heir,
    /// The table does not list the target.
    Rest,
    /// There is no table yet; the hash decides.
    Early,
}

impl WardReason {
    /// All reasons, in order.
    pub const ALL: [Self; 6] = [Self::Core, Self::Own, Self::Owner, Self::Heir, Self::Rest, Self::Early];

    /// Returns the name of the reason in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Own => "own",
            Self::Owner => "owner",
            Self::Heir => "heir",
            Self::Rest => "rest",
            Self::Early => "early",
        }
    }
}

/// Choice of the node that serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WardDecision {
    /// This node, or another one.
    pub node: NodeId,
    /// Reason.
    pub reason: WardReason,
}

/// Action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WardOutput {
    /// Send a message to a node.
    Send {
        /// Receiver.
        to: NodeId,
        /// Message.
        message: WardMessage,
    },
    /// Send a message to all other nodes.
    Broadcast(WardMessage),
    /// Take the census of this node, and pass it to [`Ward::receive_census`](super::Ward::receive_census).
    TakeCensus {
        /// True if the counts must not decay, since they have not led to a table yet.
        keep: bool,
    },
    /// Make a table. Pass it to [`Ward::receive_table`](super::Ward::receive_table), or call
    /// [`Ward::record_analysis_failure`](super::Ward::record_analysis_failure).
    Analyse(AnalysisInput),
}

/// Input of the analysis that makes a routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnalysisInput {
    /// Number of the round, to be given back.
    pub round: u64,
    /// Sum of the counts of all nodes, in order of their targets.
    pub counts: Vec<Count>,
    /// Nodes that the table is for. The table names an owner by its index in this list.
    pub nodes: Vec<NodeId>,
    /// Smallest memory of these nodes.
    pub memory: Bytes,
    /// Current servers of the targets, which have them in memory.
    pub current: CurrentPlacement,
}
