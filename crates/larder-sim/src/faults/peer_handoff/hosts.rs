//! The state of an initial node that outlives its process, the forwarding plane, and the sockets of its connections at
//! other nodes.

use super::super::agents::{self, AgentEvent, AgentWorld, ChannelEvent, Connection, TakingNodes};
use super::super::outcome::Violation;
use super::super::simulation::{Id, Simulation};
use super::clients::{ClientConnection, ClientState, LocalSocket};
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

/// The plane of a node.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) life: u64,
    pub(super) plane: BTreeMap<Key, FlowEntry>,
    /// The slots of peers with a path for packets.
    pub(super) links: BTreeSet<PeerSlot>,
    pub(super) owners: BTreeMap<PeerSlot, Id>,
}

/// Returns the key of a node.
pub(super) const fn owner_key(node: Id) -> PeerKey {
    [node as u8 + 1; 32]
}

impl Host {
    pub(super) const fn new() -> Self {
        Self { life: 1, plane: BTreeMap::new(), links: BTreeSet::new(), owners: BTreeMap::new() }
    }

    /// Returns the connections that continue at other nodes.
    pub(super) fn list_moved(&self) -> impl Iterator<Item = (Key, PeerSlot)> {
        self.plane.iter().filter(|(_, flow)| flow.is_moved()).filter_map(|(key, flow)| match flow.to {
            FlowTarget::Node(slot) => Some((*key, slot)),
            FlowTarget::Reset => None,
        })
    }
}

impl AgentWorld for PeerHandoffWorld {
    type Key = Key;

    const MEMBERS_ONLY: bool = true;

    fn taking(&self) -> &TakingNodes<Key> {
        &self.taking
    }

    fn taking_mut(&mut self) -> &mut TakingNodes<Key> {
        &mut self.taking
    }

    fn giving_node(key: Key) -> Id {
        key.initial
    }

    fn connection(&self, conn: Id) -> Connection<Key> {
        let ClientConnection { key, client, here, .. } = self.conns[conn];
        Connection { key, open: client == ClientState::Open, stays: here == Some(LocalSocket::Live) }
    }

    fn handle_channel_event(
        sim: &mut Simulation<'_, Self>,
        node: Id,
        peer: Id,
        event: ChannelEvent<Key>,
    ) -> Result<(), Violation> {
        sim.handle_peer_event(node, peer, event)
    }

    fn serve_at(sim: &mut Simulation<'_, Self>, node: Id, key: Key, conn: Id, _: Option<u32>) {
        sim.schedule_between(1_000, 2_000_000, AgentEvent::Sends { node, key, conn, tries: 0 });
    }

    /// If the addresses belong to another connection now, the client's host does not answer with a reset.
    fn is_reached(sim: &mut Simulation<'_, Self>, node: Id, key: Key, conn: Id) -> bool {
        sim.is_routed_to(key, node) && sim.world.latest.get(&key) == Some(&conn)
    }

    /// No answer of the client's host reaches the node: the initial host has crashed, or the addresses belong to
    /// another connection.
    fn is_beyond_reach(&self, conn: Id) -> bool {
        let one = &self.conns[conn];
        one.life != self.hosts[one.key.initial].life || self.latest.get(&one.key) != Some(&conn)
    }

    fn deliver_reply(
        sim: &mut Simulation<'_, Self>,
        node: Id,
        key: Key,
        conn: Id,
    ) -> Result<bool, Violation> {
        let one = &mut sim.world.conns[conn];
        let open = one.client == ClientState::Open;
        // The kernel of a process that has ended closes the connection.
        if open && one.stays && sim.nodes[node].up {
            sim.schedule_between(1_000_000, 4_000_000, AgentEvent::Sends { node, key, conn, tries: 0 });
            return Ok(true);
        }
        if open {
            one.client = ClientState::Done;
            // The client may reuse the port at once.
            if one.here == Some(LocalSocket::Frozen) && sim.rng.draw_permille(300) {
                sim.deny_connection(conn);
            }
        }
        sim.record_packet(key, conn);
        if let Some(flow) = sim.world.hosts[key.initial].plane.get_mut(&key) {
            flow.ended = true;
        }
        Ok(false)
    }
}

impl Simulation<'_, PeerHandoffWorld> {
    /// Returns whether a client's packets, or its host's answers, reach a node.
    pub(super) fn is_routed_to(&self, key: Key, at: Id) -> bool {
        let host = &self.world.hosts[key.initial];
        let to = host.plane.get(&key).map(|flow| flow.to);
        let Some(FlowTarget::Node(slot)) = to else { return false };
        self.world.taking.hosts[key.initial].up
            && self.world.taking.hosts[at].up
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
        self.end_agent(node, death == Death::Host);
        for conn in 0..self.world.conns.len() {
            if self.world.conns[conn].key.initial == node {
                self.cut_local_socket(conn, death);
            }
        }
        match death {
            // The kernel resets the clients.
            Death::Process => {
                let sockets = core::mem::take(&mut self.world.taking.hosts[node].sockets);
                sockets.into_values().for_each(|socket| self.reset_by_kernel(socket.conn));
            }
            // The kernel continues with data that clients have not taken.
            Death::GoodOrder => {}
            Death::Host => {
                let host = &mut self.world.hosts[node];
                *host = Host { life: host.life + 1, ..Host::new() };
                self.world.taking.hosts[node] = agents::Host { up: false, ..agents::Host::default() };
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
