//! The part of the content nodes that only this world has: acceptance by cookie, and connections that a
//! draining node gives up.

use super::super::agents::{
    AgentEvent, AgentReport, AgentWorld, ChannelEvent, Connection, Socket, TakingNodes,
};
use super::super::outcome::Violation;
use super::super::simulation::{Id, Simulation};
use super::clients::{ClientConnection, ClientState, LocalSocket};
use super::plane::ClientPacket;
use super::{ClientPort, EdgeWorld, Event, HandoffMode, SWITCH, id_of};
use larder_core::handoff::{FlowTarget, TransferMessage};

impl AgentWorld for EdgeWorld {
    type Key = ClientPort;

    const MEMBERS_ONLY: bool = false;

    fn taking(&self) -> &TakingNodes<ClientPort> {
        &self.taking
    }

    fn taking_mut(&mut self) -> &mut TakingNodes<ClientPort> {
        &mut self.taking
    }

    fn giving_node(_: ClientPort) -> Id {
        SWITCH
    }

    fn connection(&self, conn: Id) -> Connection<ClientPort> {
        let ClientConnection { key, client, here, .. } = self.conns[conn];
        Connection { key, open: client == ClientState::Open, stays: here == Some(LocalSocket::Live) }
    }

    /// A client that has left does not notice.
    fn has_single_host(&self, conn: Id) -> bool {
        self.conns[conn].client == ClientState::Open
    }

    fn handle_channel_event(
        sim: &mut Simulation<'_, Self>,
        _: Id,
        peer: Id,
        event: ChannelEvent<ClientPort>,
    ) -> Result<(), Violation> {
        sim.handle_node_event(peer, event)
    }

    fn handle_leave_reply(
        sim: &mut Simulation<'_, Self>,
        node: Id,
        key: ClientPort,
        say: TransferMessage,
    ) -> Result<(), Violation> {
        let leaving = &mut sim.world.taking.agents[node].leaving;
        let leaves = leaving.contains(&key);
        if say != TransferMessage::Give {
            leaving.remove(&key);
        }
        let sockets = &mut sim.world.taking.hosts[node].sockets;
        match (say, sockets.get_mut(&key).filter(|_| leaves)) {
            (TransferMessage::Give, Some(socket))
                if socket.frozen || sim.world.conns[socket.conn].is_idle() =>
            {
                socket.frozen = true;
                let conn = socket.conn;
                sim.report_to_switch(node, AgentReport::GivenUp(key, conn));
            }
            // The connection has ended, or a request has arrived in the meantime.
            (TransferMessage::Give, _) => {
                sim.world.taking.agents[node].leaving.remove(&key);
                sim.report_to_switch(node, AgentReport::Stay(key));
            }
            (TransferMessage::Keep, Some(socket)) => {
                socket.frozen = false;
                let conn = socket.conn;
                sim.check_single_host(conn)?;
            }
            // The socket vanishes without notice to the client and the switch.
            (TransferMessage::Taken, Some(Socket { frozen: true, .. })) => drop(sockets.remove(&key)),
            (TransferMessage::Keep | TransferMessage::Taken, _) => {}
        }
        Ok(())
    }

    fn serve_at(sim: &mut Simulation<'_, Self>, node: Id, key: ClientPort, conn: Id, arrived: Option<u32>) {
        let one = &mut sim.world.conns[conn];
        one.acked |= arrived.unwrap_or((1 << one.parts) - 1);
        sim.schedule_between(2_000_000, 6_000_000, Event::TimesOut { node, key, conn });
        if arrived.is_none() {
            sim.schedule_reply(node, key, conn);
        }
    }

    fn is_reached(sim: &mut Simulation<'_, Self>, node: Id, key: ClientPort, conn: Id) -> bool {
        sim.is_routed_to(node, key, conn) && !sim.is_packet_lost()
    }

    fn deliver_reply(
        sim: &mut Simulation<'_, Self>,
        _: Id,
        _: ClientPort,
        conn: Id,
    ) -> Result<bool, Violation> {
        let one = &sim.world.conns[conn];
        let (open, waits, stays) = (one.client == ClientState::Open, one.asked.is_some(), one.stays);
        if open && waits {
            sim.receive_reply(conn)?;
        }
        Ok(open && stays)
    }
}

