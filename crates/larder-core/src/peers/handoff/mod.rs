//! Handoff of clients' connections to peers: the side of the initial node.
//!
//! A node that hands off a connection (*initial node*) routes the connection's packets to a peer (*service node*)
//! and freezes its socket. It then sends the state that the peer needs to continue. This module does none of that.
//! It decides the actions when peers answer, are silent, join, leave and return. The live node and the simulator
//! drive it. They call each input as it happens and carry out the outputs before the next input.
//!
//! - *One socket at a time.* Two hosts must not answer one client. While the state of a move is unknown, the socket stays frozen.
//!   It continues here only if the peer has refused, or does not list the connection after its return. If there is no answer in
//!   time, or before the client gives up, the socket itself resets the client. The peer may still have the connection: see
//!   *abandoned moves*.
//! - *Epochs.* A channel is reliable and in order while it is up, and all messages in flight are lost when it breaks. So
//!   a move of one epoch is answered before the next epoch. Otherwise the list of the peer's connections at the start of
//!   the next epoch decides it. That list comes before all other messages. The list does not apply to moves that were
//!   sent after it.
//! - *Abandoned moves.* A move that was given up, and a connection whose node is gone, end with a reset to the client. If the
//!   peer has the connection and reports it later, packets go to the peer again. The client's host answers the packets of the
//!   peer with resets, which end the connection there ([`DeferredAction::StillHas`]).
//! - *Identity of connections.* Addresses are reused. An end counts only if its sequence number is that of the current
//!   connection.
//!
//! Each limit has a defined outcome. Beyond [`PeerHandoffSettings::connections_max`] a connection stays here
//! ([`PeerHandoffMachine::is_full`]). A peer beyond `peers_max` gets no connections ([`PeerHandoffMachine::add_peer`]). Beyond `abandoned_max` the
//! oldest abandoned moves are dropped; their connections end by the timeouts of TCP.
//!
//! `K` identifies a connection, `W` is the waiter of a move, and `H` is the load that a dispatcher counts for a connection. `H`
//! is dropped as soon as the connection no longer counts.

mod event;
mod membership;
mod moves;
mod peers;
mod table;

pub use event::{
    DeferredAction, HandoffDestination, HandoffOutput, PeerEvent, PeerKey, PeerMoveOutcome, PeerSlot,
};

use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;
use moves::{PeerMove, PeerMoves};
use peers::HandoffPeers;
use table::HandedOffTable;

pub use table::HandedOffConnection;

/// Times and limits of the handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHandoffSettings {
    /// Longest time that the channel of a peer may be down while moves to it wait. Default 2 s: most channels return
    /// within the first attempts.
    pub down_max: Duration,
    /// Longest time that a socket stays frozen without an answer. Default 30 s.
    pub answer_timeout: Duration,
    /// Time for which connections of an absent node continue. It applies to a node that left in good order, whose
    /// kernel still sends the remaining data. It also applies to a node without a message since this process began.
    /// Default 60 s.
    pub absent_max: Duration,
    /// Time for which a peer without capacity is offered no connection. Each refused connection is frozen and thawed
    /// in vain. Default 1 s.
    pub full_backoff: Duration,
    /// Largest number of peers with a slot. Default 64.
    pub peers_max: u16,
    /// Largest number of connections that are handed off at a time. Default 65,536.
    pub connections_max: usize,
    /// Largest number of abandoned moves that are remembered, for peers that answer late. Default 1,024.
    pub abandoned_max: usize,
}

impl Default for PeerHandoffSettings {
    fn default() -> Self {
        Self {
            down_max: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(30),
            absent_max: Duration::from_secs(60),
            full_backoff: Duration::from_secs(1),
            peers_max: 64,
            connections_max: 65_536,
            abandoned_max: 1_024,
        }
    }
}

/// State machine of the initial node.
#[derive(Debug)]
pub struct PeerHandoffMachine<K, W, H> {
    settings: PeerHandoffSettings,
    peers: HandoffPeers<K>,
    table: HandedOffTable<K, H>,
    moves: PeerMoves<K, W>,
    actions: VecDeque<DeferredAction<K>>,
    /// Node of each connection whose client was reset, where the connection may still exist. An entry is removed
    /// when the addresses are reused or the plane has dropped them. Beyond `connections_max` no entry is added, and
    /// packets go to any node that lists the addresses.
    possible_nodes: BTreeMap<K, PeerSlot>,
}

impl<K: Copy + Ord, W, H> PeerHandoffMachine<K, W, H> {
    /// Creates the state without peers. Connections that an earlier process has handed off use the slots that the
    /// plane has kept: `owners`, in order.
    pub fn new(now: Time, settings: PeerHandoffSettings, owners: impl IntoIterator<Item = PeerKey>) -> Self {
        Self {
            peers: HandoffPeers::new(now, settings.peers_max, owners),
            table: HandedOffTable::default(),
            moves: PeerMoves::new(settings.abandoned_max),
            actions: VecDeque::new(),
            possible_nodes: BTreeMap::new(),
            settings,
        }
    }

    /// Adds a connection that an earlier process has handed off.
    pub fn adopt(&mut self, key: K, slot: PeerSlot) {
        self.table.insert(key, HandedOffConnection { slot, epoch: 0, first_seq: None, first_ack: None });
    }

    // -- current moves

    /// Returns true if the limit of handed-off connections is reached.
    pub fn is_full(&self) -> bool {
        self.table.len() >= self.settings.connections_max
    }

