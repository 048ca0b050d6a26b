//! The connections that nodes answer directly: what each holds at the dispatcher, from its start to its end.
//!
//! A connection counts at its node while a request is under way. Ends are seen in the forwarding plane (the client's FIN
//! or RST) and told by the node; a connection without packets for a while counts as idle, gives its load back and
//! takes it again with its next request; one that stays silent is forgotten.

use super::mechanism::Delivery;
use super::text::Text;
use crate::lease::Lease;
use crate::lease::Started;
use larder_core::{Decision, NodeId, Request, Time};
use larder_handoff::FlowKey;
use larder_handoff::plane::Account;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// One connection.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) decision: Decision,
    pub(crate) delivery: Delivery,
    pub(crate) opened: Time,
    pub(crate) text: Option<Arc<Text>>,
    /// The load has been given back because nothing moved.
    pub(crate) idle: bool,
    /// It has been idle at least once, so that its duration says nothing of the node.
    pub(crate) rested: bool,
    /// Of a moved connection, the number of the reply's first byte.
    pub(crate) first_ack: Option<u32>,
    /// Of a moved connection, the number of the client's first byte, by which its node names it.
    pub(crate) first_seq: Option<u32>,
    /// Of one whose state is or was on its way.
    pub(crate) on_its_way: Option<OnItsWay>,
    /// The client has ended its side, having had something of its reply: what was seen of the connection, and when. It counts no
    /// more unless the client goes on taking its reply; the node says when all has ended.
    pub(crate) closing: Option<(Account, Time)>,
}

/// A connection whose state goes to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnItsWay {
    /// The number of its move.
    pub(crate) id: u64,
    /// When it was pointed at the node, by the plane's clock: what the plane knows since later is another connection.
    pub(crate) entered_ns: u64,
}

impl Handed {
    /// A connection that begins `now`.
    pub(crate) fn new(started: Started, delivery: Delivery, now: Time, text: Option<Arc<Text>>) -> Self {
        let Started { lease, request, decision } = started;
        Self {
            lease,
            request,
            decision,
            delivery,
            opened: now,
            text,
            idle: false,
            rested: false,
            first_ack: None,
            first_seq: None,
            on_its_way: None,
            closing: None,
        }
    }

    /// Whether this is the connection of that move.
    pub(crate) fn is_move(&self, id: u64) -> bool {
        self.on_its_way.is_some_and(|way| way.id == id)
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    /// Both sides have closed.
    Closed,
    /// The client has reset it.
    ClientReset,
    /// Nothing came for too long.
    Silent,
    /// Its node died; the client was told.
    NodeLost,
    /// Another connection has taken its addresses.
    Replaced,
}

impl End {
    pub(crate) const ALL: [Self; 5] =
        [Self::Closed, Self::ClientReset, Self::Silent, Self::NodeLost, Self::Replaced];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ClientReset => "client_reset",
            Self::Silent => "silent",
            Self::NodeLost => "node_lost",
            Self::Replaced => "replaced",
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_key: HashMap<FlowKey, Handed>,
    /// Those whose client has ended its side, since when, in order.
    closing: VecDeque<(FlowKey, Time)>,
}

impl Table {
    /// The client of a connection has ended its side, `at`: its load is given back. Gives its node, if it is known.
    pub(crate) fn close(&mut self, key: FlowKey, account: Account, at: Time, now: Time) -> Option<NodeId> {
        let handed = self.by_key.get_mut(&key)?;
        (handed.idle, handed.closing) = (true, Some((account, at)));
        handed.lease.release(now);
        self.closing.push_back((key, at));
        Some(handed.decision.node)
    }

    /// Connections whose client has ended its side so long ago, and that are there still.
    pub(crate) fn closed_for(&mut self, age: Duration, now: Time) -> Vec<FlowKey> {
        let old = self.closing.iter().take_while(|(_, at)| now.since(*at) > age).count();
        let is_closing = |(key, at): &(FlowKey, Time)| {
            self.by_key.get(key).is_some_and(|handed| handed.closing.is_some_and(|(_, since)| since == *at))
        };
        let keys = self.closing.iter().take(old).filter(|one| is_closing(one)).map(|(key, _)| *key).collect();
        self.closing.drain(..old);
        keys
    }

    /// A connection begins; gives the one that had its addresses before.
    pub(crate) fn put(&mut self, key: FlowKey, handed: Handed) -> Option<Handed> {
        self.by_key.insert(key, handed)
    }

    pub(crate) fn get_mut(&mut self, key: FlowKey) -> Option<&mut Handed> {
        self.by_key.get_mut(&key)
    }

    pub(crate) fn take(&mut self, key: FlowKey) -> Option<Handed> {
        self.by_key.remove(&key)
    }

    /// Takes a connection of which this holds.
    pub(crate) fn take_if(&mut self, key: FlowKey, holds: impl FnOnce(&Handed) -> bool) -> Option<Handed> {
        self.by_key.get(&key).is_some_and(holds).then(|| self.by_key.remove(&key))?
    }

    pub(crate) fn contains(&self, key: FlowKey) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn keys(&self) -> Vec<FlowKey> {
        self.by_key.keys().copied().collect()
    }

    /// Those that count at their nodes.
    pub(crate) fn active_keys(&self) -> Vec<FlowKey> {
        self.by_key.iter().filter(|(_, handed)| !handed.idle).map(|(key, _)| *key).collect()
    }

    pub(crate) fn of_node(&self, node: NodeId) -> Vec<FlowKey> {
        let there = self.by_key.iter().filter(|(_, handed)| handed.decision.node == node);
        there.map(|(key, _)| *key).collect()
    }
}