impl Simulation<'_, EdgeWorld> {
    pub(super) fn end_node(&mut self, node: Id) {
        let silently = core::mem::replace(&mut self.world.host_dies, false);
        self.end_agent(node, silently);
        let host = &mut self.world.taking.hosts[node];
        host.up = !silently;
        for (key, socket) in core::mem::take(&mut host.sockets) {
            // A frozen socket vanishes silently, and so do all sockets of a crashed host.
            if silently || socket.frozen || !self.is_routed_to(node, key, socket.conn) {
                self.world.conns[socket.conn].cut = true;
                self.stats.cut += 1;
            } else {
                self.reset_client(socket.conn);
            }
        }
    }

    fn report_to_switch(&mut self, node: Id, report: AgentReport<ClientPort>) {
        self.report_to(node, SWITCH, report);
    }

    // -- sockets

    /// Delivers a client's packet to a node.
    pub(super) fn deliver_to_node(
        &mut self,
        node: Id,
        conn: Id,
        sent: ClientPacket,
    ) -> Result<(), Violation> {
        let (key, parts) = (self.world.conns[conn].key, self.world.conns[conn].parts);
        if !self.world.taking.hosts[node].up || !self.has_path(SWITCH, node) {
            return Ok(());
        }
        match (self.socket(node, conn).copied(), sent) {
            (Some(socket), ClientPacket::Reset) if !socket.frozen => self.end_socket(node, key),
            (Some(Socket { arrived: Some(arrived), .. }), ClientPacket::Head(part)) => {
                let arrived = arrived | 1 << part;
                let rest = (arrived != (1 << parts) - 1).then_some(arrived);
                if let Some(socket) = self.world.taking.hosts[node].sockets.get_mut(&key) {
                    socket.arrived = rest;
                }
                self.world.conns[conn].acked |= arrived;
                if rest.is_none() {
                    self.schedule_reply(node, key, conn);
                }
            }
            (Some(_), ClientPacket::Request) => self.schedule_reply(node, key, conn),
            // The node accepts by cookie. An older socket with the same addresses ends.
            (None, ClientPacket::Head(0))
                if self.world.mode == HandoffMode::Cookie
                    && self.nodes[node].up
                    && self.world.conns[conn].client == ClientState::Open
                    && !self.world.conns[conn].answered =>
            {
                if let Some(old) = self.world.taking.hosts[node].sockets.get(&key).copied() {
                    // The kernel resets the older connection's client, if it is still there.
                    self.reset_client(old.conn);
                    self.end_socket(node, key);
                }
                self.begin_socket(node, key, conn, (parts > 1).then_some(1))?;
            }
            // A packet without a socket is kept for a while for a socket that is to come.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn schedule_reply(&mut self, node: Id, key: ClientPort, conn: Id) {
        self.schedule_between(1_000, 500_000, AgentEvent::Sends { node, key, conn, tries: 0 });
    }

    /// Returns whether a client's packets, or its host's answers, reach a socket of a node.
    pub(super) fn is_routed_to(&self, node: Id, key: ClientPort, conn: Id) -> bool {
        let to =
            self.world.plane.entries.get(&key).filter(|entry| entry.conn == conn).map(|entry| entry.flow.to);
        self.world.taking.hosts[node].up
            && self.has_path(SWITCH, node)
            && to == Some(FlowTarget::Node(id_of(node)))
    }

    /// Closes a connection whose client has left silently.
    pub(super) fn time_out_socket(&mut self, node: Id, key: ClientPort, conn: Id) -> Result<(), Violation> {
        let Some(socket) = self.socket(node, conn) else { return Ok(()) };
        if self.world.conns[conn].client == ClientState::Open || socket.frozen {
            self.schedule_between(2_000_000, 6_000_000, Event::TimesOut { node, key, conn });
        } else {
            self.end_socket(node, key);
        }
        Ok(())
    }

    // -- draining nodes

    pub(super) fn drain_node(&mut self) -> Result<(), Violation> {
        let node = 1 + self.rng.draw_below(self.nodes.len() as u64 - 1) as Id;
        let epoch = self.nodes[node].epoch;
        if !self.nodes[node].is_running() {
            return Ok(());
        }
        self.log(|| format!("{node} drains"));
        self.announce_ending(node);
        self.schedule_between(0, 500_000, Event::GiveUp { node, epoch });
        Ok(())
    }

    /// Asks to give up a node's idle connections: those between two requests, with all bytes acknowledged.
    pub(super) fn request_leave(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        let sockets = self.world.taking.hosts[node].sockets.iter();
        let keys = sockets.filter(|(_, one)| self.world.conns[one.conn].is_idle()).map(|(key, _)| *key);
        let keys: Vec<ClientPort> = keys.collect();
        for key in keys {
            if self.world.taking.agents[node].leaving.insert(key) {
                self.report_to_switch(node, AgentReport::Leave(key));
            }
        }
        if self.faults_enabled {
            self.schedule_between(500_000, 2_000_000, Event::GiveUp { node, epoch });
        }
        Ok(())
    }
}
