//! The agents of nodes that take connections.

use super::channel::{Message, SessionSide};
use super::{AgentEvent, AgentWorld, Socket, number_of};
use crate::faults::outcome::Violation;
use crate::faults::protocol::BrokenRule;
use crate::faults::simulation::{Id, Simulation};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of connections in one part of a list.
const PIECE_MAX: usize = 3;

/// The agent of a node's process.
#[derive(Debug)]
pub(in crate::faults) struct Agent<K> {
    /// The session that the agent reads, by giving node.
    links: BTreeMap<Id, Id>,
    /// The numbers of restored connections that have not been reported yet, by giving node.
    restored: BTreeMap<Id, Vec<u64>>,
    closed: BTreeMap<Id, Vec<(K, u32)>>,
    /// Whether the node drains.
    pub(in crate::faults) ending: bool,
    /// The giving nodes that have not acknowledged the node's end.
    pub(in crate::faults) unanswered: BTreeSet<Id>,
    /// The connections that the node has asked to give up.
    pub(in crate::faults) leaving: BTreeSet<K>,
}

impl<K> Default for Agent<K> {
    fn default() -> Self {
        Self {
            links: BTreeMap::new(),
            restored: BTreeMap::new(),
            closed: BTreeMap::new(),
            ending: false,
            unanswered: BTreeSet::new(),
            leaving: BTreeSet::new(),
        }
    }
}

impl<K> Agent<K> {
    /// Removes the pending reports to a giving node.
    fn forget(&mut self, giving: Id) {
        self.restored.remove(&giving);
        self.closed.remove(&giving);
    }
}

/// A report of an agent to a giving node.
#[derive(Clone, Debug)]
pub(in crate::faults) enum AgentReport<K> {
    Restored(Vec<u64>),
    Refused { id: u64, full: bool },
    Closed(Vec<(K, u32)>),
    Listed { connections: Vec<(K, u32)>, last: bool },
    Ending,
    Leave(K),
    GivenUp(K, Id),
    Stay(K),
}

