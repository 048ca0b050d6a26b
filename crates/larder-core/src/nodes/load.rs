//! The load of each node, shared by all threads, and the search for the least loaded node.
//!
//! A node's state is one 64-bit word: its load, the reciprocal of its weight, and flags. One atomic addition changes
//! the load and reads the rest. Loads are compared as `load / weight`, in steps of 1/4096 of a connection.
//!
//! Up to [`BLOCK`] nodes, the search reads all words, which are adjacent (64 nodes are eight cache lines). Above
//! that, every block of 64 nodes stores its minimum, so the search reads n/64 + 64 words. If several switches share
//! the nodes, the requests of the other switches are added wherever loads are compared. They are in a second array
//! beside the words, which is read only if there are other switches.
//!
//! A block's minimum is exact while one thread acts at a time. While several threads act, the minimum may lag behind
//! by the updates in flight. The search notices a minimum that no node of its block has, and repairs it.

use crate::id::NodeId;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of nodes in a block that has a stored minimum.
pub(crate) const BLOCK: usize = 64;

/// A node's `load / weight` in 1/4096 of a connection; [`Key::CLOSED`] for a node that takes no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    /// Returns the key as a number of 48 bits.
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// Creates a key from the number that [`Key::get`] returns.
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits & KEY_MASK)
    }

    /// The key of a node that takes no requests. It is larger than every other key.
    pub(crate) const CLOSED: Self = Self(KEY_MASK);

    /// Returns the key of `connections` at a node of weight 1.
    pub(crate) const fn of(connections: u32) -> Self {
        Self((connections as u64) << 12)
    }

    /// Returns the sum of two keys.
    pub(crate) const fn plus(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// Returns the sum of this key and `more`, a number as [`Key::get`] returns it; at most [`Key::CLOSED`] less
    /// one.
    pub(crate) const fn plus_units(self, more: u64) -> Self {
        let sum = self.0.saturating_add(more);
        if sum < KEY_MASK { Self(sum) } else { Self(KEY_MASK - 1) }
    }

    /// Returns the mean of `outstanding` requests over nodes whose weights (1000 = 1.0) add up to `weight_sum`.
    pub(crate) const fn mean(outstanding: u32, weight_sum: u64) -> Self {
        match (outstanding as u64 * 4_096_000).checked_div(weight_sum) {
            Some(mean) => Self(mean),
            None => Self::CLOSED,
        }
    }
}

const KEY_BITS: u32 = 48;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;
const LOAD_MASK: u64 = u32::MAX as u64;
const FACTOR_SHIFT: u32 = 32;
const FACTOR_MASK: u64 = (1 << 22) - 1;
/// The flag of a backup that takes no requests in the group of all nodes.
const STANDBY: u64 = 1 << 61;
const JOINING: u64 = 1 << 62;
const CLOSED: u64 = 1 << 63;

/// The word of one node, with access to its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadWord(u64);

impl LoadWord {
    pub(super) const fn load(self) -> u32 {
        (self.0 & LOAD_MASK) as u32
    }

    pub(super) const fn is_joining(self) -> bool {
        self.0 & JOINING != 0
    }

    /// Returns the bits that change from request to request: the load, and in bit 32 the joining flag.
    pub(super) const fn volatile_bits(self) -> u64 {
        self.0 & LOAD_MASK | (self.is_joining() as u64) << 32
    }

    /// Returns this word with the volatile bits of another word; see [`LoadWord::volatile_bits`].
    pub(super) const fn with_volatile_bits(self, volatile_bits: u64) -> Self {
        let joining = if volatile_bits >> 32 & 1 == 1 { JOINING } else { 0 };
        Self(self.0 & !(LOAD_MASK | JOINING) | volatile_bits & LOAD_MASK | joining)
    }

    /// Returns `key` increased by `requests` at this node's weight.
    pub(super) const fn more(self, key: Key, requests: u32) -> Key {
        if key.0 == KEY_MASK {
            return key;
        }
        Key(key.0 + requests as u64 * ((self.0 >> FACTOR_SHIFT) & FACTOR_MASK))
    }

    /// Returns the word as a group other than that of all nodes sees it. The standby flag is cleared, because it
    /// applies only to the group of all nodes.
    pub(super) const fn without_standby(self) -> Self {
        Self(self.0 & !STANDBY)
    }

