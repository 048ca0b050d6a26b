//! What outlives a process: the forwarding plane, and the kernel's sockets.

use super::super::ground::{Ground, Id};
use super::clients::{Client, Here};
use super::{Death, Handing};
use larder_core::Time;
use larder_core::peers::handing::{Owner, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// A client's address, and the node whose service address it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::faults) struct Key {
    pub(super) initial: Id,
    pub(super) port: u64,
}

/// Where the plane sends a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Node(Slot),
    /// They are answered by resets.
    Reset,
}

/// An entry of the plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) to: To,
    /// The client has ended, or a node has said that the connection has.
    pub(super) ended: bool,
    pub(super) seen: Time,
    /// Which connection's packets were seen: whose numbers a reset takes.
    pub(super) of: Option<Id>,
}

impl Flow {
    pub(super) const fn new(to: To, seen: Time) -> Self {
        Self { to, ended: false, seen, of: None }
    }

    pub(super) fn lives(&self) -> bool {
        matches!(self.to, To::Node(_)) && !self.ended
    }
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) up: bool,
    pub(super) life: u64,
    pub(super) plane: BTreeMap<Key, Flow>,
    /// Numbers that have a way.
    pub(super) links: BTreeSet<Slot>,
    pub(super) owners: BTreeMap<Slot, Id>,
    /// Sockets of connections that were handed over to this node.
    pub(super) sockets: BTreeMap<Key, Id>,
}

/// A node's key.
pub(super) const fn owner_of(node: Id) -> Owner {
    [node as u8 + 1; 32]
}

impl Host {
    pub(super) const fn new() -> Self {
        Self {
            up: true,
            life: 1,
            plane: BTreeMap::new(),
            links: BTreeSet::new(),
            owners: BTreeMap::new(),
            sockets: BTreeMap::new(),
        }
    }

    /// What goes on at others.
    pub(super) fn living(&self) -> impl Iterator<Item = (Key, Slot)> {
        self.plane.iter().filter(|(_, flow)| flow.lives()).filter_map(|(key, flow)| match flow.to {
            To::Node(slot) => Some((*key, slot)),
            To::Reset => None,
        })
    }
}

impl Ground<'_, Handing> {
    /// Whether what a client sends, or its host answers, comes to a node.
    pub(super) fn passes(&self, key: Key, at: Id) -> bool {
        let host = &self.own.hosts[key.initial];
        let to = host.plane.get(&key).map(|flow| flow.to);
        let Some(To::Node(slot)) = to else { return false };
        host.up
            && self.own.hosts[at].up
            && self.way(key.initial, at)
            && host.links.contains(&slot)
            && host.owners.get(&slot) == Some(&at)
    }

    /// The plane sees a packet of a connection.
    pub(super) fn seen(&mut self, key: Key, conn: Id) {
        let now = self.now;
        if let Some(flow) = self.own.hosts[key.initial].plane.get_mut(&key) {
            (flow.seen, flow.of) = (now, Some(conn));
        }
    }

    /// What becomes of all that a node had.
    pub(super) fn dead(&mut self, node: Id, death: Death) {
        self.cut_channels(node, death);
        for conn in 0..self.own.conns.len() {
            if self.own.conns[conn].key.initial == node {
                self.cut_here(conn, death);
            }
        }
        match death {
            // Its kernel tells the clients.
            Death::Process => {
                let sockets = core::mem::take(&mut self.own.hosts[node].sockets);
                sockets.into_values().for_each(|conn| self.kernel_tells(conn));
            }
            // Its kernel goes on with what clients have not taken.
            Death::GoodOrder => {}
            Death::Host => {
                let host = &mut self.own.hosts[node];
                *host = Host { up: false, life: host.life + 1, ..Host::new() };
            }
        }
    }

    /// A socket that has not been handed over goes with its process.
    fn cut_here(&mut self, conn: Id, death: Death) {
        let moves =
            self.own.hosts[self.own.conns[conn].key.initial].plane.contains_key(&self.own.conns[conn].key);
        let one = &mut self.own.conns[conn];
        let before = one.cut;
        // Of a host nothing is left: what it has handed over has no way either.
        one.cut |= death == Death::Host && one.client == Client::Open;
        match one.here.take() {
            None => {}
            // What it says does not get out, since its packets go elsewhere.
            Some(Here::Frozen) => one.cut = true,
            Some(Here::Live) if moves || death == Death::Host => one.cut = true,
            Some(Here::Live) if death == Death::GoodOrder => one.client = Client::Done,
            Some(Here::Live) => self.kernel_tells(conn),
        }
        self.survived.cut += u64::from(self.own.conns[conn].cut && !before);
    }

    /// A client is told by a kernel whose process has died.
    pub(super) fn kernel_tells(&mut self, conn: Id) {
        if self.own.conns[conn].client == Client::Open {
            self.own.conns[conn].client = Client::Told;
            self.survived.cut += 1;
        }
    }
}
