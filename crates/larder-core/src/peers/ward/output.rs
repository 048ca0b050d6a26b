//! Outputs of WARD's machine.

use super::serving::Serving;
use super::wire::{Count, WardMessage};
use crate::id::NodeId;
use crate::unit::Bytes;

/// Why a request is served where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WardWhy {
    /// It is of the core.
    Core,
    /// It is this node's.
    Own,
    /// It is another's.
    Owner,
    /// Its owner is not there, or does not answer: by hash.
    Heir,
    /// The table does not have it.
    Rest,
    /// There is no table yet: by hash.
    Early,
}

impl WardWhy {
    /// All, in order.
    pub const ALL: [Self; 6] = [Self::Core, Self::Own, Self::Owner, Self::Heir, Self::Rest, Self::Early];

    /// Its name in logs and metrics.
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

/// The node that is to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WardVerdict {
    /// This node, or another.
    pub node: NodeId,
    /// Why.
    pub why: WardWhy,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WardOutput {
    /// A message is to be sent to a node.
    Send {
        /// To whom.
        to: NodeId,
        /// The message.
        message: WardMessage,
    },
    /// A message is to be sent to all others.
    Tell(WardMessage),
    /// The census of this node is to be taken, and given to [`Ward::counted`](super::Ward::counted).
    Count {
        /// Its counts are to count whole the next time too: it has led to no table yet.
        whole: bool,
    },
    /// A table is to be made, and given to [`Ward::made`](super::Ward::made), or [`Ward::unmade`](super::Ward::unmade).
    Analyse(Analyse),
}

/// The material of a routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analyse {
    /// To be given back.
    pub round: u64,
    /// All nodes' counts together, in order of their targets.
    pub counts: Vec<Count>,
    /// The nodes that it is for. An owner is given as the place in this list.
    pub nodes: Vec<NodeId>,
    /// The least memory that one of them has.
    pub memory: Bytes,
    /// The servers of targets until then: the nodes that have them in memory.
    pub now: Serving,
}
