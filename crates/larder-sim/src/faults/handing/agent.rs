//! The service node, as a small model of `larder_handoff::agent` with the same order of actions.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::super::protocol::Broken;
use super::channel::{Message, Side};
use super::clients::{Conn, Here};
use super::hosts::Key;
use super::{Event, Handing};
use larder_core::peers::handing::FromPeer;
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

impl Ground<'_, Handing> {
    /// Accepts the session of an initial node: welcomes it and schedules the full list.
    pub(super) fn welcome(&mut self, session: Id) -> Result<(), Violation> {
        let (node, front) = self.ends_of(session);
        let epoch = self.nodes[node].epoch;
        // An older session of the same node ends here.
        if let Some(older) = self.nodes[node].machine.agent.links.insert(front, session)
            && !self.is_broken(Broken::HearsTheOld)
        {
            self.nodes[node].machine.agent.forget(front);
            self.close(older, Side::Service)?;
        }
        self.nodes[node].machine.agent.links.insert(front, session);
        self.push(session, Side::Initial, Message::Welcome);
        if !self.is_broken(Broken::NeverNames) {
            self.later(0, 20_000, Event::List { node, epoch, session });
        }
        if self.nodes[node].machine.agent.ending {
            self.tell_ending(node, front);
        }
        Ok(())
    }

    pub(super) fn disconnected(&mut self, node: Id, front: Id, session: Id) {
        let agent = &mut self.nodes[node].machine.agent;
        if agent.links.get(&front) == Some(&session) {
            agent.links.remove(&front);
            agent.forget(front);
            agent.unanswered.remove(&front);
        }
    }

    /// Returns the agent's node and the initial node of a session.
    fn ends_of(&self, session: Id) -> (Id, Id) {
        let session = &self.own.sessions[session];
        (session.end(Side::Service).node, session.end(Side::Initial).node)
    }

    fn say_to(&mut self, node: Id, front: Id, said: FromPeer<Key>) {
        if let Some(session) = self.nodes[node].machine.agent.links.get(&front).copied() {
            self.push(session, Side::Initial, Message::Said(said));
        }
    }

    // -- lists

    pub(super) fn list(&mut self, node: Id, session: Id) -> Result<(), Violation> {
        let (_, front) = self.ends_of(session);
        let epoch = self.nodes[node].epoch;
        let sockets = self.own.hosts[node].sockets.iter().filter(|(key, _)| key.initial == front);
        let connections = sockets.map(|(key, conn)| (*key, Conn::number(*conn))).collect();
        self.later(0, 20_000, Event::Listed { node, epoch, session, connections });
        Ok(())
    }

    pub(super) fn listed(
        &mut self,
        node: Id,
        session: Id,
        connections: &[(Key, u32)],
    ) -> Result<(), Violation> {
        let (_, front) = self.ends_of(session);
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
            self.say_to(node, front, FromPeer::Has { connections: piece.to_vec(), last });
            if last {
                return Ok(());
            }
        }
    }

    // -- connections handed off to this node

    pub(super) fn handoff(&mut self, session: Id, id: u64, conn: Id) -> Result<(), Violation> {
        let (node, front) = self.ends_of(session);
        if !self.listens(session) {
            return Ok(());
        }
        let key = self.own.conns[conn].key;
        let host = &self.own.hosts[node];
        let full = host.sockets.len() as u64 >= self.own.places;
        // A socket here has the same addresses, or the kernel rejects the connection for another reason.
        let refused = full || host.sockets.contains_key(&key) || self.chance.permille(10);
        if refused {
            let why = if full { "full" } else { "the kernel refuses" }.to_owned();
            self.say_to(node, front, FromPeer::Refused { id, full, why });
            return Ok(());
        }
        self.own.hosts[node].sockets.insert(key, conn);
        self.say(|| format!("connection {conn} is restored at {node}"));
        self.one_host(conn)?;
        let epoch = self.nodes[node].epoch;
        self.nodes[node].machine.agent.restored.entry(front).or_default().push(id);
        self.later(0, 5_000, Event::Restored { node, epoch });
        self.later(1_000, 2_000_000, Event::Sends { at: node, key, conn, tries: 0 });
        Ok(())
    }

    /// Returns an error if two hosts serve a connection.
    pub(super) fn one_host(&self, conn: Id) -> Result<(), Violation> {
        let one = &self.own.conns[conn];
        let nodes = 0..self.nodes.len();
        let at: Vec<Id> =
            nodes.filter(|node| self.own.hosts[*node].sockets.get(&one.key) == Some(&conn)).collect();
        let here = usize::from(one.here == Some(Here::Live));
        if at.len() + here <= 1 {
            return Ok(());
        }
        Err(self
            .violation(format!("connection {conn} of {} is served twice: at {at:?} too", one.key.initial)))
    }

    /// Records the end of a connection at a node, so that its agent reports it.
    pub(super) fn has_ended(&mut self, node: Id, key: Key, conn: Id) {
        let ended = (key, Conn::number(conn));
        let known = !self.is_broken(Broken::ForgetsEnds) && self.nodes[node].up;
        let agent = &mut self.nodes[node].machine.agent;
        if known && agent.links.contains_key(&key.initial) {
            agent.closed.entry(key.initial).or_default().push(ended);
        }
    }

    fn flush_restored(&mut self, node: Id, front: Id) {
        let ids = self.nodes[node].machine.agent.restored.remove(&front);
        if let Some(ids) = ids {
            self.say_to(node, front, FromPeer::Restored(ids));
        }
    }

    pub(super) fn flush_restored_to_all(&mut self, node: Id) -> Result<(), Violation> {
        let fronts: Vec<Id> = self.nodes[node].machine.agent.restored.keys().copied().collect();
        fronts.into_iter().for_each(|front| self.flush_restored(node, front));
        Ok(())
    }

    pub(super) fn flush(&mut self, node: Id) -> Result<(), Violation> {
        let epoch = self.nodes[node].epoch;
        for (front, closed) in core::mem::take(&mut self.nodes[node].machine.agent.closed) {
            // A connection that has already ended was restored before.
            self.flush_restored(node, front);
            self.say_to(node, front, FromPeer::Closed(closed));
        }
        self.later(100_000, 100_000, Event::Flush { node, epoch });
        Ok(())
    }

    // -- the node's end

    /// Makes the node refuse new connections, and announces its end until this is acknowledged.
    pub(super) fn farewell(&mut self, node: Id) {
        self.nodes[node].machine.agent.ending = true;
        let fronts: Vec<Id> = self.nodes[node].machine.agent.links.keys().copied().collect();
        fronts.into_iter().for_each(|front| self.tell_ending(node, front));
    }

    fn tell_ending(&mut self, node: Id, front: Id) {
        self.nodes[node].machine.agent.unanswered.insert(front);
        self.say_to(node, front, FromPeer::Ending);
    }
}

impl Agent {
    /// Removes the pending reports to an initial node.
    fn forget(&mut self, front: Id) {
        self.restored.remove(&front);
        self.closed.remove(&front);
    }
}
