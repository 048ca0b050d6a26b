//! The sockets of connections that were handed off, in the kernels of nodes.

use super::{AgentEvent, AgentWorld};
use crate::faults::outcome::Violation;
use crate::faults::simulation::{Id, Simulation};
use std::collections::BTreeMap;

/// The retransmissions of a socket whose peer is gone, before TCP gives it up.
const TRIES_MAX: u32 = 8;

/// A socket of a node's kernel.
#[derive(Clone, Copy, Debug)]
pub(in crate::faults) struct Socket {
    pub(in crate::faults) conn: Id,
    /// Whether the socket's state has been given up, or is about to be.
    pub(in crate::faults) frozen: bool,
    /// The packets of the first request that have arrived, as a bit set; `None` if the request is complete.
    pub(in crate::faults) arrived: Option<u32>,
}

/// The kernel of a node.
#[derive(Debug)]
pub(in crate::faults) struct Host<K> {
    pub(in crate::faults) up: bool,
    pub(in crate::faults) sockets: BTreeMap<K, Socket>,
}

impl<K> Default for Host<K> {
    fn default() -> Self {
        Self { up: true, sockets: BTreeMap::new() }
    }
}

/// Returns the sequence number that identifies a connection.
pub(in crate::faults) const fn number_of(conn: Id) -> u32 {
    conn as u32 + 1
}

impl<W: AgentWorld> Simulation<'_, W> {
    /// Returns the socket of a connection at a node.
    pub(in crate::faults) fn socket(&self, node: Id, conn: Id) -> Option<&Socket> {
        let sockets = &self.world.taking().hosts[node].sockets;
        sockets.get(&self.world.connection(conn).key).filter(|socket| socket.conn == conn)
    }

    /// Begins a socket. `arrived`: see [`Socket::arrived`].
    pub(in crate::faults) fn begin_socket(
        &mut self,
        node: Id,
        key: W::Key,
        conn: Id,
        arrived: Option<u32>,
    ) -> Result<(), Violation> {
        let socket = Socket { conn, frozen: false, arrived };
        self.world.taking_mut().hosts[node].sockets.insert(key, socket);
        self.log(|| format!("connection {conn} is at {node}"));
        self.check_single_host(conn)?;
        W::serve_at(self, node, key, conn, arrived);
        Ok(())
    }

    /// Returns an error if two hosts serve a connection. Called when a host begins to serve it.
    pub(in crate::faults) fn check_single_host(&self, conn: Id) -> Result<(), Violation> {
        let serves = |node: &Id| self.socket(*node, conn).is_some_and(|socket| !socket.frozen);
        let at: Vec<Id> = (0..self.nodes.len()).filter(serves).collect();
        let giving = usize::from(self.world.connection(conn).stays);
        if at.len() + giving <= 1 || !self.world.has_single_host(conn) {
            return Ok(());
        }
        Err(self.violation(format!("connection {conn} is served twice: also at {at:?}")))
    }

    /// Sends the reply of a socket, which ends when the client has everything.
    pub(super) fn send_reply(
        &mut self,
        node: Id,
        key: W::Key,
        conn: Id,
        tries: u32,
    ) -> Result<(), Violation> {
        let Some(&socket) = self.socket(node, conn) else { return Ok(()) };
        let passes = W::is_reached(self, node, key, conn);
        // TCP retransmits, and gives up after a while.
        let open = self.world.connection(conn).open;
        let gives_up = tries >= TRIES_MAX && !open && self.world.is_beyond_reach(conn);
        if socket.frozen || !passes && !gives_up {
            let tries = tries + 1;
            self.schedule_between(100_000, 800_000, AgentEvent::Sends { node, key, conn, tries });
            return Ok(());
        }
        // The client has everything, or its host answers with a reset, unless the connection continues.
        if (!passes || !W::deliver_reply(self, node, key, conn)?) && self.socket(node, conn).is_some() {
            self.end_socket(node, key);
        }
        Ok(())
    }
}
