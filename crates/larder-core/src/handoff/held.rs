//! Connections whose packets are held until a node is decided.
//!
//! Nothing of what is held has been acknowledged, so that whatever is lost here the client sends again.

use super::Packet;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// The room that a held packet takes beside its bytes, about.
const PACKET_OVERHEAD: usize = 48;

/// Why a held connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Its decision is being made.
    Decision,
    /// The rest of its header may come.
    Rest,
    /// The dispatcher has no room yet: further packets decide nothing.
    Admission,
}

/// A held connection.
#[derive(Debug)]
pub(super) struct HeldConnection<P> {
    pub(super) packets: Vec<P>,
    pub(super) wait: Wait,
    /// It stands among those that are to be decided.
    pub(super) due: bool,
    /// Its decision is being made.
    pub(super) deciding: bool,
    /// Tells it from an earlier connection with the same addresses.
    pub(super) generation: u64,
}

impl<P: Packet> HeldConnection<P> {
    fn cost(&self) -> usize {
        self.packets.iter().map(|packet| packet.length() + PACKET_OVERHEAD).sum()
    }
}

/// All held connections.
#[derive(Debug)]
pub(super) struct HeldTable<K, P> {
    pub(super) by_key: BTreeMap<K, HeldConnection<P>>,
    /// Connections that are to be decided, in order.
    pub(super) due: VecDeque<K>,
    /// Connections that wait for the rest of a header, with their generations and deadlines, in order.
    pub(super) rests: VecDeque<(Time, K, u64)>,
    begun: u64,
    /// The room that all packets take.
    bytes: usize,
}

impl<K, P> Default for HeldTable<K, P> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), due: VecDeque::new(), rests: VecDeque::new(), begun: 0, bytes: 0 }
    }
}

impl<K: Copy + Ord, P: Packet> HeldTable<K, P> {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// A connection begins. Whatever an earlier one with the same addresses has left is dropped.
    pub(super) fn begin(&mut self, key: K) {
        self.drop_any(key);
        self.begun += 1;
        let held = HeldConnection {
            packets: Vec::new(),
            wait: Wait::Decision,
            due: false,
            deciding: false,
            generation: self.begun,
        };
        self.by_key.insert(key, held);
    }

    pub(super) fn drop_any(&mut self, key: K) {
        if let Some(held) = self.by_key.remove(&key) {
            self.bytes -= held.cost();
        }
    }

    /// Keeps a packet of a connection that is held, and says whether there was room for it.
    pub(super) fn push(&mut self, key: K, packet: P, bytes_max: usize) -> bool {
        let Some(held) = self.by_key.get_mut(&key) else { return true };
        self.bytes += packet.length() + PACKET_OVERHEAD;
        held.packets.push(packet);
        self.bytes <= bytes_max
    }

    /// A connection is to be decided. If it was already, it keeps its place in the order.
    pub(super) fn make_due(&mut self, key: K) {
        if let Some(held) = self.by_key.get_mut(&key)
            && !core::mem::replace(&mut held.due, true)
            && !held.deciding
        {
            self.due.push_back(key);
        }
    }

    pub(super) fn next_undecided(&mut self) -> Option<(K, u64)> {
        loop {
            let key = self.due.pop_front()?;
            let Some(held) = self.by_key.get_mut(&key) else { continue };
            held.due = false;
            if held.wait != Wait::Admission {
                // A packet that comes meanwhile makes it due again only if the header was not complete.
                held.deciding = true;
                return Some((key, held.generation));
            }
        }
    }

    /// Takes a connection out, unless another one has its addresses by now.
    pub(super) fn take(&mut self, key: K, generation: u64) -> Option<HeldConnection<P>> {
        self.by_key.get(&key).filter(|held| held.generation == generation)?;
        let held = self.by_key.remove(&key)?;
        self.bytes -= held.cost();
        Some(held)
    }

    pub(super) fn get(&self, key: K, generation: u64) -> Option<&HeldConnection<P>> {
        self.by_key.get(&key).filter(|held| held.generation == generation)
    }

    pub(super) fn get_mut(&mut self, key: K, generation: u64) -> Option<&mut HeldConnection<P>> {
        self.by_key.get_mut(&key).filter(|held| held.generation == generation)
    }

    pub(super) fn waits(&mut self, key: K, generation: u64) {
        if self.get(key, generation).is_some() {
            self.set_wait(key, Wait::Admission);
        }
    }

    pub(super) fn set_wait(&mut self, key: K, wait: Wait) {
        if let Some(held) = self.by_key.get_mut(&key) {
            held.wait = wait;
        }
    }

    /// When the time of a header is over next.
    pub(super) fn due(&self) -> Option<Time> {
        self.rests.front().map(|(until, ..)| *until)
    }

    /// The next connection the rest of whose header has not come in time.
    pub(super) fn next_overdue(&mut self, now: Time) -> Option<(K, u64)> {
        while let Some((_, key, generation)) = self.rests.pop_front_if(|(until, ..)| *until <= now) {
            if self.get_mut(key, generation).is_some_and(|held| held.wait == Wait::Rest) {
                return Some((key, generation));
            }
        }
        None
    }

    pub(super) fn take_all(&mut self) -> BTreeMap<K, HeldConnection<P>> {
        self.due.clear();
        self.rests.clear();
        self.bytes = 0;
        core::mem::take(&mut self.by_key)
    }
}
