//! The state that outlives a process: the forwarding plane, and the kernel's sockets.

use super::super::simulation::{Id, Simulation};
use super::clients::{ClientState, LocalSocket};
use super::{Death, PeerHandoffWorld};
use larder_core::Time;
use larder_core::peers::handoff::{PeerKey, PeerSlot};
use std::collections::{BTreeMap, BTreeSet};

/// A client's address, and the node whose service address it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::faults) struct Key {
    pub(super) initial: Id,
    pub(super) port: u64,
}

/// The destination of a connection's packets in the plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowTarget {
    Node(PeerSlot),
    /// The packets are answered with resets.
    Reset,
}

/// An entry of the forwarding plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowEntry {
    pub(super) to: FlowTarget,
    /// Whether the client has ended, or a node has reported the connection's end.
    pub(super) ended: bool,
    pub(super) seen: Time,
    /// The connection whose packets were seen last. A reset takes its numbers.
    pub(super) of: Option<Id>,
}

impl FlowEntry {
    pub(super) const fn new(to: FlowTarget, seen: Time) -> Self {
        Self { to, ended: false, seen, of: None }
    }

    pub(super) fn is_moved(&self) -> bool {
        matches!(self.to, FlowTarget::Node(_)) && !self.ended
    }
}

/// The kernel state of a node.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) up: bool,
    pub(super) life: u64,
    pub(super) plane: BTreeMap<Key, FlowEntry>,
    /// The slots of peers with a path for packets.
    pub(super) links: BTreeSet<PeerSlot>,
    pub(super) owners: BTreeMap<PeerSlot, Id>,
    /// The sockets of connections that were handed off to this node.
    pub(super) sockets: BTreeMap<Key, Id>,
}

/// Returns the key of a node.
pub(super) const fn owner_key(node: Id) -> PeerKey {
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

    /// Returns the connections that continue at other nodes.
    pub(super) fn list_moved(&self) -> impl Iterator<Item = (Key, PeerSlot)> {
        self.plane.iter().filter(|(_, flow)| flow.is_moved()).filter_map(|(key, flow)| match flow.to {
            FlowTarget::Node(slot) => Some((*key, slot)),
            FlowTarget::Reset => None,
        })
    }
}

impl Simulation<'_, PeerHandoffWorld> {
    /// Returns whether a client's packets, or its host's answers, reach a node.
    pub(super) fn is_routed_to(&self, key: Key, at: Id) -> bool {
        let host = &self.world.hosts[key.initial];
        let to = host.plane.get(&key).map(|flow| flow.to);
        let Some(FlowTarget::Node(slot)) = to else { return false };
        host.up
            && self.world.hosts[at].up
            && self.has_path(key.initial, at)
            && host.links.contains(&slot)
            && host.owners.get(&slot) == Some(&at)
    }

    /// Records that the plane has seen a packet of a connection.
    pub(super) fn record_packet(&mut self, key: Key, conn: Id) {
        let now = self.now;
        if let Some(flow) = self.world.hosts[key.initial].plane.get_mut(&key) {
            (flow.seen, flow.of) = (now, Some(conn));
        }
    }

    /// Handles the end of a node's process or host.
    pub(super) fn handle_death(&mut self, node: Id, death: Death) {
        self.close_sides_of(node, death);
        for conn in 0..self.world.conns.len() {
            if self.world.conns[conn].key.initial == node {
                self.cut_local_socket(conn, death);
            }
        }
        match death {
            // The kernel resets the clients.
            Death::Process => {
                let sockets = core::mem::take(&mut self.world.hosts[node].sockets);
                sockets.into_values().for_each(|conn| self.reset_by_kernel(conn));
            }
            // The kernel continues with data that clients have not taken.
            Death::GoodOrder => {}
            Death::Host => {
                let host = &mut self.world.hosts[node];
                *host = Host { up: false, life: host.life + 1, ..Host::new() };
            }
        }
    }

    /// Handles the end of a socket that was not handed off, with its process.
    fn cut_local_socket(&mut self, conn: Id, death: Death) {
        let moves = self.world.hosts[self.world.conns[conn].key.initial]
            .plane
            .contains_key(&self.world.conns[conn].key);
        let one = &mut self.world.conns[conn];
        let before = one.cut;
        // Nothing is left of a crashed host: connections that it handed off have no path either.
        one.cut |= death == Death::Host && one.client == ClientState::Open;
        match one.here.take() {
            None => {}
            // Its reset does not reach the client, because its packets go elsewhere.
            Some(LocalSocket::Frozen) => one.cut = true,
            Some(LocalSocket::Live) if moves || death == Death::Host => one.cut = true,
            Some(LocalSocket::Live) if death == Death::GoodOrder => one.client = ClientState::Done,
            Some(LocalSocket::Live) => self.reset_by_kernel(conn),
        }
        self.stats.cut += u64::from(self.world.conns[conn].cut && !before);
    }

    /// Resets a client by the kernel of a crashed process.
    pub(super) fn reset_by_kernel(&mut self, conn: Id) {
        if self.world.conns[conn].client == ClientState::Open {
            self.world.conns[conn].client = ClientState::Told;
            self.stats.cut += 1;
        }
    }
}