    /// Begins a move and returns its number. From now on the peer gets the connection's packets, which wait there.
    pub fn begin_move(&mut self, destination: HandoffDestination, key: K, waiter: W) -> u64 {
        let HandoffDestination { slot, epoch } = destination;
        self.table.insert(key, HandedOffConnection { slot, epoch, first_seq: None, first_ack: None });
        self.possible_nodes.remove(&key);
        self.moves.add(PeerMove { slot, key, epoch, waiter })
    }

    /// Records that the socket is frozen, with two sequence numbers. `first_seq` identifies the connection at the
    /// node, and `first_ack` is the first byte that the client has not acknowledged.
    pub fn record_frozen(&mut self, key: K, first_seq: u32, first_ack: u32) {
        if let Some(connection) = self.table.get_mut(key) {
            (connection.first_seq, connection.first_ack) = (Some(first_seq), Some(first_ack));
        }
    }

    /// Returns the session of the channel by which a move is sent: the one that was up when the move began. The
    /// peer's list at the start of a later session would not cover it. Returns `None` if that session has ended; the
    /// connection then stays.
    pub fn session(&self, destination: HandoffDestination) -> Option<u64> {
        self.peers.session(destination)
    }

    /// Attaches the dispatcher's load to a connection until it ends or is idle. The load of an ended connection is
    /// dropped at once.
    pub fn attach_load(&mut self, key: K, load: H) {
        self.table.attach_load(key, load);
    }

    /// Ends a move whose connection stays here, because it could not be frozen or sent, or the peer has refused. Its
    /// packets come here again.
    pub fn keep_local(&mut self, id: u64, key: K) {
        self.moves.remove(id);
        self.table.remove(key);
    }

    /// Gives up a move after [`PeerHandoffSettings::answer_timeout`] without an answer, or because the client has given up.
    /// The caller treats it as [`PeerMoveOutcome::Unknown`]. Returns `None` if the move was answered.
    pub fn give_up_move(&mut self, id: u64) -> Option<W> {
        self.abandon(id)
    }

    /// Gives up a move and its connection. The socket resets the client, and nothing else does.
    fn abandon(&mut self, id: u64) -> Option<W> {
        let (slot, key, waiter) = self.moves.abandon(id)?;
        if !self.moves.has(key) {
            self.table.remove(key);
            self.remember_node(key, slot);
        }
        Some(waiter)
    }

    /// Gives up all moves to a peer.
    fn abandon_all(&mut self, slot: PeerSlot, out: &mut Vec<HandoffOutput<K, W>>) {
        for id in self.moves.ids_to(slot) {
            let waiter = self.abandon(id);
            out.extend(
                waiter.map(|waiter| HandoffOutput::Answer { waiter, outcome: PeerMoveOutcome::Unknown }),
            );
        }
    }

    /// Remembers the node of a connection whose client was reset, since the node may still have it.
    fn remember_node(&mut self, key: K, slot: PeerSlot) {
        if self.possible_nodes.len() < self.settings.connections_max {
            self.possible_nodes.insert(key, slot);
        }
    }

    /// Records that the client of an abandoned move was reset.
    pub fn record_client_reset(&mut self, id: u64) {
        self.actions.extend(
            self.moves.record_client_reset(id).map(|(slot, key)| DeferredAction::StillHas { slot, key }),
        );
    }

    // -- handed-off connections

    /// Returns the number of handed-off connections.
    pub fn handed_off_count(&self) -> usize {
        self.table.len()
    }

    /// Returns the handed-off connections with their nodes.
    pub fn connections(&self) -> impl Iterator<Item = (K, &HandedOffConnection)> {
        self.table.iter()
    }

    /// Returns true if a move of a connection is in progress.
    pub fn is_moving(&self, key: K) -> bool {
        self.moves.has(key)
    }

    /// Returns the connections that a dispatcher counts.
    pub fn counted_connections(&self) -> Vec<K> {
        self.table.counted_connections()
    }

    /// Drops the dispatcher's load of a connection that is idle between two requests, unless it is being moved.
    pub fn mark_idle(&mut self, key: K) {
        if !self.moves.has(key) {
            self.table.drop_load(key);
        }
    }

    /// Returns the next deferred action. Actions for reused addresses are skipped: the new connection is handed off,
    /// is being moved, or was abandoned at another node.
    pub fn next_action(&mut self) -> Option<DeferredAction<K>> {
        while let Some(action) = self.actions.pop_front() {
            let (key, is_elsewhere) = match action {
                DeferredAction::Reset { key, .. } | DeferredAction::Unknown { key } => (key, false),
                DeferredAction::StillHas { slot, key } => {
                    (key, self.possible_nodes.get(&key).is_some_and(|at| *at != slot))
                }
            };
            if !self.table.has(key) && !self.moves.has(key) && !is_elsewhere {
                return Some(action);
            }
        }
        None
    }

    /// Drops connections that the plane no longer forwards, because the client has reused the addresses or the plane
    /// has dropped them. Resets the clients of nodes that have been absent for too long.
    pub fn sweep(&mut self, now: Time, unknown: impl Fn(K) -> bool, out: &mut Vec<HandoffOutput<K, W>>) {
        self.possible_nodes.retain(|key, _| !unknown(*key));
        self.table.drop_unknown(unknown);
        for slot in self.table.slots() {
            if self.peers.is_gone(now, slot, self.settings.absent_max) {
                self.reset_clients(slot, out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