    /// Returns `load / weight`, where other switches have `peer_requests` requests at the node.
    pub(super) const fn key(self, peer_requests: u32) -> Key {
        if self.0 & (CLOSED | STANDBY) != 0 {
            return Key::CLOSED;
        }
        Key(((self.0 & LOAD_MASK) + peer_requests as u64) * ((self.0 >> FACTOR_SHIFT) & FACTOR_MASK))
    }
}

/// The state of a node in the load table, without its load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeStatus {
    /// The relative capacity, 1000 = 1.0; range 1 to 100,000.
    pub(crate) weight_milli: u32,
    /// Whether the node takes requests.
    pub(crate) open: bool,
    /// Whether the node gets new targets at a limited rate only.
    pub(crate) joining: bool,
    /// Whether the node is a backup that takes no requests in the group of all nodes.
    pub(crate) standby: bool,
}

/// Returns the position of a node's word. Neighbouring nodes are on different cache lines, so that threads that
/// serve different nodes of a small cluster do not share a line. A block is still read in eight lines.
const fn word_position(index: usize) -> usize {
    (index & !(BLOCK - 1)) | ((index % 8) * 8 + (index % BLOCK) / 8)
}

/// The loads of all nodes.
#[derive(Debug)]
pub(crate) struct Loads {
    words: Box<[AtomicU64]>,
    minima: Box<[AtomicU64]>,
    used: AtomicUsize,
    /// The requests of other switches at each node, in the layout of `words`.
    peer_requests: Box<[AtomicU32]>,
    /// Whether there are other switches.
    shared: AtomicBool,
}

impl Loads {
    /// Creates a table for `nodes_max` nodes, all of them closed.
    pub(crate) fn new(nodes_max: usize) -> Self {
        let blocks = nodes_max.div_ceil(BLOCK);
        Self {
            words: (0..blocks * BLOCK).map(|_| AtomicU64::new(CLOSED)).collect(),
            minima: (0..blocks).map(|_| AtomicU64::new(KEY_MASK)).collect(),
            used: AtomicUsize::new(0),
            peer_requests: (0..blocks * BLOCK).map(|_| AtomicU32::new(0)).collect(),
            shared: AtomicBool::new(false),
        }
    }

    /// Sets the number of requests that other switches have at each node, by slot; `None` if there are no other
    /// switches. Slots beyond the list have none.
    pub(super) fn set_peer_requests(&self, requests: Option<&[u32]>) {
        for index in 0..self.peer_requests.len() {
            let there = requests.and_then(|requests| requests.get(index)).copied().unwrap_or(0);
            self.peer_requests[word_position(index)].store(there, Ordering::Relaxed);
        }
        self.shared.store(requests.is_some(), Ordering::Release);
        if self.slots() > BLOCK {
            self.repair();
        }
    }

