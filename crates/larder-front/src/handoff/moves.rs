//! States on their way to nodes, by their numbers and by their connections.

use larder_core::NodeId;
use larder_handoff::FlowKey;
use std::collections::HashMap;
use tokio::sync::oneshot;

/// What became of a socket on its way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// The node has it.
    Restored,
    /// The node has not, and never will.
    Refused(String),
}

#[derive(Debug)]
pub(super) struct Moving {
    pub(super) node: NodeId,
    pub(super) key: FlowKey,
    /// How often the node had been asked for all its connections when this one was sent; `None` before.
    pub(super) sent: Option<u64>,
    pub(super) answer: oneshot::Sender<Arrived>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) by_id: HashMap<u64, Moving>,
    /// How many there are of a connection: of its addresses, that is, which another one may have by now.
    pub(super) by_key: HashMap<FlowKey, u32>,
}

impl Moves {
    pub(super) fn insert(&mut self, id: u64, moving: Moving) {
        *self.by_key.entry(moving.key).or_default() += 1;
        self.by_id.insert(id, moving);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Moving> {
        let moving = self.by_id.remove(&id)?;
        if let Some(count) = self.by_key.get_mut(&moving.key) {
            *count -= 1;
            if *count == 0 {
                self.by_key.remove(&moving.key);
            }
        }
        Some(moving)
    }

    /// Removes those of which this holds.
    pub(super) fn take_all(&mut self, holds: impl Fn(&Moving) -> bool) -> Vec<Moving> {
        let ids: Vec<u64> = self.by_id.iter().filter(|(_, one)| holds(one)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }
}
