//! Connections whose state is on its way to a node.
//!
//! The plane forwards a connection's packets before its socket is frozen and its state is sent. From then on, packets of
//! the client wait at the node. Everything needed to continue the connection here is kept until the node has answered.

use super::{Decision, EdgeTypes};
use crate::id::NodeId;
use crate::time::Time;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// The origin of a state.
pub(super) enum MoveKind<T: EdgeTypes> {
    /// A held connection: its packets, and the state until it is sent.
    Held { packets: Vec<T::Packet>, unsent: Option<PendingState<T>> },
    /// An accepted socket, with its load as long as the plane does not forward its packets.
    Socket { waiter: T::Waiter, waits: Option<(Decision, T::Load)> },
    /// A connection that another node gives up.
    Transfer,
}

/// The state of a held connection.
pub(super) struct PendingState<T: EdgeTypes> {
    pub(super) decision: Decision,
    pub(super) load: T::Load,
    pub(super) state: T::State,
    pub(super) first_seq: u32,
    pub(super) complete: bool,
}

/// A state on its way to a node.
pub(super) struct Move<T: EdgeTypes> {
    pub(super) node: NodeId,
    pub(super) key: T::Key,
    /// The number of times that the node had been asked for its connections when the state was sent; `None` before.
    pub(super) sent: Option<u64>,
    /// The sequence number by which the node identifies the connection; 0 if unknown.
    pub(super) first_seq: u32,
    /// The time after which no answer is expected.
    pub(super) until: Time,
    pub(super) kind: MoveKind<T>,
}

/// The pending moves, by number.
pub(super) struct Moves<T: EdgeTypes> {
    pub(super) by_id: BTreeMap<u64, Move<T>>,
    /// The number of moves for each connection's addresses, which another connection may have by now.
    by_key: BTreeMap<T::Key, u32>,
    begun: u64,
    pub(super) check_at: Time,
}

impl<T: EdgeTypes> Default for Moves<T> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), by_key: BTreeMap::new(), begun: 0, check_at: Time::ZERO }
    }
}

impl<T: EdgeTypes> Moves<T> {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether a connection is on its way.
    pub(super) fn has(&self, key: T::Key) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(super) fn begin(&mut self, node: NodeId, key: T::Key, until: Time, kind: MoveKind<T>) -> u64 {
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

    /// Returns the packets of a held connection. A FIN of the client, and bytes after a gap, are not in its state.
    pub(super) fn packets(&self, id: u64) -> Vec<T::Packet> {
        match self.by_id.get(&id) {
            Some(Move { kind: MoveKind::Held { packets, .. }, .. }) => packets.clone(),
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
    /// The node refused the connection. The reason is for the log.
    Refused(String),
    Nothing,
}
