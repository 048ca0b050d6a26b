//! Connections at nodes: what each holds, from its start to its end.

use super::{Account, Decision, Flow, To};
use crate::id::NodeId;
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// A connection that is younger than this may be on its way into the table.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// The plane forgets an ended connection so long after its last packet: a node's TIME_WAIT is 60 s.
const LINGER: Duration = Duration::from_secs(60);
/// Time after which the plane forgets a connection that it holds and the machine does not.
const UNHELD_AFTER: Duration = Duration::from_millis(100);

/// A connection at a node.
#[derive(Debug)]
pub struct Connection<L> {
    /// Its load at the dispatcher.
    pub load: L,
    /// Its node.
    pub decision: Decision,
    pub(super) opened: Time,
    /// The load has been given back, because nothing moves or because the client has ended its side.
    pub(super) idle: bool,
    pub(super) rested: bool,
    /// Sequence number of the reply's first byte, if a socket moved.
    pub(super) first_ack: Option<u32>,
    /// Sequence number of the client's first byte, by which its node knows it; `None` if only the plane has it.
    pub(super) first_seq: Option<u32>,
    /// The move by which the node got its state; `None` if it was not moved.
    pub(super) on_its_way: Option<OnItsWay>,
    /// The client has ended its side, having had something of its reply: what had been seen, and when.
    pub(super) closing: Option<(Account, Time)>,
    /// The latest sweep in which the plane knew it.
    pub(super) swept: u32,
}

/// A connection whose state goes to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OnItsWay {
    /// The number of the move.
    pub id: u64,
    /// When it was pointed at the node, by the plane's clock. A flow that the plane opened later is another connection.
    pub entered: Time,
}

impl<L> Connection<L> {
    /// A connection that a node answers since `opened`.
    pub(super) const fn new(decision: Decision, load: L, opened: Time) -> Self {
        Self {
            load,
            decision,
            opened,
            idle: false,
            rested: false,
            first_ack: None,
            first_seq: None,
            on_its_way: None,
            closing: None,
            swept: 0,
        }
    }

    /// Whether this is the connection of a move.
    pub(super) fn is_move(&self, id: u64) -> bool {
        self.on_its_way.is_some_and(|way| way.id == id)
    }
}

/// The connections at nodes.
#[derive(Debug)]
pub(super) struct Connections<K, L> {
    pub(super) by_key: BTreeMap<K, Connection<L>>,
    /// Connections whose clients have ended their side, and since when, in order.
    pub(super) closing: VecDeque<(K, Time)>,
    /// Number of the latest sweep.
    pub(super) sweep: u32,
    /// When it and the one before began, by the plane's clock.
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

    /// Notes that the plane knows a connection. Returns whether there is something to do about it.
    pub(super) fn note_seen(&mut self, key: K, flow: &Flow, now: Time, idle_after: Duration) -> bool {
        let silent = flow.silence(now);
        match flow.to {
            // The end of what this host serves, its own TCP knows.
            To::Here | To::Reset => return false,
            To::Held => return silent > UNHELD_AFTER,
            To::Node(_) => {}
        }
        let sweep = self.sweep;
        let known = self.by_key.get_mut(&key).map(|one| one.swept = sweep).is_some();
        // It has sent something lately: now, or at any time since the sweep before, so that none with a request is missed.
        let lately = silent <= idle_after || self.sweeps[1].is_some_and(|before| flow.seen >= before);
        let unknown = !known && !flow.has_ended() && lately;
        unknown && now.since(flow.opened) > SETTLED_AFTER || flow.has_ended() && silent > LINGER
    }

    /// Connections that the plane does not know any more.
    pub(super) fn unswept(&self) -> Vec<K> {
        let gone = |one: &Connection<L>| one.swept != self.sweep;
        self.by_key.iter().filter(|(_, one)| gone(one)).map(|(key, _)| *key).collect()
    }

    /// Connections whose clients have ended their side so long ago, and that are still there.
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