impl<W: AgentWorld> Simulation<'_, W> {
    /// Starts the agent of a process.
    pub(in crate::faults) fn start_agent(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch;
        self.world.taking_mut().hosts[node].up = true;
        self.schedule_between(0, 100_000, AgentEvent::Flush { node, epoch });
    }

    fn agent(&mut self, node: Id) -> &mut Agent<W::Key> {
        &mut self.world.taking_mut().agents[node]
    }

    /// Accepts the session of a giving node: welcomes it and schedules the full list.
    pub(super) fn accept_session(&mut self, session: Id) {
        let (node, giving) = self.session_nodes(session);
        // An older session of the same node ends here.
        if let Some(older) = self.agent(node).links.insert(giving, session)
            && !self.is_broken(BrokenRule::HearsTheOld)
        {
            self.agent(node).forget(giving);
            self.close_side(older, SessionSide::Agent);
        }
        self.push(session, SessionSide::Giving, Message::Welcome);
        self.schedule_list(session);
        if self.agent(node).ending {
            self.send_ending(node, giving);
        }
        for key in self.agent(node).leaving.clone() {
            self.report_to(node, giving, AgentReport::Leave(key));
        }
    }

    pub(super) fn drop_session(&mut self, node: Id, giving: Id, session: Id) {
        let agent = self.agent(node);
        if agent.links.get(&giving) == Some(&session) {
            agent.links.remove(&giving);
            agent.forget(giving);
            agent.unanswered.remove(&giving);
        }
    }

    /// Returns whether an agent still reads a session.
    pub(super) fn is_read(&self, session: Id) -> bool {
        let (node, giving) = self.session_nodes(session);
        let link = self.world.taking().agents[node].links.get(&giving);
        link == Some(&session) || self.is_broken(BrokenRule::HearsTheOld)
    }

    pub(in crate::faults) fn report_to(&mut self, node: Id, giving: Id, report: AgentReport<W::Key>) {
        if let Some(session) = self.agent(node).links.get(&giving).copied() {
            self.push(session, SessionSide::Giving, Message::Said(report));
        }
    }

    // -- lists

    pub(super) fn schedule_list(&mut self, session: Id) {
        let (node, _) = self.session_nodes(session);
        let epoch = self.nodes[node].epoch;
        if !self.is_broken(BrokenRule::NeverNames) {
            self.schedule_between(0, 20_000, AgentEvent::List { node, epoch, session });
        }
    }

    /// Reads the sockets of a giving node's connections from the kernel.
    pub(super) fn start_list(&mut self, node: Id, epoch: u64, session: Id) {
        let (_, giving) = self.session_nodes(session);
        let sockets = self.world.taking().hosts[node].sockets.iter();
        let of_giving = sockets.filter(|(key, _)| W::giving_node(**key) == giving);
        let connections = of_giving.map(|(key, socket)| (*key, number_of(socket.conn))).collect();
        self.schedule_between(0, 20_000, AgentEvent::Listed { node, epoch, session, connections });
    }

    pub(super) fn send_list(&mut self, node: Id, session: Id, connections: &[(W::Key, u32)]) {
        let (_, giving) = self.session_nodes(session);
        if self.agent(node).links.get(&giving) != Some(&session) {
            return;
        }
        // A restored connection that is not in the list has ended.
        self.flush_restored(node, giving);
        let mut rest = connections;
        loop {
            let (piece, later) = rest.split_at(rest.len().min(PIECE_MAX));
            rest = later;
            let last = rest.is_empty();
            self.report_to(node, giving, AgentReport::Listed { connections: piece.to_vec(), last });
            if last {
                return;
            }
        }
    }

    // -- connections handed off to this node

    /// Restores a connection from its transferred state.
    pub(super) fn accept_handoff(&mut self, session: Id, id: u64, conn: Id) -> Result<(), Violation> {
        let ((node, giving), key) = (self.session_nodes(session), self.world.connection(conn).key);
        let taking = self.world.taking();
        let sockets = &taking.hosts[node].sockets;
        let (full, taken) = (sockets.len() >= taking.places, sockets.contains_key(&key));
        // A socket here has the same addresses, or the kernel rejects the connection for another reason.
        if full || taken || self.rng.draw_permille(15) {
            self.report_to(node, giving, AgentReport::Refused { id, full });
            return Ok(());
        }
        self.begin_socket(node, key, conn, None)?;
        let epoch = self.nodes[node].epoch;
        self.agent(node).restored.entry(giving).or_default().push(id);
        self.schedule_between(0, 5_000, AgentEvent::Restored { node, epoch });
        Ok(())
    }

    /// Ends a socket, so that its agent reports it.
    pub(in crate::faults) fn end_socket(&mut self, node: Id, key: W::Key) {
        let Some(Socket { conn, .. }) = self.world.taking_mut().hosts[node].sockets.remove(&key) else {
            return;
        };
        self.log(|| format!("connection {conn} ends at {node}"));
        let (giving, forgets) = (W::giving_node(key), self.is_broken(BrokenRule::ForgetsEnds));
        let agent = self.agent(node);
        if !forgets && agent.links.contains_key(&giving) {
            agent.closed.entry(giving).or_default().push((key, number_of(conn)));
        }
        // A connection that has ended is no longer given up.
        if agent.leaving.remove(&key) {
            self.report_to(node, giving, AgentReport::Stay(key));
        }
    }

    fn flush_restored(&mut self, node: Id, giving: Id) {
        if let Some(ids) = self.agent(node).restored.remove(&giving) {
            self.report_to(node, giving, AgentReport::Restored(ids));
        }
    }

    pub(super) fn flush_restored_to_all(&mut self, node: Id) {
        let all: Vec<Id> = self.agent(node).restored.keys().copied().collect();
        all.into_iter().for_each(|giving| self.flush_restored(node, giving));
    }

    pub(super) fn report_ends(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch;
        for (giving, closed) in core::mem::take(&mut self.agent(node).closed) {
            // A connection that has already ended was restored before.
            self.flush_restored(node, giving);
            self.report_to(node, giving, AgentReport::Closed(closed));
        }
        self.schedule_between(100_000, 100_000, AgentEvent::Flush { node, epoch });
    }

    // -- the node's end

    /// Makes the node drain, and announces its end until this is acknowledged.
    pub(in crate::faults) fn announce_ending(&mut self, node: Id) {
        self.agent(node).ending = true;
        let all: Vec<Id> = self.agent(node).links.keys().copied().collect();
        all.into_iter().for_each(|giving| self.send_ending(node, giving));
    }

    fn send_ending(&mut self, node: Id, giving: Id) {
        self.agent(node).unanswered.insert(giving);
        self.report_to(node, giving, AgentReport::Ending);
    }
}
