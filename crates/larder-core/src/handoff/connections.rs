//! The connections at nodes: the load and the state of each, from its start to its end.

use super::{Decision, Flow, FlowAccount, FlowTarget};
use crate::id::NodeId;
use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

/// The age below which a connection may still be on its way into the table.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// The time after an ended connection's last packet at which the plane forgets it: a node's TIME_WAIT is 60 s.
const LINGER: Duration = Duration::from_secs(60);
/// The time after which the plane forgets a connection that it holds and the machine does not.
const UNHELD_AFTER: Duration = Duration::from_millis(100);

/// A connection at a node.
#[derive(Debug)]
pub struct Connection<L> {
    /// The connection's load at the dispatcher.
    pub load: L,
    /// The connection's node.
    pub decision: Decision,
    pub(super) opened: Time,
    /// Whether the load has been released, because the connection is idle or because the client has closed its side.
    pub(super) idle: bool,
    pub(super) rested: bool,
    /// The sequence number of the reply's first byte, if a socket moved.
    pub(super) first_ack: Option<u32>,
    /// The sequence number of the client's first byte, by which the node identifies the connection; `None` if only
    /// the plane has it.
    pub(super) first_seq: Option<u32>,
    /// The move by which the node got the connection's state; `None` if it was not moved.
    pub(super) pending_move: Option<PendingMove>,
    /// The account and the time at which the client closed its side, after it had received part of a reply.
    pub(super) closing: Option<(FlowAccount, Time)>,
    /// The number of the latest sweep in which the plane knew the connection.
    pub(super) swept: u32,
}

/// A connection whose state is being sent to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingMove {
    /// The number of the move.
    pub id: u64,
    /// The time at which its flow was routed to the node, by the plane's clock. A flow that the plane opened later
    /// is another connection.
    pub entered: Time,
}

impl<L> Connection<L> {
    /// Creates a connection that a node has answered since `opened`.
    pub(super) const fn new(decision: Decision, load: L, opened: Time) -> Self {
        Self {
            load,
            decision,
            opened,
            idle: false,
            rested: false,
            first_ack: None,
            first_seq: None,
            pending_move: None,
            closing: None,
            swept: 0,
        }
    }

    /// Returns whether this is the connection of a move.
    pub(super) fn is_move(&self, id: u64) -> bool {
        self.pending_move.is_some_and(|way| way.id == id)
    }
}

/// The connections at nodes.
#[derive(Debug)]
pub(super) struct Connections<K, L> {
    pub(super) by_key: BTreeMap<K, Connection<L>>,
    /// The connections whose clients have closed their side, with the time, in order.
    pub(super) closing: VecDeque<(K, Time)>,
    /// The number of the latest sweep.
    pub(super) sweep: u32,
    /// The start of the latest sweep and of the one before, by the plane's clock.
    sweeps: [Option<Time>; 2],
}

impl<K, L> Default for Connections<K, L> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), closing: VecDeque::new(), sweep: 0, sweeps: [None; 2] }
    }
}

impl<K: Copy + Ord, L> Connections<K, L> {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn get(&self, key: K) -> Option<&Connection<L>> {
        self.by_key.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut Connection<L>> {
        self.by_key.get_mut(&key)
    }

    pub(super) fn take_if(
        &mut self,
        key: K,
        holds: impl FnOnce(&Connection<L>) -> bool,
    ) -> Option<Connection<L>> {
        self.by_key.get(&key).is_some_and(holds).then(|| self.by_key.remove(&key))?
    }

    pub(super) fn active(&self) -> Vec<K> {
        self.by_key.iter().filter(|(_, one)| !one.idle).map(|(key, _)| *key).collect()
    }

    pub(super) fn of_node(&self, node: NodeId) -> Vec<K> {
        let there = self.by_key.iter().filter(|(_, one)| one.decision.node == node);
        there.map(|(key, _)| *key).collect()
    }

    pub(super) fn has_any(&self, node: NodeId) -> bool {
        self.by_key.values().any(|one| one.decision.node == node)
    }

    pub(super) fn begin_sweep(&mut self, now: Time) {
        self.sweep = self.sweep.wrapping_add(1);
        self.sweeps = [Some(now), self.sweeps[0]];
    }

    /// Records that the plane knows a connection. Returns true if the connection requires an action.
    pub(super) fn record_seen(&mut self, key: K, flow: &Flow, now: Time, idle_after: Duration) -> bool {
        let silent = flow.silence(now);
        match flow.to {
            // This host's own TCP knows the end of connections that it serves.
            FlowTarget::Here | FlowTarget::Reset => return false,
            FlowTarget::Held => return silent > UNHELD_AFTER,
            FlowTarget::Node(_) => {}
        }
        let sweep = self.sweep;
        let known = self.by_key.get_mut(&key).map(|one| one.swept = sweep).is_some();
        // The client has sent something recently: now, or at any time since the previous sweep, so that no
        // connection with a request is missed.
        let lately = silent <= idle_after || self.sweeps[1].is_some_and(|before| flow.seen >= before);
        let unknown = !known && !flow.has_ended() && lately;
        unknown && now.since(flow.opened) > SETTLED_AFTER || flow.has_ended() && silent > LINGER
    }

    /// Returns the connections that the plane does not know any more.
    pub(super) fn unswept(&self) -> Vec<K> {
        let gone = |one: &Connection<L>| one.swept != self.sweep;
        self.by_key.iter().filter(|(_, one)| gone(one)).map(|(key, _)| *key).collect()
    }

    /// Returns the existing connections whose clients closed their side more than `age` ago.
    pub(super) fn closed_for(&mut self, age: Duration, now: Time) -> Vec<K> {
        let mut keys = Vec::new();
        while let Some((key, at)) = self.closing.pop_front_if(|(_, at)| now.since(*at) > age) {
            let closing = self.by_key.get(&key).and_then(|one| one.closing);
            if closing.is_some_and(|(_, since)| since == at) {
                keys.push(key);
            }
        }
        keys
    }
}
