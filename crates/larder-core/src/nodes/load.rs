//! How loaded each node is, shared by all threads, and the least loaded node without looking at all of them.
//!
//! A node is one 64-bit word: its load, its weight's reciprocal and two flags, so that one atomic addition changes
//! the load and reads the rest with it. Loads are compared as `load / weight`, in steps of 1/4096 of a connection.
//!
//! Up to [`BLOCK`] nodes the least loaded one is found by reading their words, which lie side by side (64 nodes are
//! eight cache lines). Beyond that every block of 64 keeps its minimum, so the search reads n/64 + 64 words.
//! Where several switches share the nodes, what the others have at a node is added to its own count wherever loads are
//! compared: a second array beside the words, read only where there are other switches.
//!
//! A block's minimum is exact while one thread acts at a time. When several act at once it may lag behind by the
//! updates in flight; the search notices a minimum that its block does not hold and repairs it.

use crate::id::NodeId;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Nodes whose minimum is kept together.
pub const BLOCK: usize = 64;

/// `load / weight` in 1/4096 of a connection; [`Key::CLOSED`] for a node that takes no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    /// The key as a number, 48 bits.
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// The key of such a number.
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits & KEY_MASK)
    }

    /// The key of a node that takes no requests: above every other.
    pub const CLOSED: Self = Self(KEY_MASK);

    /// The key of `connections` on a node of weight 1.
    pub const fn of(connections: u32) -> Self {
        Self((connections as u64) << 12)
    }

    /// This and `more`.
    pub const fn plus(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// This and `more`, a number as [`Key::get`] gives it; at most [`Key::CLOSED`] less one.
    pub(crate) const fn plus_units(self, more: u64) -> Self {
        let sum = self.0.saturating_add(more);
        if sum < KEY_MASK { Self(sum) } else { Self(KEY_MASK - 1) }
    }

    /// The mean of `outstanding` requests over nodes whose weights (1000 = 1.0) sum to `weight_sum`.
    pub const fn mean(outstanding: u32, weight_sum: u64) -> Self {
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
/// A backup that takes no requests in the group of all.
const STANDBY: u64 = 1 << 61;
const JOINING: u64 = 1 << 62;
const CLOSED: u64 = 1 << 63;

/// One node's word, taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(u64);

impl Word {
    pub(super) const fn load(self) -> u32 {
        (self.0 & LOAD_MASK) as u32
    }

    pub(super) const fn is_joining(self) -> bool {
        self.0 & JOINING != 0
    }

    /// What changes from request to request: the load, and in bit 32 whether the node is joining.
    pub(super) const fn fleeting(self) -> u64 {
        self.0 & LOAD_MASK | (self.is_joining() as u64) << 32
    }

    /// This word with another's [`Word::fleeting`].
    pub(super) const fn with_fleeting(self, fleeting: u64) -> Self {
        let joining = if fleeting >> 32 & 1 == 1 { JOINING } else { 0 };
        Self(self.0 & !(LOAD_MASK | JOINING) | fleeting & LOAD_MASK | joining)
    }

    /// The key of so many requests more.
    pub(super) const fn more(self, key: Key, requests: u32) -> Key {
        if key.0 == KEY_MASK {
            return key;
        }
        Key(key.0 + requests as u64 * ((self.0 >> FACTOR_SHIFT) & FACTOR_MASK))
    }

    /// The word as another group than that of all sees it, in which standing by is another matter.
    pub(super) const fn in_a_group(self) -> Self {
        Self(self.0 & !STANDBY)
    }

    /// `load / weight`, where other switches have `elsewhere` requests at the node.
    pub(super) const fn key(self, elsewhere: u32) -> Key {
        if self.0 & (CLOSED | STANDBY) != 0 {
            return Key::CLOSED;
        }
        Key(((self.0 & LOAD_MASK) + elsewhere as u64) * ((self.0 >> FACTOR_SHIFT) & FACTOR_MASK))
    }
}

/// What kind of node a word describes, beside its load.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Relative capacity, 1000 = 1.0; range 1 to 100,000.
    pub weight_milli: u32,
    /// Takes requests.
    pub open: bool,
    /// Gets new targets at a limited rate only.
    pub joining: bool,
    /// Is a backup that takes no requests in the group of all.
    pub standby: bool,
}

/// Where a node's word lies: neighbours lie on different cache lines, so that threads that serve different nodes of a
/// small cluster do not share one, while a block is still read in eight lines.
const fn place(index: usize) -> usize {
    (index & !(BLOCK - 1)) | ((index % 8) * 8 + (index % BLOCK) / 8)
}

/// The loads of all nodes.
#[derive(Debug)]
pub struct Loads {
    words: Box<[AtomicU64]>,
    minima: Box<[AtomicU64]>,
    used: AtomicUsize,
    /// Requests of other switches at each node, laid out as the words are.
    elsewhere: Box<[AtomicU32]>,
    /// Whether there are other switches.
    shared: AtomicBool,
}

impl Loads {
    /// Room for `nodes_max` nodes, all of them closed.
    pub fn new(nodes_max: usize) -> Self {
        let blocks = nodes_max.div_ceil(BLOCK);
        Self {
            words: (0..blocks * BLOCK).map(|_| AtomicU64::new(CLOSED)).collect(),
            minima: (0..blocks).map(|_| AtomicU64::new(KEY_MASK)).collect(),
            used: AtomicUsize::new(0),
            elsewhere: (0..blocks * BLOCK).map(|_| AtomicU32::new(0)).collect(),
            shared: AtomicBool::new(false),
        }
    }

    /// Sets how many requests other switches have at each node, by slot; `None` where there are no others. Slots beyond
    /// the list have none.
    pub(super) fn set_elsewhere(&self, requests: Option<&[u32]>) {
        for index in 0..self.elsewhere.len() {
            let there = requests.and_then(|requests| requests.get(index)).copied().unwrap_or(0);
            self.elsewhere[place(index)].store(there, Ordering::Relaxed);
        }
        self.shared.store(requests.is_some(), Ordering::Release);
        if self.slots() > BLOCK {
            self.repair();
        }
    }

    /// Requests of other switches at a slot.
    #[inline]
    pub(super) fn elsewhere(&self, index: usize) -> u32 {
        if self.shared.load(Ordering::Relaxed) {
            self.elsewhere[place(index)].load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Slots in use: every node's index is below this.
    pub fn slots(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets a slot's standing; its load stays. Extends the slots in use.
    pub fn set(&self, node: NodeId, standing: Standing) {
        let weight = u64::from(standing.weight_milli.max(1));
        let factor = ((4_096_000 + weight / 2) / weight).clamp(1, FACTOR_MASK);
        let mut rest = factor << FACTOR_SHIFT;
        if !standing.open {
            rest |= CLOSED;
        }
        if standing.joining {
            rest |= JOINING;
        }
        if standing.standby {
            rest |= STANDBY;
        }
        self.used.fetch_max(node.index() + 1, Ordering::Relaxed);
        self.update(node, |old| old & LOAD_MASK | rest);
    }

    /// Sets whether a node stands by in the group of all.
    pub(super) fn set_standby(&self, node: NodeId, standby: bool) {
        self.update(node, |old| if standby { old | STANDBY } else { old & !STANDBY });
    }

    fn update(&self, node: NodeId, change: impl Fn(u64) -> u64) {
        let word = &self.words[place(node.index())];
        let mut old = word.load(Ordering::Relaxed);
        while let Err(seen) =
            word.compare_exchange_weak(old, change(old), Ordering::AcqRel, Ordering::Relaxed)
        {
            old = seen;
        }
        self.rescan(node.index() / BLOCK);
    }

    /// One more request in flight at `node`; gives its key before.
    #[inline]
    pub fn add(&self, node: NodeId) -> Key {
        self.count(node).key(self.elsewhere(node.index()))
    }

    /// One more request in flight at `node`; gives its word before.
    #[inline]
    pub(super) fn count(&self, node: NodeId) -> Word {
        let old = Word(self.words[place(node.index())].fetch_add(1, Ordering::Relaxed));
        self.changed(node, old, Word(old.0 + 1));
        old
    }

    /// One request less in flight at `node`. False, and nothing changes, if none was.
    #[must_use]
    pub fn sub(&self, node: NodeId) -> bool {
        let word = &self.words[place(node.index())];
        let old = Word(word.fetch_sub(1, Ordering::Relaxed));
        if old.load() == 0 {
            word.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.changed(node, old, Word(old.0 - 1));
        true
    }

    /// Requests in flight at `node`, without those of other switches.
    pub fn load(&self, node: NodeId) -> u32 {
        self.word(node.index()).load()
    }

    /// `load / weight` of `node`.
    pub fn key(&self, node: NodeId) -> Key {
        self.word(node.index()).key(self.elsewhere(node.index()))
    }

    /// Whether `node` takes requests, or would if it did not stand by.
    pub fn is_open(&self, node: NodeId) -> bool {
        node.index() < self.slots() && self.word(node.index()).0 & CLOSED == 0
    }

    /// Whether `node` takes requests in the group of all.
    pub fn is_eligible(&self, node: NodeId) -> bool {
        node.index() < self.slots() && self.word(node.index()).0 & (CLOSED | STANDBY) == 0
    }

    /// Whether `node` gets new targets at a limited rate only.
    pub fn is_joining(&self, node: NodeId) -> bool {
        self.word(node.index()).is_joining()
    }

    /// The word of a slot.
    pub(super) fn word(&self, index: usize) -> Word {
        Word(self.words[place(index)].load(Ordering::Relaxed))
    }

    /// The least key of a block, which may lag behind.
    pub(super) fn minimum(&self, block: usize) -> Key {
        Key(self.minima[block].load(Ordering::Relaxed) & KEY_MASK)
    }

    /// Makes all minima exact again.
    pub(super) fn repair(&self) {
        (0..self.slots().div_ceil(BLOCK)).for_each(|block| self.rescan(block));
    }

    /// Keeps the block's minimum after one node's key went from `old` to `new`.
    #[inline]
    fn changed(&self, node: NodeId, old: Word, new: Word) {
        if self.slots() > BLOCK {
            let elsewhere = self.elsewhere(node.index());
            self.keep_minimum(node, old.key(elsewhere), new.key(elsewhere));
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
        let keys = (block * BLOCK..end).map(|index| self.word(index).key(self.elsewhere(index)));
        keys.min().unwrap_or(Key::CLOSED)
    }
}

/// A minimum with the next version, so that an exchange against a changed word cannot succeed by chance.
const fn stamp(seen: u64, key: Key) -> u64 {
    ((seen >> KEY_BITS).wrapping_add(1) << KEY_BITS) | key.0
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,534 slots")]
pub(super) const fn node_at(index: usize) -> NodeId {
    NodeId(index as u16)
}

#[cfg(test)]
mod tests {
    use super::super::search::Words;
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Standing = Standing { weight_milli: 1000, open: true, joining: false, standby: false };

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
        loads.set(NodeId(1), Standing { weight_milli: 4000, ..PLAIN });
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
    fn nobody_is_least_of_closed_nodes() {
        for n in [3, 130] {
            let loads = loads(n);
            (0..n).for_each(|i| loads.set(node_at(i), Standing { open: false, ..PLAIN }));
            assert_eq!(loads.least(0), None);
            assert!(!loads.any_below(Key::of(1)));
        }
    }

    #[test]
    fn threads_leave_exact_minima_behind() {
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
        /// The search agrees with a scan that reads every word, whatever happened before.
        #[test]
        fn the_search_is_a_scan(
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
                        loads.set(node, Standing { weight_milli, open, joining: false, standby });
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
