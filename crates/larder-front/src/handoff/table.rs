//! The connections that nodes answer directly: what each holds at the dispatcher, from its start to its end.
//!
//! A connection counts at its node while a request is under way. Ends are seen in the forwarding plane (the client's FIN
//! or RST) and told by the node; a connection without packets for a while counts as idle, gives its load back and
//! takes it again with its next request; one that stays silent is forgotten.

use super::edge::Started;
use super::mechanism::Delivery;
use super::text::Text;
use crate::lease::Lease;
use larder_core::{Decision, NodeId, Request, Time};
use larder_handoff::FlowKey;
use std::collections::HashMap;
use std::sync::Arc;

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
        }
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
}

impl Table {
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
