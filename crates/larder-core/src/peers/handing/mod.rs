//! Handing clients' connections over to peers: the initial node's side.
//!
//! A node that hands a connection over (*initial node*) points the connection's packets at a peer (*service node*), freezes its
//! socket, and sends what the peer needs to go on with it. Nothing here does any of that. This says what is to be done, when
//! peers answer, are silent, come, go, and come back. The live node and the simulator drive it: each input is called as it
//! happens, and outputs are carried out before the next input.
//!
//! - *One at a time.* Two hosts must not answer one client. While nothing is known of a socket on its way it stays frozen; it
//!   goes on here only if the peer has refused, or does not name it once it has come back. If nothing is heard in time, or
//!   before the client has given the connection up, the client is told by the socket itself, and the peer may have the connection all the same: see *what was lost*.
//! - *Epochs.* A peer's channel is reliable and in order as long as it is up, and all that is under way is lost when it breaks. So
//!   what was sent while it was up the nth time is answered before it comes up again, or by what the peer names then: all that
//!   it has, before anything else. What is sent after that is not judged by this list.
//! - *What was lost.* A move that was given up, and a connection whose node is gone, end by a reset to the client. If the peer has
//!   it all the same, and says so later, packets go to it again: the client's host answers what it sends with resets, which
//!   end it there ([`Soon::StillHas`]).
//! - *Which one.* Addresses come again. An end counts if its number is that of the connection that is away.
//!
//! Each limit has an outcome: of more than [`HandingSettings::connections_max`] the next one stays ([`Handing::is_full`]), a
//! peer beyond `peers_max` is handed nothing ([`Handing::joined`]), and of moves that were given up the oldest beyond
//! `lost_max` are forgotten: what a peer still has of these ends by TCP's own timeouts.
//!
//! `K` is how a connection is known, `W` who waits for a move, `H` what a dispatcher counts a connection by: dropped as soon as it
//! is to count no more.

mod event;
mod members;
mod membership;
mod moves;
mod table;

pub use event::{FromPeer, Heard, Output, Owner, Place, Slot, Soon};

use crate::time::Time;
use core::time::Duration;
use members::Members;
use moves::{Move, Moves};
use std::collections::{BTreeMap, VecDeque};
use table::Table;

pub use table::Handed;

/// How long is waited for what, and how much there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandingSettings {
    /// How long the channel of a peer to which sockets are on their way may be down. Default 2 s: most come back within the first
    /// attempts.
    pub unheard_for: Duration,
    /// How long a socket stays frozen while nothing is known of it. Default 30 s.
    pub doubt: Duration,
    /// Connections of a node that is not there go on for so long: of one that has ended in good order, whose kernel still
    /// sends what clients have not taken, and of one that has not been heard of since this process began. Default 60 s.
    pub alone_for: Duration,
    /// A peer that had no place for a connection is offered none for so long: each that it refuses is frozen and thawed for
    /// nothing. Default 1 s.
    pub full_for: Duration,
    /// Peers that have a number at most. Default 64.
    pub peers_max: u16,
    /// Connections that may be away at a time. Default 65,536.
    pub connections_max: usize,
    /// Moves that were given up and are remembered, for a peer that answers late. Default 1,024.
    pub lost_max: usize,
}

impl Default for HandingSettings {
    fn default() -> Self {
        Self {
            unheard_for: Duration::from_secs(2),
            doubt: Duration::from_secs(30),
            alone_for: Duration::from_secs(60),
            full_for: Duration::from_secs(1),
            peers_max: 64,
            connections_max: 65_536,
            lost_max: 1_024,
        }
    }
}

/// The initial node's side.
#[derive(Debug)]
pub struct Handing<K, W, H> {
    settings: HandingSettings,
    members: Members<K>,
    table: Table<K, H>,
    moves: Moves<K, W>,
    soon: VecDeque<Soon<K>>,
    /// At which node each connection may still be whose client was told that it is gone, until the addresses are another's or the
    /// plane has forgotten it. Beyond `connections_max` it is not remembered: packets go to whichever names the addresses.
    ends_at: BTreeMap<K, Slot>,
}

impl<K: Copy + Ord, W, H> Handing<K, W, H> {
    /// Nobody yet. What an earlier process has handed over goes by the numbers that the plane has kept: `owners`, in order.
    pub fn new(now: Time, settings: HandingSettings, owners: impl IntoIterator<Item = Owner>) -> Self {
        Self {
            members: Members::new(now, settings.peers_max, owners),
            table: Table::default(),
            moves: Moves::new(settings.lost_max),
            soon: VecDeque::new(),
            ends_at: BTreeMap::new(),
            settings,
        }
    }

    /// A connection that an earlier process has handed over goes on.
    pub fn adopt(&mut self, key: K, slot: Slot) {
        self.table.put(key, Handed { slot, epoch: 0, first_seq: None, first_ack: None });
    }

    // -- a connection on its way

