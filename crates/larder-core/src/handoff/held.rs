//! Connections whose packets are held until a node is chosen.
//!
//! No held packet has been acknowledged, so the client retransmits every packet that is lost here.

use super::Packet;
use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// The approximate memory of a held packet in addition to its bytes.
const PACKET_OVERHEAD: usize = 48;

/// The reason why a held connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The decision is being made.
    Decision,
    /// The rest of the request header may still arrive.
    Rest,
    /// The dispatcher has not admitted the request yet; further packets cause no decision.
    Admission,
}

/// A held connection.
#[derive(Debug)]
pub(super) struct HeldConnection<P> {
    pub(super) packets: Vec<P>,
    pub(super) wait: WaitReason,
    /// Whether the connection is in the queue of connections to be decided.
    pub(super) due: bool,
    /// Whether the decision is being made.
    pub(super) deciding: bool,
    /// The generation, which distinguishes the connection from an earlier one with the same addresses.
    pub(super) generation: u64,
}

impl<P: Packet> HeldConnection<P> {
    fn cost(&self) -> usize {
        self.packets.iter().map(|packet| packet.length() + PACKET_OVERHEAD).sum()
    }
}

/// The held connections.
#[derive(Debug)]
pub(super) struct HeldTable<K, P> {
    pub(super) by_key: BTreeMap<K, HeldConnection<P>>,
    /// The connections to be decided, in order.
    pub(super) due: VecDeque<K>,
    /// The connections that wait for the rest of a header, with their generations and deadlines, in order.
    pub(super) header_deadlines: VecDeque<(Time, K, u64)>,
    begun: u64,
    /// The memory that all packets take, in bytes.
    bytes: usize,
}

impl<K, P> Default for HeldTable<K, P> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            due: VecDeque::new(),
            header_deadlines: VecDeque::new(),
            begun: 0,
            bytes: 0,
        }
    }
}

impl<K: Copy + Ord, P: Packet> HeldTable<K, P> {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Begins a connection, and drops an earlier one with the same addresses.
    pub(super) fn begin(&mut self, key: K) {
        self.drop_any(key);
        self.begun += 1;
        let held = HeldConnection {
            packets: Vec::new(),
            wait: WaitReason::Decision,
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

    /// Stores a packet of a held connection. Returns whether there was room for it.
    pub(super) fn push(&mut self, key: K, packet: P, bytes_max: usize) -> bool {
        let Some(held) = self.by_key.get_mut(&key) else { return true };
        self.bytes += packet.length() + PACKET_OVERHEAD;
        held.packets.push(packet);
        self.bytes <= bytes_max
    }

    /// Queues a connection for a decision. A connection that is queued already keeps its position.
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
            if held.wait != WaitReason::Admission {
                // A packet that arrives meanwhile queues it again only if the header was incomplete.
                held.deciding = true;
                return Some((key, held.generation));
            }
        }
    }

    /// Removes and returns a connection, unless another one has its addresses by now.
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

    pub(super) fn await_admission(&mut self, key: K, generation: u64) {
        if self.get(key, generation).is_some() {
            self.set_wait(key, WaitReason::Admission);
        }
    }

    pub(super) fn set_wait(&mut self, key: K, wait: WaitReason) {
        if let Some(held) = self.by_key.get_mut(&key) {
            held.wait = wait;
        }
    }

    /// Returns the earliest deadline of an incomplete header.
    pub(super) fn due(&self) -> Option<Time> {
        self.header_deadlines.front().map(|(until, ..)| *until)
    }

    /// Returns the next connection whose header was not completed in time.
    pub(super) fn next_overdue(&mut self, now: Time) -> Option<(K, u64)> {
        while let Some((_, key, generation)) = self.header_deadlines.pop_front_if(|(until, ..)| *until <= now)
        {
            if self.get_mut(key, generation).is_some_and(|held| held.wait == WaitReason::Rest) {
                return Some((key, generation));
            }
        }
        None
    }

    pub(super) fn take_all(&mut self) -> BTreeMap<K, HeldConnection<P>> {
        self.due.clear();
        self.header_deadlines.clear();
        self.bytes = 0;
        core::mem::take(&mut self.by_key)
    }
}
