//! Nodes: their sockets and their agents.

use super::super::outcome::Violation;
use super::super::protocol::BrokenRule;
use super::super::simulation::{Id, Simulation};
use super::channel::AgentMessage;
use super::clients::ClientState;
use super::plane::ClientPacket;
use super::{ClientPort, EdgeProcess, EdgeWorld, Event, HandoffMode, SWITCH, id_of};
use larder_core::handoff::{FlowTarget, TransferMessage};
use std::collections::{BTreeMap, BTreeSet};

/// The retransmissions of a socket whose peer is gone, before TCP gives it up.
const TRIES_MAX: u32 = 8;

/// A socket of a node's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    pub(super) conn: Id,
    /// Whether the socket's state has been given up, or is about to be.
    pub(super) frozen: bool,
    arrived: u32,
}

/// The kernel of a node.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) up: bool,
    pub(super) sockets: BTreeMap<ClientPort, Socket>,
}

impl Default for Host {
    fn default() -> Self {
        Self { up: true, sockets: BTreeMap::new() }
    }
}

/// The process of a node.
#[derive(Debug, Default)]
pub(in crate::faults) struct NodeAgent {
    pub(super) session: Option<Id>,
    pub(super) closed: Vec<(ClientPort, u32)>,
    /// Whether the node drains.
    ending: bool,
    /// The connections that the node has asked to give up.
    leaving: BTreeSet<ClientPort>,
}

/// A report of a node to the switch.
#[derive(Clone, Debug)]
pub(super) enum AgentReport {
    Named(Vec<(ClientPort, u32)>),
    Closed(Vec<(ClientPort, u32)>),
    Restored(u64),
    Refused(u64),
    Leave(ClientPort),
    GivenUp(ClientPort, Id),
    Stay(ClientPort),
    Ending,
}