    /// Whether as many are away as may be.
    pub fn is_full(&self) -> bool {
        self.table.len() >= self.settings.connections_max
    }

    /// A move begins: the peer gets the connection's packets from here on, where they wait for it. Its number.
    pub fn begin(&mut self, place: Place, key: K, waits: W) -> u64 {
        let Place { slot, epoch } = place;
        self.table.put(key, Handed { slot, epoch, first_seq: None, first_ack: None });
        self.ends_at.remove(&key);
        self.moves.begin(Move { slot, key, epoch, waits })
    }

    /// The socket is frozen: the number that the connection goes by at the node, and that of the first byte that the client has not
    /// acknowledged.
    pub fn frozen(&mut self, key: K, first_seq: u32, first_ack: u32) {
        if let Some(handed) = self.table.get_mut(key) {
            (handed.first_seq, handed.first_ack) = (Some(first_seq), Some(first_ack));
        }
    }

    /// By which of the channel's connections a move is sent: that which was up when it began. What the peer names after it has come
    /// up again would not tell of what came by a later one. `None`: it is up no more, and the connection stays.
    pub fn session(&self, place: Place) -> Option<u64> {
        self.members.session(place)
    }

    /// A dispatcher counts the connection until it ends or rests; what has ended already it counts no more.
    pub fn hold(&mut self, key: K, held: H) {
        self.table.hold(key, held);
    }

    /// The connection goes on here: it could not be frozen or sent, or the peer has refused. Its packets come here again.
    pub fn stays(&mut self, id: u64, key: K) {
        self.moves.end(id);
        self.table.remove(key);
    }

    /// The time for doubt is over ([`HandingSettings::doubt`], or the client has given the connection up), and nothing was heard: as [`Heard::Nothing`]. `None`: it has
    /// been answered.
    pub fn doubt_over(&mut self, id: u64) -> Option<W> {
        self.lose(id)
    }

    /// A move is given up, and with it the connection: its socket tells the client, and nobody else does.
    fn lose(&mut self, id: u64) -> Option<W> {
        let (slot, key, waits) = self.moves.lose(id)?;
        if !self.moves.has(key) {
            self.table.remove(key);
            self.remember(key, slot);
        }
        Some(waits)
    }

    /// Gives up what is on its way to a peer.
    fn lose_all(&mut self, slot: Slot, out: &mut Vec<Output<K, W>>) {
        for id in self.moves.of(slot) {
            let waits = self.lose(id);
            out.extend(waits.map(|waits| Output::Answer { waits, heard: Heard::Nothing }));
        }
    }

    /// The client of a connection is told that it is gone; a node may have it all the same.
    fn remember(&mut self, key: K, slot: Slot) {
        if self.ends_at.len() < self.settings.connections_max {
            self.ends_at.insert(key, slot);
        }
    }

    /// The client of a move that was given up has been told.
    pub fn told(&mut self, id: u64) {
        self.soon.extend(self.moves.told(id).map(|(slot, key)| Soon::StillHas { slot, key }));
    }

    // -- what is away

    /// How many are away.
    pub fn away(&self) -> usize {
        self.table.len()
    }

    /// Connections that are away, with their nodes.
    pub fn all(&self) -> impl Iterator<Item = (K, &Handed)> {
        self.table.all()
    }

    /// Whether a connection is on its way.
    pub fn on_the_way(&self, key: K) -> bool {
        self.moves.has(key)
    }

    /// Connections that a dispatcher counts.
    pub fn counted(&self) -> Vec<K> {
        self.table.counted()
    }

    /// A client has sent nothing for so long that its connection rests between two requests: no load of the dispatcher's, unless
    /// it is on its way.
    pub fn rests(&mut self, key: K) {
        if !self.moves.has(key) {
            self.table.release(key);
        }
    }

    /// The next thing to do for one of many connections. Not for addresses that another one has by now, which is away, on its
    /// way, or was given up at another node.
    pub fn soon(&mut self) -> Option<Soon<K>> {
        while let Some(soon) = self.soon.pop_front() {
            let (key, elsewhere) = match soon {
                Soon::Reset { key, .. } | Soon::Unknown { key } => (key, false),
                Soon::StillHas { slot, key } => (key, self.ends_at.get(&key).is_some_and(|at| *at != slot)),
            };
            if !self.table.has(key) && !self.moves.has(key) && !elsewhere {
                return Some(soon);
            }
        }
        None
    }

    /// Forgets what the plane does not forward any more, because the client has begun anew with the same addresses or the plane has
    /// forgotten it; and gives up what belongs to nodes that nobody has heard of.
    pub fn sweep(&mut self, now: Time, unknown: impl Fn(K) -> bool, out: &mut Vec<Output<K, W>>) {
        self.ends_at.retain(|key, _| !unknown(*key));
        self.table.retain_known(unknown);
        for slot in self.table.slots() {
            if self.members.is_gone(now, slot, self.settings.alone_for) {
                self.gone(slot, out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
