//! The observations that a live switch passes to its shadows.

use crate::dispatch::{CacheResult, Request};
use crate::id::NodeId;
use crate::nodes::{Groups, NodeState, Weight};
use crate::time::Time;
use crate::unit::Bytes;
use alloc::sync::Arc;
use core::time::Duration;

/// The time by which a request is delayed, so that earlier requests that lasted longer can be processed before it.
pub const HOLD_TIME: Duration = Duration::from_secs(1);

/// A request that has ended live.
#[derive(Clone, Copy, Debug)]
pub struct ObservedRequest {
    /// The time of its end.
    pub at: Time,
    /// The request.
    pub request: Request,
    /// The live node.
    pub node: NodeId,
    /// The time from the decision to the last byte.
    pub elapsed: Duration,
    /// The time from the decision to the first byte of the reply.
    pub first_byte: Option<Duration>,
    /// The object's size; `None` if the reply does not show it, such as a reply to HEAD or to a conditional request.
    pub bytes: Option<Bytes>,
    /// Whether the live node had the object in memory; `None` if it does not report it.
    pub found: Option<CacheResult>,
    /// Whether a node keeps such a reply.
    pub keeps: bool,
}

impl ObservedRequest {
    /// Returns whether the request provides information about memories.
    pub(super) const fn is_informative(&self) -> bool {
        self.found.is_some() || self.keeps
    }
}

/// A node of the live cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNode {
    /// The name of the node.
    pub name: Arc<str>,
    /// The slot of the node.
    pub id: NodeId,
    /// The relative capacity of the node.
    pub weight: Weight,
    /// The groups of the node.
    pub groups: Groups,
    /// Whether the node is a backup.
    pub backup: bool,
    /// The state of the node.
    pub state: NodeState,
    /// The size of the node's memory; zero if it is not known, and then nothing is kept there.
    pub memory: Bytes,
}
