//! The service node, as a small model of `larder_handoff::agent` with the same order of actions.

use super::super::outcome::Violation;
use super::super::protocol::BrokenRule;
use super::super::simulation::{Id, Simulation};
use super::channel::{ChannelSide, PeerMessage};
use super::clients::{ClientConnection, LocalSocket};
use super::hosts::Key;
use super::{Event, PeerHandoffWorld};
use larder_core::peers::handoff::PeerEvent;
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of connections in one part of a list.
const PIECE_MAX: usize = 3;

/// The agent of a node's process.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// The session that the agent reads, by initial node.
    pub(super) links: BTreeMap<Id, Id>,
    /// The numbers of restored connections that have not been reported yet, by initial node.
    restored: BTreeMap<Id, Vec<u64>>,
    closed: BTreeMap<Id, Vec<(Key, u32)>>,
    pub(super) ending: bool,
    /// The initial nodes that have not acknowledged the node's end.
    pub(super) unanswered: BTreeSet<Id>,
}

impl Simulation<'_, PeerHandoffWorld> {
    /// Accepts the session of an initial node: welcomes it and schedules the full list.
    pub(super) fn accept_session(&mut self, session: Id) -> Result<(), Violation> {
        let (node, front) = self.session_nodes(session);
        let epoch = self.nodes[node].epoch;
        // An older session of the same node ends here.
        if let Some(older) = self.nodes[node].machine.agent.links.insert(front, session)
            && !self.is_broken(BrokenRule::HearsTheOld)
        {
            self.nodes[node].machine.agent.forget(front);
            self.close_side(older, ChannelSide::Service)?;
        }
        self.nodes[node].machine.agent.links.insert(front, session);
        self.push(session, ChannelSide::Initial, PeerMessage::Welcome);
        if !self.is_broken(BrokenRule::NeverNames) {
            self.schedule_between(0, 20_000, Event::List { node, epoch, session });
        }
        if self.nodes[node].machine.agent.ending {
            self.send_ending(node, front);
        }
        Ok(())
    }

    pub(super) fn drop_session(&mut self, node: Id, front: Id, session: Id) {
        let agent = &mut self.nodes[node].machine.agent;
        if agent.links.get(&front) == Some(&session) {
            agent.links.remove(&front);
            agent.forget(front);
            agent.unanswered.remove(&front);
        }
    }

    /// Returns the agent's node and the initial node of a session.
    fn session_nodes(&self, session: Id) -> (Id, Id) {
        let session = &self.world.sessions[session];
        (session.end(ChannelSide::Service).node, session.end(ChannelSide::Initial).node)
    }

    fn report_to(&mut self, node: Id, front: Id, said: PeerEvent<Key>) {
        if let Some(session) = self.nodes[node].machine.agent.links.get(&front).copied() {
            self.push(session, ChannelSide::Initial, PeerMessage::Said(said));
        }
    }

    // -- lists

    pub(super) fn start_list(&mut self, node: Id, session: Id) -> Result<(), Violation> {
        let (_, front) = self.session_nodes(session);
        let epoch = self.nodes[node].epoch;
        let sockets = self.world.hosts[node].sockets.iter().filter(|(key, _)| key.initial == front);
        let connections = sockets.map(|(key, conn)| (*key, ClientConnection::number(*conn))).collect();
        self.schedule_between(0, 20_000, Event::Listed { node, epoch, session, connections });
        Ok(())
    }

    pub(super) fn send_list(
        &mut self,
        node: Id,
        session: Id,
        connections: &[(Key, u32)],
    ) -> Result<(), Violation> {
        let (_, front) = self.session_nodes(session);
        if self.nodes[node].machine.agent.links.get(&front) != Some(&session) {
            return Ok(());
        }
        // A restored connection that is not in the list has ended.
        self.flush_restored(node, front);
        let mut rest = connections;
        loop {
            let (piece, later) = rest.split_at(rest.len().min(PIECE_MAX));
            rest = later;
            let last = rest.is_empty();
            self.report_to(node, front, PeerEvent::Inventory { connections: piece.to_vec(), last });
            if last {
                return Ok(());
            }
        }
    }

    // -- connections handed off to this node

    pub(super) fn accept_handoff(&mut self, session: Id, id: u64, conn: Id) -> Result<(), Violation> {
        let (node, front) = self.session_nodes(session);
        if !self.is_read(session) {
            return Ok(());
        }
        let key = self.world.conns[conn].key;
        let host = &self.world.hosts[node];
        let full = host.sockets.len() as u64 >= self.world.places;
        // A socket here has the same addresses, or the kernel rejects the connection for another reason.
        let refused = full || host.sockets.contains_key(&key) || self.rng.draw_permille(10);
        if refused {
            let why = if full { "full" } else { "rejected by the kernel" }.to_owned();
            self.report_to(node, front, PeerEvent::Refused { id, full, reason: why });
            return Ok(());
        }
        self.world.hosts[node].sockets.insert(key, conn);
        self.log(|| format!("connection {conn} is restored at {node}"));
        self.check_single_host(conn)?;
        let epoch = self.nodes[node].epoch;
        self.nodes[node].machine.agent.restored.entry(front).or_default().push(id);
        self.schedule_between(0, 5_000, Event::Restored { node, epoch });
        self.schedule_between(1_000, 2_000_000, Event::Sends { at: node, key, conn, tries: 0 });
        Ok(())
    }

    /// Returns an error if two hosts serve a connection.
    pub(super) fn check_single_host(&self, conn: Id) -> Result<(), Violation> {
        let one = &self.world.conns[conn];
        let nodes = 0..self.nodes.len();
        let at: Vec<Id> =
            nodes.filter(|node| self.world.hosts[*node].sockets.get(&one.key) == Some(&conn)).collect();
        let here = usize::from(one.here == Some(LocalSocket::Live));
        if at.len() + here <= 1 {
            return Ok(());
        }
        Err(self
            .violation(format!("connection {conn} of {} is served twice: also at {at:?}", one.key.initial)))
    }

    /// Records the end of a connection at a node, so that its agent reports it.
    pub(super) fn record_end(&mut self, node: Id, key: Key, conn: Id) {
        let ended = (key, ClientConnection::number(conn));
        let known = !self.is_broken(BrokenRule::ForgetsEnds) && self.nodes[node].up;
        let agent = &mut self.nodes[node].machine.agent;
        if known && agent.links.contains_key(&key.initial) {
            agent.closed.entry(key.initial).or_default().push(ended);
        }
    }

    fn flush_restored(&mut self, node: Id, front: Id) {
        let ids = self.nodes[node].machine.agent.restored.remove(&front);
        if let Some(ids) = ids {
            self.report_to(node, front, PeerEvent::Restored(ids));
        }
    }

    pub(super) fn flush_restored_to_all(&mut self, node: Id) -> Result<(), Violation> {
        let fronts: Vec<Id> = self.nodes[node].machine.agent.restored.keys().copied().collect();
        fronts.into_iter().for_each(|front| self.flush_restored(node, front));
        Ok(())
    }

    pub(super) fn report_ends(&mut self, node: Id) -> Result<(), Violation> {
        let epoch = self.nodes[node].epoch;
        for (front, closed) in core::mem::take(&mut self.nodes[node].machine.agent.closed) {
            // A connection that has already ended was restored before.
            self.flush_restored(node, front);
            self.report_to(node, front, PeerEvent::Closed(closed));
        }
        self.schedule_between(100_000, 100_000, Event::Flush { node, epoch });
        Ok(())
    }

    // -- the node's end

    /// Makes the node refuse new connections, and announces its end until this is acknowledged.
    pub(super) fn announce_ending(&mut self, node: Id) {
        self.nodes[node].machine.agent.ending = true;
        let fronts: Vec<Id> = self.nodes[node].machine.agent.links.keys().copied().collect();
        fronts.into_iter().for_each(|front| self.send_ending(node, front));
    }

    fn send_ending(&mut self, node: Id, front: Id) {
        self.nodes[node].machine.agent.unanswered.insert(front);
        self.report_to(node, front, PeerEvent::Ending);
    }
}

impl Agent {
    /// Removes the pending reports to an initial node.
    fn forget(&mut self, front: Id) {
        self.restored.remove(&front);
        self.closed.remove(&front);
    }
}
