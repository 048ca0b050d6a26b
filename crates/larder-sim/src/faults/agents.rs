//! The nodes that take connections, and the control channels to them: a model of `larder_handoff::agent` and
//! `larder_handoff::channel` with the same order of actions. All worlds in which connections are handed off
//! use it.
//!
//! A *giving node* hands connections off: a switch, or the initial node of its own clients. It keeps a channel
//! to each node that takes connections, over one session after the other.
//!
//! - `channel`: the sessions. Messages on a session arrive in order. A session breaks at any time, and each
//!   side notices this at its own time. Messages in flight are then lost or still read.
//! - `agent`: the agents. A new session is welcomed and gets a full list before any of its messages is
//!   answered. Restored connections are reported before ended ones, both with a delay. A full node refuses
//!   connections. A node that ends says so until this is acknowledged.
//! - `sockets`: the sockets of connections that were handed off. They outlive a process in the kernel.

mod agent;
mod channel;
mod sockets;

use super::outcome::Violation;
use super::protocol::BrokenRule;
use super::simulation::{Id, SimEvent, Simulation, World};
use core::fmt::Debug;
use larder_core::handoff::TransferMessage;
use std::collections::{BTreeMap, VecDeque};

pub(super) use agent::{Agent, AgentReport};
pub(super) use channel::{Channel, ChannelEvent, Message, Session, SessionSide};
pub(super) use sockets::{Host, Socket, number_of};

/// A world in which nodes take connections.
pub(super) trait AgentWorld: World<Event: From<AgentEvent<Self::Key>>> {
    /// The identity of a connection: its addresses, which are reused.
    type Key: Copy + Ord + Debug;

    /// Whether nodes admit only giving nodes that they see.
    const MEMBERS_ONLY: bool;

    fn taking(&self) -> &TakingNodes<Self::Key>;
    fn taking_mut(&mut self) -> &mut TakingNodes<Self::Key>;
    /// Returns the giving node of a connection.
    fn giving_node(key: Self::Key) -> Id;
    /// Returns a connection.
    fn connection(&self, conn: Id) -> Connection<Self::Key>;

    /// Returns whether no two hosts may serve a connection now.
    fn has_single_host(&self, _: Id) -> bool {
        true
    }

