//! Nodes: their sockets and their agents.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::super::protocol::Broken;
use super::channel::Message;
use super::clients::Client;
use super::plane::Sent;
use super::{Edge, Event, Key, Machine, Mode, SWITCH, id_of};
use larder_core::handoff::{Say, To};
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
    pub(super) sockets: BTreeMap<Key, Socket>,
}

impl Default for Host {
    fn default() -> Self {
        Self { up: true, sockets: BTreeMap::new() }
    }
}

/// The process of a node.
#[derive(Debug, Default)]
pub(in crate::faults) struct Agent {
    pub(super) session: Option<Id>,
    pub(super) closed: Vec<(Key, u32)>,
    /// Whether the node drains.
    ending: bool,
    /// The connections that the node has asked to give up.
    leaving: BTreeSet<Key>,
}

/// A report of a node to the switch.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Named(Vec<(Key, u32)>),
    Closed(Vec<(Key, u32)>),
    Restored(u64),
    Refused(u64),
    Leave(Key),
    GivenUp(Key, Id),
    Stay(Key),
    Ending,
}

impl Ground<'_, Edge> {
    // -- the agent

    pub(super) fn node_starts(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch;
        self.own.hosts[node].up = true;
        self.later(0, 100_000, Event::Flush { node, epoch });
    }

    pub(super) fn node_dies(&mut self, node: Id) {
        let silently = core::mem::replace(&mut self.own.host_dies, false);
        self.cut_sessions_of(node, silently);
        let sockets = core::mem::take(&mut self.own.hosts[node].sockets);
        self.own.hosts[node].up = !silently;
        for (key, socket) in sockets {
            // A frozen socket vanishes silently, and so do all sockets of a crashed host.
            if silently || socket.frozen || !self.passes(node, key, socket.conn) {
                self.own.conns[socket.conn].cut = true;
                self.survived.cut += 1;
            } else {
                self.hears_reset(socket.conn);
            }
        }
    }

    /// Returns whether an agent reads a session.
    pub(super) fn listens(&self, node: Id, session: Id) -> bool {
        let Machine::Node(agent) = &self.nodes[node].machine else { return false };
        agent.session == Some(session)
    }

    fn say_to_switch(&mut self, node: Id, said: Said) {
        if let Some(session) = self.agent(node).and_then(|agent| agent.session) {
            self.push(session, true, Message::Said(said));
        }
    }

    /// Accepts a session of the switch.
    pub(super) fn welcome(&mut self, node: Id, session: Id) -> Result<(), Violation> {
        let epoch = self.nodes[node].epoch;
        let Some(agent) = self.agent(node) else { return Ok(()) };
        let before = agent.session.replace(session);
        agent.closed.clear();
        let (ending, leaving) = (agent.ending, agent.leaving.clone());
        // An older session of the same switch ends, whichever began first.
        if let Some(before) = before {
            self.shut(before, false);
        }
        self.push(session, true, Message::Welcome);
        if !self.is_broken(Broken::NeverNames) {
            self.later(0, 20_000, Event::List { node, epoch, session });
        }
        if ending {
            self.say_to_switch(node, Said::Ending);
        }
        leaving.into_iter().for_each(|key| self.say_to_switch(node, Said::Leave(key)));
        Ok(())
    }

    pub(super) fn list(&mut self, node: Id, epoch: u64, session: Id) -> Result<(), Violation> {
        if self.is_broken(Broken::NeverNames) {
            return Ok(());
        }
        let keys = self.own.hosts[node].sockets.keys().copied().collect();
        self.later(0, 20_000, Event::Listed { node, epoch, session, keys });
        Ok(())
    }

    pub(super) fn listed(&mut self, node: Id, session: Id, mut keys: Vec<Key>) -> Result<(), Violation> {
        // Sockets that have ended since the kernel was read are left out. Later sockets are not in the list.
        keys.retain(|key| self.own.hosts[node].sockets.contains_key(key));
        if self.agent(node).is_some_and(|agent| agent.session == Some(session)) {
            let number =
                |key: Key| self.own.hosts[node].sockets.get(&key).map(|one| (key, one.conn as u32 + 1));
            let named = keys.into_iter().filter_map(number).collect();
            self.say_to_switch(node, Said::Named(named));
        }
        Ok(())
    }

    pub(super) fn flush(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        self.later(100_000, 100_000, Event::Flush { node, epoch });
        let ended = self.agent(node).map(|agent| core::mem::take(&mut agent.closed)).unwrap_or_default();
        if !ended.is_empty() {
            self.say_to_switch(node, Said::Closed(ended));
        }
        Ok(())
    }

    /// Restores a connection from its transferred state.
    pub(super) fn handed(&mut self, node: Id, id: u64, key: Key, conn: Id) -> Result<(), Violation> {
        let full = self.own.hosts[node].sockets.len() >= self.own.places;
        if full || self.chance.permille(30) {
            self.say_to_switch(node, Said::Refused(id));
            return Ok(());
        }
        let arrived = (1 << self.own.conns[conn].parts) - 1;
        self.begins(node, key, conn, arrived)?;
        self.say_to_switch(node, Said::Restored(id));
        Ok(())
    }

    // -- sockets

    /// Begins a socket. An older socket with the same addresses ends.
    fn begins(&mut self, node: Id, key: Key, conn: Id, arrived: u32) -> Result<(), Violation> {
        if let Some(old) = self.own.hosts[node].sockets.remove(&key) {
            // The kernel resets the older connection's client, if it is still there.
            self.hears_reset(old.conn);
            self.socket_ended(node, key, old.conn);
        }
        self.own.hosts[node].sockets.insert(key, Socket { conn, frozen: false, arrived });
        self.own.conns[conn].acked |= arrived;
        self.say(|| format!("connection {conn} is at {node}"));
        self.one_host(conn)?;
        self.later(2_000_000, 6_000_000, Event::TimesOut { node, key, conn });
        if arrived == (1 << self.own.conns[conn].parts) - 1 {
            self.later(1_000, 500_000, Event::Sends { node, key, conn, tries: 0 });
        }
        Ok(())
    }

    fn socket_ended(&mut self, node: Id, key: Key, conn: Id) {
        self.say(|| format!("connection {conn} ends at {node}"));
        if let Some(agent) = self.agent(node) {
            agent.closed.push((key, conn as u32 + 1));
            // A connection that has ended is no longer given up.
            if agent.leaving.remove(&key) {
                self.say_to_switch(node, Said::Stay(key));
            }
        }
    }

    /// Delivers a client's packet to a node.
    pub(super) fn comes_to_node(&mut self, node: Id, conn: Id, sent: Sent) -> Result<(), Violation> {
        let (key, parts) = (self.own.conns[conn].key, self.own.conns[conn].parts);
        if !self.own.hosts[node].up || !self.way(SWITCH, node) {
            return Ok(());
        }
        match (self.own.hosts[node].sockets.get(&key).copied(), sent) {
            (Some(socket), Sent::Reset) if socket.conn == conn && !socket.frozen => {
                self.own.hosts[node].sockets.remove(&key);
                self.socket_ended(node, key, conn);
            }
            (Some(socket), Sent::Head(part)) if socket.conn == conn => {
                let arrived = socket.arrived | 1 << part;
                let whole = (1 << parts) - 1;
                if let Some(socket) = self.own.hosts[node].sockets.get_mut(&key) {
                    socket.arrived = arrived;
                }
                self.own.conns[conn].acked |= arrived;
                if arrived == whole && socket.arrived != whole {
                    self.later(1_000, 500_000, Event::Sends { node, key, conn, tries: 0 });
                }
            }
            (Some(socket), Sent::Request) if socket.conn == conn => {
                self.later(1_000, 500_000, Event::Sends { node, key, conn, tries: 0 });
            }
            // The node accepts by cookie.
            (_, Sent::Head(0))
                if self.own.mode == Mode::Cookie
                    && self.nodes[node].up
                    && self.own.conns[conn].client == Client::Open
                    && !self.own.conns[conn].answered =>
            {
                self.begins(node, key, conn, 1)?;
            }
            // A packet without a socket is kept for a while for a socket that is to come.
            _ => {}
        }
        Ok(())
    }

    /// Returns whether a client's packets, or its host's answers, reach a socket of a node.
    pub(super) fn passes(&self, node: Id, key: Key, conn: Id) -> bool {
        let to =
            self.own.plane.entries.get(&key).filter(|entry| entry.conn == conn).map(|entry| entry.flow.to);
        self.own.hosts[node].up && self.way(SWITCH, node) && to == Some(To::Node(id_of(node)))
    }

    /// Sends the reply of a socket.
    pub(super) fn sends(&mut self, node: Id, key: Key, conn: Id, tries: u32) -> Result<(), Violation> {
        let Some(socket) = self.own.hosts[node].sockets.get(&key).copied().filter(|one| one.conn == conn)
        else {
            return Ok(());
        };
        let open = self.own.conns[conn].client == Client::Open;
        let passes = self.passes(node, key, conn) && !self.loses();
        if socket.frozen || !passes && (open || tries < TRIES_MAX) {
            self.later(100_000, 800_000, Event::Sends { node, key, conn, tries: tries + 1 });
            return Ok(());
        }
        if passes && open {
            let waits = self.own.conns[conn].asked.is_some();
            let stays = self.own.conns[conn].stays;
            if waits {
                self.replied(conn)?;
            }
            if stays {
                return Ok(());
            }
        }
        // Everything is sent; or the client's host answers with a reset; or TCP has given up.
        if self.own.hosts[node].sockets.get(&key).is_some_and(|one| one.conn == conn) {
            self.own.hosts[node].sockets.remove(&key);
            self.socket_ended(node, key, conn);
        }
        Ok(())
    }

    /// Closes a connection whose client has left silently.
    pub(super) fn times_out(&mut self, node: Id, key: Key, conn: Id) -> Result<(), Violation> {
        let socket = self.own.hosts[node].sockets.get(&key).copied().filter(|one| one.conn == conn);
        let Some(socket) = socket else { return Ok(()) };
        if self.own.conns[conn].client == Client::Open || socket.frozen {
            self.later(2_000_000, 6_000_000, Event::TimesOut { node, key, conn });
            return Ok(());
        }
        self.own.hosts[node].sockets.remove(&key);
        self.socket_ended(node, key, conn);
        Ok(())
    }

    // -- draining nodes

    pub(super) fn drain_some(&mut self) -> Result<(), Violation> {
        let node = 1 + self.chance.below(self.nodes.len() as u64 - 1) as Id;
        let epoch = self.nodes[node].epoch;
        if !self.nodes[node].runs() {
            return Ok(());
        }
        if let Some(agent) = self.agent(node) {
            agent.ending = true;
        }
        self.say(|| format!("{node} drains"));
        self.say_to_switch(node, Said::Ending);
        self.later(0, 500_000, Event::GiveUp { node, epoch });
        Ok(())
    }

    /// Asks to give up a node's idle connections: those between two requests, with all bytes acknowledged.
    pub(super) fn give_up_next(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        let sockets = self.own.hosts[node].sockets.iter();
        let keys = sockets.filter(|(_, one)| self.own.conns[one.conn].is_idle()).map(|(key, _)| *key);
        let keys: Vec<Key> = keys.collect();
        let Some(agent) = self.agent(node) else { return Ok(()) };
        let asked: Vec<Key> = keys.into_iter().filter(|key| agent.leaving.insert(*key)).collect();
        asked.into_iter().for_each(|key| self.say_to_switch(node, Said::Leave(key)));
        if self.trouble {
            self.later(500_000, 2_000_000, Event::GiveUp { node, epoch });
        }
        Ok(())
    }

    pub(super) fn told_to_leave(&mut self, node: Id, key: Key, say: Say) -> Result<(), Violation> {
        let leaving = self.agent(node).is_some_and(|agent| agent.leaving.contains(&key));
        let idle = |socket: &Socket| socket.frozen || self.own.conns[socket.conn].is_idle();
        let busy = self.own.hosts[node].sockets.get(&key).is_some_and(|socket| !idle(socket));
        if say == Say::Give && busy {
            // A request has arrived in the meantime.
            if let Some(agent) = self.agent(node) {
                agent.leaving.remove(&key);
            }
            self.say_to_switch(node, Said::Stay(key));
            return Ok(());
        }
        let socket = self.own.hosts[node].sockets.get_mut(&key).filter(|_| leaving);
        match (say, socket) {
            (Say::Give, Some(socket)) => {
                socket.frozen = true;
                let conn = socket.conn;
                self.say_to_switch(node, Said::GivenUp(key, conn));
            }
            (Say::Give, None) => self.say_to_switch(node, Said::Stay(key)),
            (Say::Keep, socket) => {
                if let Some(socket) = socket {
                    socket.frozen = false;
                    let conn = socket.conn;
                    self.one_host(conn)?;
                }
                if let Some(agent) = self.agent(node) {
                    agent.leaving.remove(&key);
                }
            }
            (Say::Taken, socket) => {
                // The socket vanishes without notice to the client and the switch.
                if socket.is_some_and(|socket| socket.frozen) {
                    self.own.hosts[node].sockets.remove(&key);
                }
                if let Some(agent) = self.agent(node) {
                    agent.leaving.remove(&key);
                }
            }
        }
        Ok(())
    }
}