impl Simulation<'_, EdgeWorld> {
    // -- the agent

    pub(super) fn start_node(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch;
        self.world.hosts[node].up = true;
        self.schedule_between(0, 100_000, Event::Flush { node, epoch });
    }

    pub(super) fn end_node(&mut self, node: Id) {
        let silently = core::mem::replace(&mut self.world.host_dies, false);
        self.cut_sessions_of(node, silently);
        let sockets = core::mem::take(&mut self.world.hosts[node].sockets);
        self.world.hosts[node].up = !silently;
        for (key, socket) in sockets {
            // A frozen socket vanishes silently, and so do all sockets of a crashed host.
            if silently || socket.frozen || !self.is_routed_to(node, key, socket.conn) {
                self.world.conns[socket.conn].cut = true;
                self.stats.cut += 1;
            } else {
                self.reset_client(socket.conn);
            }
        }
    }

    /// Returns whether an agent reads a session.
    pub(super) fn is_read(&self, node: Id, session: Id) -> bool {
        let EdgeProcess::Node(agent) = &self.nodes[node].machine else { return false };
        agent.session == Some(session)
    }

    fn report_to_switch(&mut self, node: Id, report: AgentReport) {
        if let Some(session) = self.agent(node).and_then(|agent| agent.session) {
            self.push(session, true, AgentMessage::Said(report));
        }
    }

    /// Accepts a session of the switch.
    pub(super) fn accept_session(&mut self, node: Id, session: Id) -> Result<(), Violation> {
        let epoch = self.nodes[node].epoch;
        let Some(agent) = self.agent(node) else { return Ok(()) };
        let before = agent.session.replace(session);
        agent.closed.clear();
        let (ending, leaving) = (agent.ending, agent.leaving.clone());
        // An older session of the same switch ends, whichever began first.
        if let Some(before) = before {
            self.shut_side(before, false);
        }
        self.push(session, true, AgentMessage::Welcome);
        if !self.is_broken(BrokenRule::NeverNames) {
            self.schedule_between(0, 20_000, Event::List { node, epoch, session });
        }
        if ending {
            self.report_to_switch(node, AgentReport::Ending);
        }
        leaving.into_iter().for_each(|key| self.report_to_switch(node, AgentReport::Leave(key)));
        Ok(())
    }

    pub(super) fn start_list(&mut self, node: Id, epoch: u64, session: Id) -> Result<(), Violation> {
        if self.is_broken(BrokenRule::NeverNames) {
            return Ok(());
        }
        let keys = self.world.hosts[node].sockets.keys().copied().collect();
        self.schedule_between(0, 20_000, Event::Listed { node, epoch, session, keys });
        Ok(())
    }

    pub(super) fn send_list(
        &mut self,
        node: Id,
        session: Id,
        mut keys: Vec<ClientPort>,
    ) -> Result<(), Violation> {
        // Sockets that have ended since the kernel was read are left out. Later sockets are not in the list.
        keys.retain(|key| self.world.hosts[node].sockets.contains_key(key));
        if self.agent(node).is_some_and(|agent| agent.session == Some(session)) {
            let number = |key: ClientPort| {
                self.world.hosts[node].sockets.get(&key).map(|one| (key, one.conn as u32 + 1))
            };
            let named = keys.into_iter().filter_map(number).collect();
            self.report_to_switch(node, AgentReport::Named(named));
        }
        Ok(())
    }

    pub(super) fn report_ends(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        self.schedule_between(100_000, 100_000, Event::Flush { node, epoch });
        let ended = self.agent(node).map(|agent| core::mem::take(&mut agent.closed)).unwrap_or_default();
        if !ended.is_empty() {
            self.report_to_switch(node, AgentReport::Closed(ended));
        }
        Ok(())
    }

    /// Restores a connection from its transferred state.
    pub(super) fn accept_handoff(
        &mut self,
        node: Id,
        id: u64,
        key: ClientPort,
        conn: Id,
    ) -> Result<(), Violation> {
        let full = self.world.hosts[node].sockets.len() >= self.world.places;
        if full || self.rng.draw_permille(30) {
            self.report_to_switch(node, AgentReport::Refused(id));
            return Ok(());
        }
        let arrived = (1 << self.world.conns[conn].parts) - 1;
        self.begin_socket(node, key, conn, arrived)?;
        self.report_to_switch(node, AgentReport::Restored(id));
        Ok(())
    }

    // -- sockets

    /// Begins a socket. An older socket with the same addresses ends.
    fn begin_socket(&mut self, node: Id, key: ClientPort, conn: Id, arrived: u32) -> Result<(), Violation> {
        if let Some(old) = self.world.hosts[node].sockets.remove(&key) {
            // The kernel resets the older connection's client, if it is still there.
            self.reset_client(old.conn);
            self.record_socket_end(node, key, old.conn);
        }
        self.world.hosts[node].sockets.insert(key, Socket { conn, frozen: false, arrived });
        self.world.conns[conn].acked |= arrived;
        self.log(|| format!("connection {conn} is at {node}"));
        self.check_single_host(conn)?;
        self.schedule_between(2_000_000, 6_000_000, Event::TimesOut { node, key, conn });
        if arrived == (1 << self.world.conns[conn].parts) - 1 {
            self.schedule_between(1_000, 500_000, Event::Sends { node, key, conn, tries: 0 });
        }
        Ok(())
    }

    fn record_socket_end(&mut self, node: Id, key: ClientPort, conn: Id) {
        self.log(|| format!("connection {conn} ends at {node}"));
        if let Some(agent) = self.agent(node) {
            agent.closed.push((key, conn as u32 + 1));
            // A connection that has ended is no longer given up.
            if agent.leaving.remove(&key) {
                self.report_to_switch(node, AgentReport::Stay(key));
            }
        }
    }

    /// Delivers a client's packet to a node.
    pub(super) fn deliver_to_node(
        &mut self,
        node: Id,
        conn: Id,
        sent: ClientPacket,
    ) -> Result<(), Violation> {
        let (key, parts) = (self.world.conns[conn].key, self.world.conns[conn].parts);
        if !self.world.hosts[node].up || !self.has_path(SWITCH, node) {
            return Ok(());
        }
        match (self.world.hosts[node].sockets.get(&key).copied(), sent) {
            (Some(socket), ClientPacket::Reset) if socket.conn == conn && !socket.frozen => {
                self.world.hosts[node].sockets.remove(&key);
                self.record_socket_end(node, key, conn);
            }
            (Some(socket), ClientPacket::Head(part)) if socket.conn == conn => {
                let arrived = socket.arrived | 1 << part;
                let whole = (1 << parts) - 1;
                if let Some(socket) = self.world.hosts[node].sockets.get_mut(&key) {
                    socket.arrived = arrived;
                }
                self.world.conns[conn].acked |= arrived;
                if arrived == whole && socket.arrived != whole {
                    self.schedule_between(1_000, 500_000, Event::Sends { node, key, conn, tries: 0 });
                }
            }
            (Some(socket), ClientPacket::Request) if socket.conn == conn => {
                self.schedule_between(1_000, 500_000, Event::Sends { node, key, conn, tries: 0 });
            }
            // The node accepts by cookie.
            (_, ClientPacket::Head(0))
                if self.world.mode == HandoffMode::Cookie
                    && self.nodes[node].up
                    && self.world.conns[conn].client == ClientState::Open
                    && !self.world.conns[conn].answered =>
            {
                self.begin_socket(node, key, conn, 1)?;
            }
            // A packet without a socket is kept for a while for a socket that is to come.
            _ => {}
        }
        Ok(())
    }

    /// Returns whether a client's packets, or its host's answers, reach a socket of a node.
    pub(super) fn is_routed_to(&self, node: Id, key: ClientPort, conn: Id) -> bool {
        let to =
            self.world.plane.entries.get(&key).filter(|entry| entry.conn == conn).map(|entry| entry.flow.to);
        self.world.hosts[node].up && self.has_path(SWITCH, node) && to == Some(FlowTarget::Node(id_of(node)))
    }

    /// Sends the reply of a socket.
    pub(super) fn send_reply(
        &mut self,
        node: Id,
        key: ClientPort,
        conn: Id,
        tries: u32,
    ) -> Result<(), Violation> {
        let Some(socket) = self.world.hosts[node].sockets.get(&key).copied().filter(|one| one.conn == conn)
        else {
            return Ok(());
        };
        let open = self.world.conns[conn].client == ClientState::Open;
        let passes = self.is_routed_to(node, key, conn) && !self.is_packet_lost();
        if socket.frozen || !passes && (open || tries < TRIES_MAX) {
            self.schedule_between(100_000, 800_000, Event::Sends { node, key, conn, tries: tries + 1 });
            return Ok(());
        }
        if passes && open {
            let waits = self.world.conns[conn].asked.is_some();
            let stays = self.world.conns[conn].stays;
            if waits {
                self.receive_reply(conn)?;
            }
            if stays {
                return Ok(());
            }
        }
        // Everything is sent; or the client's host answers with a reset; or TCP has given up.
        if self.world.hosts[node].sockets.get(&key).is_some_and(|one| one.conn == conn) {
            self.world.hosts[node].sockets.remove(&key);
            self.record_socket_end(node, key, conn);
        }
        Ok(())
    }

    /// Closes a connection whose client has left silently.
    pub(super) fn time_out_socket(&mut self, node: Id, key: ClientPort, conn: Id) -> Result<(), Violation> {
        let socket = self.world.hosts[node].sockets.get(&key).copied().filter(|one| one.conn == conn);
        let Some(socket) = socket else { return Ok(()) };
        if self.world.conns[conn].client == ClientState::Open || socket.frozen {
            self.schedule_between(2_000_000, 6_000_000, Event::TimesOut { node, key, conn });
            return Ok(());
        }
        self.world.hosts[node].sockets.remove(&key);
        self.record_socket_end(node, key, conn);
        Ok(())
    }

    // -- draining nodes

    pub(super) fn drain_node(&mut self) -> Result<(), Violation> {
        let node = 1 + self.rng.draw_below(self.nodes.len() as u64 - 1) as Id;
        let epoch = self.nodes[node].epoch;
        if !self.nodes[node].is_running() {
            return Ok(());
        }
        if let Some(agent) = self.agent(node) {
            agent.ending = true;
        }
        self.log(|| format!("{node} drains"));
        self.report_to_switch(node, AgentReport::Ending);
        self.schedule_between(0, 500_000, Event::GiveUp { node, epoch });
        Ok(())
    }

    /// Asks to give up a node's idle connections: those between two requests, with all bytes acknowledged.
    pub(super) fn request_leave(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        let sockets = self.world.hosts[node].sockets.iter();
        let keys = sockets.filter(|(_, one)| self.world.conns[one.conn].is_idle()).map(|(key, _)| *key);
        let keys: Vec<ClientPort> = keys.collect();
        let Some(agent) = self.agent(node) else { return Ok(()) };
        let asked: Vec<ClientPort> = keys.into_iter().filter(|key| agent.leaving.insert(*key)).collect();
        asked.into_iter().for_each(|key| self.report_to_switch(node, AgentReport::Leave(key)));
        if self.faults_enabled {
            self.schedule_between(500_000, 2_000_000, Event::GiveUp { node, epoch });
        }
        Ok(())
    }

    pub(super) fn handle_leave_reply(
        &mut self,
        node: Id,
        key: ClientPort,
        say: TransferMessage,
    ) -> Result<(), Violation> {
        let leaving = self.agent(node).is_some_and(|agent| agent.leaving.contains(&key));
        let idle = |socket: &Socket| socket.frozen || self.world.conns[socket.conn].is_idle();
        let busy = self.world.hosts[node].sockets.get(&key).is_some_and(|socket| !idle(socket));
        if say == TransferMessage::Give && busy {
            // A request has arrived in the meantime.
            if let Some(agent) = self.agent(node) {
                agent.leaving.remove(&key);
            }
            self.report_to_switch(node, AgentReport::Stay(key));
            return Ok(());
        }
        let socket = self.world.hosts[node].sockets.get_mut(&key).filter(|_| leaving);
        match (say, socket) {
            (TransferMessage::Give, Some(socket)) => {
                socket.frozen = true;
                let conn = socket.conn;
                self.report_to_switch(node, AgentReport::GivenUp(key, conn));
            }
            (TransferMessage::Give, None) => self.report_to_switch(node, AgentReport::Stay(key)),
            (TransferMessage::Keep, socket) => {
                if let Some(socket) = socket {
                    socket.frozen = false;
                    let conn = socket.conn;
                    self.check_single_host(conn)?;
                }
                if let Some(agent) = self.agent(node) {
                    agent.leaving.remove(&key);
                }
            }
            (TransferMessage::Taken, socket) => {
                // The socket vanishes without notice to the client and the switch.
                if socket.is_some_and(|socket| socket.frozen) {
                    self.world.hosts[node].sockets.remove(&key);
                }
                if let Some(agent) = self.agent(node) {
                    agent.leaving.remove(&key);
                }
            }
        }
        Ok(())
    }
}
