//! Facts that a live switch tells its shadows.

use crate::dispatch::{CacheResult, Request};
use crate::id::NodeId;
use crate::nodes::{Groups, NodeState, Weight};
use crate::time::Time;
use crate::unit::Bytes;
use core::time::Duration;
use std::sync::Arc;

/// The time that a request is held back, so that those that came before it and lasted longer can be taken before it.
pub const HELD: Duration = Duration::from_secs(1);

/// A request that has ended live.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// When.
    pub at: Time,
    /// The request.
    pub request: Request,
    /// The live node.
    pub node: NodeId,
    /// From the decision to the last byte.
    pub elapsed: Duration,
    /// From the decision to the first byte of the reply.
    pub first_byte: Option<Duration>,
    /// The object's size; `None` if the reply does not show it, as one to HEAD or to a condition.
    pub bytes: Option<Bytes>,
    /// Whether the live node had it; `None` if it does not say.
    pub found: Option<CacheResult>,
    /// A node keeps such a reply.
    pub keeps: bool,
}

impl Seen {
    /// Whether the request says anything about memories.
    pub(super) const fn tells(&self) -> bool {
        self.found.is_some() || self.keeps
    }
}

/// A node of the live cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNode {
    /// Its name.
    pub name: Arc<str>,
    /// Its slot.
    pub id: NodeId,
    /// Its relative capacity.
    pub weight: Weight,
    /// The groups it is in.
    pub groups: Groups,
    /// Whether it is a backup.
    pub backup: bool,
    /// Whether it takes requests.
    pub state: NodeState,
    /// The size of its memory; zero if it is not known, and then nothing is kept there.
    pub memory: Bytes,
}
