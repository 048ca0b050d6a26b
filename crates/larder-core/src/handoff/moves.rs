//! Connections whose state is on its way to a node.
//!
//! The plane forwards a connection's packets before its socket is frozen and its state is sent: whatever the client sends from
//! then on waits at the node. What is needed to go on with it here is kept until the node has answered.

use super::{Decision, Parts};
use crate::id::NodeId;
use crate::time::Time;
use std::collections::BTreeMap;

/// The origin of a state.
pub(super) enum Kind<T: Parts> {
    /// A held connection: its packets, and the state until it is sent.
    Held { packets: Vec<T::Packet>, unsent: Option<PendingState<T>> },
    /// An accepted socket. What it holds, as long as the plane does not forward its packets.
    Socket { waiter: T::Waiter, waits: Option<(Decision, T::Load)> },
    /// A connection that another node gives up.
    Transfer,
}

/// The state of a held connection.
pub(super) struct PendingState<T: Parts> {
    pub(super) decision: Decision,
    pub(super) load: T::Load,
    pub(super) state: T::State,
    pub(super) first_seq: u32,
    pub(super) complete: bool,
}

/// A state on its way.
pub(super) struct Move<T: Parts> {
    pub(super) node: NodeId,
    pub(super) key: T::Key,
    /// Number of times that the node had been asked for its connections when the state was sent; `None` before.
    pub(super) sent: Option<u64>,
    /// The sequence number by which the node is to know the connection; 0 if that is not known.
    pub(super) first_seq: u32,
    /// Nothing is awaited from then on.
    pub(super) until: Time,
    pub(super) kind: Kind<T>,
}

/// All of them, by number.
pub(super) struct Moves<T: Parts> {
    pub(super) by_id: BTreeMap<u64, Move<T>>,
    /// Number of moves of a connection's addresses, which another connection may have by now.
    by_key: BTreeMap<T::Key, u32>,
    begun: u64,
    pub(super) look_at: Time,
}

impl<T: Parts> Default for Moves<T> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), by_key: BTreeMap::new(), begun: 0, look_at: Time::ZERO }
    }
}

impl<T: Parts> Moves<T> {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether a connection is on its way.
    pub(super) fn has(&self, key: T::Key) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(super) fn begin(&mut self, node: NodeId, key: T::Key, until: Time, kind: Kind<T>) -> u64 {
        self.begun += 1;
        *self.by_key.entry(key).or_default() += 1;
        self.by_id.insert(self.begun, Move { node, key, sent: None, first_seq: 0, until, kind });
        self.begun
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Move<T>> {
        let one = self.by_id.remove(&id)?;
        if let Some(count) = self.by_key.get_mut(&one.key) {
            *count -= 1;
            if *count == 0 {
                self.by_key.remove(&one.key);
            }
        }
        Some(one)
    }

    /// The packets of a held connection. An end of the client's, or bytes behind a gap, are not in its state.
    pub(super) fn packets(&self, id: u64) -> Vec<T::Packet> {
        match self.by_id.get(&id) {
            Some(Move { kind: Kind::Held { packets, .. }, .. }) => packets.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn ids(&self, holds: impl Fn(&Move<T>) -> bool) -> Vec<u64> {
        self.by_id.iter().filter(|(_, one)| holds(one)).map(|(id, _)| *id).collect()
    }
}

/// The result of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MoveResult {
    Restored,
    /// The reason is for the log.
    Refused(String),
    Nothing,
}