    /// Handles an event of a channel at its giving node.
    fn handle_channel_event(
        sim: &mut Simulation<'_, Self>,
        node: Id,
        peer: Id,
        event: ChannelEvent<Self::Key>,
    ) -> Result<(), Violation>;
    /// Handles the answer about a connection that a node gives up.
    fn handle_leave_reply(
        _: &mut Simulation<'_, Self>,
        _: Id,
        _: Self::Key,
        _: TransferMessage,
    ) -> Result<(), Violation> {
        Ok(())
    }
    /// Begins to serve a connection at a node. `None` if all of the first request has arrived.
    fn serve_at(sim: &mut Simulation<'_, Self>, node: Id, key: Self::Key, conn: Id, arrived: Option<u32>);
    /// Returns whether packets of a socket reach the client's host, and its answers the node.
    fn is_reached(sim: &mut Simulation<'_, Self>, node: Id, key: Self::Key, conn: Id) -> bool;
    /// Returns whether a socket whose packets do not pass gives its client up.
    fn is_beyond_reach(&self, _: Id) -> bool {
        true
    }
    /// Delivers the reply of a socket. Returns whether the connection continues.
    fn deliver_reply(
        sim: &mut Simulation<'_, Self>,
        node: Id,
        key: Self::Key,
        conn: Id,
    ) -> Result<bool, Violation>;
}

/// A connection of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection<K> {
    pub(super) key: K,
    /// Whether the client has the connection.
    pub(super) open: bool,
    /// Whether the giving node serves the connection itself.
    pub(super) stays: bool,
}

/// An event of this model. `epoch` is the life of the process that handles the event.
#[derive(Debug)]
pub(super) enum AgentEvent<K> {
    /// A giving node tries to connect to a peer.
    Attempt {
        node: Id,
        epoch: u64,
        peer: Id,
        generation: u64,
    },
    /// A giving node handles the next event of its channels.
    Inbox {
        node: Id,
        epoch: u64,
    },
    /// The next message in flight to a side of a session arrives.
    Arrive {
        session: Id,
        side: SessionSide,
    },
    /// A side checks whether it still hears the other side.
    Watch {
        session: Id,
        side: SessionSide,
    },
    /// A side notices that its session has broken.
    Close {
        session: Id,
        side: SessionSide,
    },
    /// A session breaks.
    Snap,
    /// A node reports restored connections, and ended ones.
    Restored {
        node: Id,
        epoch: u64,
    },
    Flush {
        node: Id,
        epoch: u64,
    },
    /// A list of a node's connections is started, and is complete.
    List {
        node: Id,
        epoch: u64,
        session: Id,
    },
    Listed {
        node: Id,
        epoch: u64,
        session: Id,
        connections: Vec<(K, u32)>,
    },
    /// A socket at a node sends its reply.
    Sends {
        node: Id,
        key: K,
        conn: Id,
        tries: u32,
    },
}

impl<K> AgentEvent<K> {
    /// Returns the process that an event belongs to, with its epoch.
    pub(super) const fn process(&self) -> Option<(Id, u64)> {
        match self {
            Self::Attempt { node, epoch, .. }
            | Self::Inbox { node, epoch }
            | Self::Restored { node, epoch }
            | Self::Flush { node, epoch }
            | Self::List { node, epoch, .. }
            | Self::Listed { node, epoch, .. } => Some((*node, *epoch)),
            _ => None,
        }
    }
}

/// The state of this model.
#[derive(Debug)]
pub(super) struct TakingNodes<K> {
    pub(super) hosts: Vec<Host<K>>,
    pub(super) agents: Vec<Agent<K>>,
    /// The channels of each giving node, by peer.
    pub(super) channels: Vec<BTreeMap<Id, Channel>>,
    /// The channel events that a giving node has not handled.
    inboxes: Vec<VecDeque<channel::InboxEntry<K>>>,
    sessions: Vec<Session<K>>,
    /// The largest number of connections of a node.
    places: usize,
    /// The longest delay until a channel event is handled, in microseconds.
    lag_us: u64,
    /// Whether a session has been broken.
    pub(super) snapped: bool,
}

impl<K> TakingNodes<K> {
    pub(super) fn new(nodes: usize, places: usize, lag_us: u64) -> Self {
        Self {
            hosts: (0..nodes).map(|_| Host::default()).collect(),
            agents: (0..nodes).map(|_| Agent::default()).collect(),
            channels: vec![BTreeMap::new(); nodes],
            inboxes: (0..nodes).map(|_| VecDeque::new()).collect(),
            sessions: Vec::new(),
            places,
            lag_us,
            snapped: false,
        }
    }

    /// Returns the node that handles an event; the event waits while that node is paused.
    pub(super) fn node_of(&self, event: &AgentEvent<K>) -> Option<Id> {
        match event {
            AgentEvent::Arrive { session, side }
            | AgentEvent::Watch { session, side }
            | AgentEvent::Close { session, side } => Some(self.sessions[*session].end(*side).node),
            AgentEvent::Sends { node, .. } => Some(*node),
            AgentEvent::Snap => None,
            _ => event.process().map(|(node, _)| node),
        }
    }
}

impl<W: AgentWorld> Simulation<'_, W> {
    pub(super) fn is_broken(&self, rule: BrokenRule) -> bool {
        self.broken_rule == Some(rule)
    }

    /// Schedules an event of the world after a random delay.
    pub(super) fn schedule_between(&mut self, least_us: u64, most_us: u64, event: impl Into<W::Event>) {
        let wait = self.rng.draw_micros(least_us, most_us);
        self.schedule(wait, SimEvent::World(event.into()));
    }

    pub(super) fn handle_agent_event(&mut self, event: AgentEvent<W::Key>) -> Result<(), Violation> {
        match event {
            AgentEvent::Attempt { node, peer, generation, .. } => self.connect(node, peer, generation),
            AgentEvent::Inbox { node, .. } => return self.handle_queued_event(node),
            AgentEvent::Arrive { session, side } => return self.deliver_next(session, side),
            AgentEvent::Watch { session, side } => self.check_silence(session, side),
            AgentEvent::Close { session, side } => self.close_side(session, side),
            AgentEvent::Snap => self.break_session(),
            AgentEvent::Restored { node, .. } => self.flush_restored_to_all(node),
            AgentEvent::Flush { node, .. } => self.report_ends(node),
            AgentEvent::List { node, epoch, session } => self.start_list(node, epoch, session),
            AgentEvent::Listed { node, session, connections, .. } => {
                self.send_list(node, session, &connections);
            }
            AgentEvent::Sends { node, key, conn, tries } => return self.send_reply(node, key, conn, tries),
        }
        Ok(())
    }
}
