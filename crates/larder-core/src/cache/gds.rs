//! Greedy-Dual-Size: what is cheap to fetch again, large or long unused leaves first.
//!
//! Pei Cao and Sandy Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997; the LARD simulation's node cache
//! (section 3.1). Each object p has a value
//!
//! ```text
//! H(p) = L + cost(p) / size(p)        set when p comes in and again at every use
//! ```
//!
//! The object with the least H leaves, and L rises to its H: what stays ages relative to what comes. With
//! [`GdsCost::One`] the hit ratio of objects is the goal, with [`GdsCost::Packets`] (2 + size/536) the traffic saved.
//!
//! Equal values leave in the order in which they were set, the earliest first. The paper leaves ties open; with this
//! rule objects of one size leave exactly as under LRU.
//!
//! The values sit in a binary heap with a back reference per object: a use, an insertion and an eviction are each
//! O(log n). H is a 64-bit float; when L passes 2^20 all values are lowered by L, which is exact there (the values
//! lie within a factor of two of L) and keeps size differences visible up to 4 GB objects however long a run is.

use super::slab::Slab;
use core::cmp::Ordering;
use core::hash::Hash;
/// The cost of fetching an object again, in Greedy-Dual-Size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GdsCost {
    /// 1 for every object: the best hit ratio.
    #[default]
    One,
    /// 2 + size/536, the packets a fetch sends and receives: fewest bytes fetched.
    Packets,
}

impl GdsCost {
    /// `cost / size` in 1/bytes; a size of 0 counts as 1.
    pub fn per_byte(self, size: u64) -> f64 {
        let size = size.max(1) as f64;
        match self {
            Self::One => 1.0 / size,
            Self::Packets => (2.0 + size / 536.0) / size,
        }
    }
}

/// L above which all values are lowered.
const LOWER_AT: f64 = 1_048_576.0;

/// An object's value: least leaves first.
#[derive(Clone, Copy, Debug)]
struct Rank {
    h: f64,
    seq: u64,
    slot: u32,
}

impl Rank {
    fn before(&self, other: &Self) -> bool {
        match self.h.total_cmp(&other.h) {
            Ordering::Less => true,
            Ordering::Equal => self.seq < other.seq,
            Ordering::Greater => false,
        }
    }
}

/// The heap of values. A slot's link is its place in the heap.
#[derive(Clone, Debug)]
pub(super) struct Gds<K> {
    cost: GdsCost,
    slab: Slab<K, u32>,
    heap: Vec<Rank>,
    inflation: f64,
    seq: u64,
}

impl<K: Copy + Eq + Hash> Gds<K> {
    pub(super) const fn new(cost: GdsCost) -> Self {
        Self { cost, slab: Slab::new(), heap: Vec::new(), inflation: 0.0, seq: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn size_of(&self, key: &K) -> Option<u64> {
        self.slab.find(key).map(|at| self.slab.slot(at).size)
    }

    /// See [`Slab::keys_from`].
    pub(super) fn keys_from(&self, from: usize, count: usize, keys: &mut Vec<K>) -> bool {
        self.slab.keys_from(from, count, keys)
    }

    /// The keys of all objects, in no order that means anything.
    pub(super) fn keys(&self) -> impl Iterator<Item = K> {
        self.slab.keys()
    }

    /// Notes a use; false if the object is not here.
    pub(super) fn touch(&mut self, key: &K) -> bool {
        let Some(slot) = self.slab.find(key) else { return false };
        let rank = self.rank(slot, self.slab.slot(slot).size);
        let place = self.slab.slot(slot).link as usize;
        self.heap[place] = rank;
        // Neither L nor the sequence ever falls, so the new value is the larger one.
        self.sift_down(place);
        true
    }

    /// Adds an object that is not here.
    pub(super) fn push(&mut self, key: K, size: u64) {
        let slot = self.slab.insert(key, size, self.heap.len() as u32);
        let rank = self.rank(slot, size);
        self.heap.push(rank);
        self.sift_up(self.heap.len() - 1);
    }

    /// Takes the object of least value out and raises L to that value.
    pub(super) fn pop(&mut self) -> Option<(K, u64)> {
        let least = self.heap.first()?.h;
        let slot = self.take(0);
        self.inflation = least;
        if self.inflation > LOWER_AT {
            self.lower();
        }
        Some((slot.0, slot.1))
    }

    /// Takes a certain object out and returns its size; L stays.
    pub(super) fn remove(&mut self, key: &K) -> Option<u64> {
        let at = self.slab.find(key)?;
        let place = self.slab.slot(at).link as usize;
        Some(self.take(place).1)
    }

    fn rank(&mut self, slot: u32, size: u64) -> Rank {
        self.seq += 1;
        Rank { h: self.inflation + self.cost.per_byte(size), seq: self.seq, slot }
    }

    fn take(&mut self, place: usize) -> (K, u64) {
        let rank = self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.note(place);
            self.sift_down(place);
            self.sift_up(place);
        }
        let slot = self.slab.remove(rank.slot);
        (slot.key, slot.size)
    }

    fn lower(&mut self) {
        for rank in &mut self.heap {
            rank.h -= self.inflation;
        }
        self.inflation = 0.0;
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.heap[place].before(&self.heap[parent]) {
                break;
            }
            self.heap.swap(place, parent);
            self.note(place);
            place = parent;
        }
        self.note(place);
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let left = 2 * place + 1;
            let Some(first) = self.heap.get(left) else { break };
            let right = left + 1;
            let child = match self.heap.get(right) {
                Some(second) if second.before(first) => right,
                _ => left,
            };
            if !self.heap[child].before(&self.heap[place]) {
                break;
            }
            self.heap.swap(place, child);
            self.note(place);
            place = child;
        }
        if place < self.heap.len() {
            self.note(place);
        }
    }

    fn note(&mut self, place: usize) {
        self.slab.slot_mut(self.heap[place].slot).link = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_of_two_leaves_first() {
        let mut gds = Gds::new(GdsCost::One);
        gds.push(1_u64, 10);
        gds.push(2, 1_000);
        assert_eq!(gds.pop(), Some((2, 1_000)));
    }

    #[test]
    fn a_large_object_outlives_small_ones_that_have_aged() {
        // L rises to 1/100 with the first eviction; a 1,000-byte object that comes then has H = 0.011 and a
        // 100-byte object from before has 0.010.
        let mut gds = Gds::new(GdsCost::One);
        gds.push(1_u64, 100);
        gds.push(2, 100);
        assert_eq!(gds.pop(), Some((1, 100)));
        gds.push(3, 1_000);
        assert_eq!(gds.pop(), Some((2, 100)));
    }

    #[test]
    fn lowering_keeps_the_order() {
        let mut gds = Gds::new(GdsCost::One);
        gds.inflation = LOWER_AT + 1.0;
        gds.push(1_u64, 4_000_000_000);
        gds.push(2, 3_999_999_999);
        gds.push(3, 2);
        gds.push(4, 1);
        let order: Vec<u64> = core::iter::from_fn(|| gds.pop()).map(|(key, _)| key).collect();
        assert_eq!(order, [1, 2, 3, 4]);
        assert!(gds.inflation < 2.0);
    }
}