    /// Returns the number of requests that other switches have at a slot.
    #[inline]
    pub(super) fn peer_requests(&self, index: usize) -> u32 {
        if self.shared.load(Ordering::Relaxed) {
            self.peer_requests[word_position(index)].load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Returns the number of slots in use. Every node's index is below it.
    pub(crate) fn slots(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets a slot's status and keeps its load. Extends the slots in use.
    pub(crate) fn set(&self, node: NodeId, status: NodeStatus) {
        let weight = u64::from(status.weight_milli.max(1));
        let factor = ((4_096_000 + weight / 2) / weight).clamp(1, FACTOR_MASK);
        let mut rest = factor << FACTOR_SHIFT;
        if !status.open {
            rest |= CLOSED;
        }
        if status.joining {
            rest |= JOINING;
        }
        if status.standby {
            rest |= STANDBY;
        }
        self.used.fetch_max(node.index() + 1, Ordering::Relaxed);
        self.update(node, |old| old & LOAD_MASK | rest);
    }

    /// Sets whether a node stands by in the group of all nodes.
    pub(super) fn set_standby(&self, node: NodeId, standby: bool) {
        self.update(node, |old| if standby { old | STANDBY } else { old & !STANDBY });
    }

    fn update(&self, node: NodeId, change: impl Fn(u64) -> u64) {
        let word = &self.words[word_position(node.index())];
        let mut old = word.load(Ordering::Relaxed);
        while let Err(seen) =
            word.compare_exchange_weak(old, change(old), Ordering::AcqRel, Ordering::Relaxed)
        {
            old = seen;
        }
        self.rescan(node.index() / BLOCK);
    }

    /// Counts one more request in flight at `node`, and returns the node's key before.
    #[inline]
    pub(crate) fn add(&self, node: NodeId) -> Key {
        self.count(node).key(self.peer_requests(node.index()))
    }

    /// Counts one more request in flight at `node`, and returns the node's word before.
    #[inline]
    pub(super) fn count(&self, node: NodeId) -> LoadWord {
        let old = LoadWord(self.words[word_position(node.index())].fetch_add(1, Ordering::Relaxed));
        self.changed(node, old, LoadWord(old.0 + 1));
        old
    }

    /// Counts one request less in flight at `node`. Returns false and changes nothing if there was none.
    #[must_use]
    pub(crate) fn sub(&self, node: NodeId) -> bool {
        let word = &self.words[word_position(node.index())];
        let old = LoadWord(word.fetch_sub(1, Ordering::Relaxed));
        if old.load() == 0 {
            word.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.changed(node, old, LoadWord(old.0 - 1));
        true
    }

    /// Returns the number of requests in flight at `node`, without those of other switches.
    pub(crate) fn load(&self, node: NodeId) -> u32 {
        self.word(node.index()).load()
    }

    /// Returns `load / weight` of `node`.
    #[cfg(test)]
    pub(crate) fn key(&self, node: NodeId) -> Key {
        self.word(node.index()).key(self.peer_requests(node.index()))
    }

    /// Returns whether `node` takes requests, or would take requests if it did not stand by.
    pub(crate) fn is_open(&self, node: NodeId) -> bool {
        node.index() < self.slots() && self.word(node.index()).0 & CLOSED == 0
    }

    /// Returns whether `node` takes requests in the group of all nodes.
    pub(crate) fn is_eligible(&self, node: NodeId) -> bool {
        node.index() < self.slots() && self.word(node.index()).0 & (CLOSED | STANDBY) == 0
    }

    /// Returns whether `node` gets new targets at a limited rate only.
    pub(crate) fn is_joining(&self, node: NodeId) -> bool {
        self.word(node.index()).is_joining()
    }

    /// Returns the word of a slot.
    pub(super) fn word(&self, index: usize) -> LoadWord {
        LoadWord(self.words[word_position(index)].load(Ordering::Relaxed))
    }

    /// Returns the stored minimum of a block, which may lag behind.
    pub(super) fn minimum(&self, block: usize) -> Key {
        Key(self.minima[block].load(Ordering::Relaxed) & KEY_MASK)
    }

    /// Recomputes the minima of all blocks.
    pub(super) fn repair(&self) {
        (0..self.slots().div_ceil(BLOCK)).for_each(|block| self.rescan(block));
    }

    /// Updates the block's minimum after the key of one node changed from `old` to `new`.
    #[inline]
    fn changed(&self, node: NodeId, old: LoadWord, new: LoadWord) {
        if self.slots() > BLOCK {
            let peer_requests = self.peer_requests(node.index());
            self.keep_minimum(node, old.key(peer_requests), new.key(peer_requests));
        }
    }

    fn keep_minimum(&self, node: NodeId, old: Key, new: Key) {
        let block = node.index() / BLOCK;
        let minimum = &self.minima[block];
        let mut seen = minimum.load(Ordering::Relaxed);
        loop {
            let least = Key(seen & KEY_MASK);
            let next = if new <= least {
                new
            } else if old <= least {
                self.block_least(block)
            } else {
                return;
            };
            match minimum.compare_exchange(seen, stamp(seen, next), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn rescan(&self, block: usize) {
        let minimum = &self.minima[block];
        let mut seen = minimum.load(Ordering::Relaxed);
        loop {
            let next = stamp(seen, self.block_least(block));
            match minimum.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn block_least(&self, block: usize) -> Key {
        let end = ((block + 1) * BLOCK).min(self.words.len());
        let keys = (block * BLOCK..end).map(|index| self.word(index).key(self.peer_requests(index)));
        keys.min().unwrap_or(Key::CLOSED)
    }
}

/// Returns a minimum with the next version number. A compare-and-exchange against a word that has changed since then
/// cannot succeed by chance.
const fn stamp(seen: u64, key: Key) -> u64 {
    ((seen >> KEY_BITS).wrapping_add(1) << KEY_BITS) | key.0
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,534 slots")]
pub(super) const fn node_at(index: usize) -> NodeId {
    NodeId(index as u16)
}

#[cfg(test)]
mod tests {
    use super::super::search::LoadReader;
    use super::*;
    use proptest::prelude::*;

    const PLAIN: NodeStatus = NodeStatus { weight_milli: 1000, open: true, joining: false, standby: false };

    fn loads(n: usize) -> Loads {
        let loads = Loads::new(n);
        (0..n).for_each(|i| loads.set(node_at(i), PLAIN));
        loads
    }

    #[test]
    fn ties_go_to_the_first_at_or_after_the_start() {
        for n in [5, 64, 65, 200] {
            let loads = loads(n);
            assert_eq!(loads.least(3), Some(NodeId(3)));
            let _ = loads.add(NodeId(3));
            assert_eq!(loads.least(3), Some(NodeId(4)));
            assert_eq!(loads.least(n - 1), Some(node_at(n - 1)));
        }
    }

    #[test]
    fn weight_divides_the_load() {
        let loads = loads(2);
        loads.set(NodeId(1), NodeStatus { weight_milli: 4000, ..PLAIN });
        (0..3).for_each(|_| {
            let _ = loads.add(NodeId(1));
        });
        loads.add(NodeId(0));
        assert_eq!(loads.least(0), Some(NodeId(1)), "3/4 is less than 1");
    }

    #[test]
    fn a_finish_without_a_start_is_refused() {
        let loads = loads(1);
        assert!(!loads.sub(NodeId(0)));
        assert_eq!((loads.load(NodeId(0)), loads.key(NodeId(0))), (0, Key::of(0)));
    }

    #[test]
    fn closed_nodes_are_never_least_loaded() {
        for n in [3, 130] {
            let loads = loads(n);
            (0..n).for_each(|i| loads.set(node_at(i), NodeStatus { open: false, ..PLAIN }));
            assert_eq!(loads.least(0), None);
            assert!(!loads.any_below(Key::of(1)));
        }
    }

    #[test]
    fn minima_are_exact_after_concurrent_updates() {
        let loads = loads(200);
        std::thread::scope(|scope| {
            for thread in 0..2_usize {
                let loads = &loads;
                scope.spawn(move || {
                    for step in 0..40_000_usize {
                        let node = node_at((step * 7 + thread * 13) % 200);
                        loads.add(node);
                        std::hint::black_box(loads.least(step % 200));
                        assert!(loads.sub(node));
                    }
                });
            }
        });
        assert!((0..200).all(|i| loads.load(node_at(i)) == 0));
        assert_eq!(loads.least(77).map(|node| loads.key(node)), Some(Key::of(0)));
    }

    proptest! {
        /// The search agrees with a scan that reads every word, after any sequence of changes.
        #[test]
        fn search_matches_scan(
            n in 1_usize..200,
            steps in prop::collection::vec((0_usize..200, 0_u8..4, 1_u32..5_000), 0..300),
            start in 0_usize..200,
        ) {
            let loads = loads(n);
            for (node, what, weight_milli) in steps {
                let node = node_at(node % n);
                match what {
                    0 | 1 => {
                        let _ = loads.add(node);
                    }
                    2 => { let _ = loads.sub(node); }
                    _ => {
                        let (open, standby) = (weight_milli % 3 != 0, weight_milli % 5 == 0);
                        loads.set(node, NodeStatus { weight_milli, open, joining: false, standby });
                        loads.set_standby(node_at((node.index() + 1) % n), weight_milli % 7 == 0);
                    }
                }
                let start = start % n;
                prop_assert_eq!(loads.least(start), loads.least_without(start, |_| false));
                for bound in [Key::of(1), Key::of(3)] {
                    prop_assert_eq!(loads.any_below(bound), (0..n).any(|i| loads.word(i).key(0) < bound));
                }
            }
        }
    }
}
