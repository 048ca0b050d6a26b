//! Greedy-Dual-Size: objects that are cheap to fetch, large or unused for a long time are evicted first.
//!
//! Pei Cao and Sandy Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997; the LARD simulation's node cache (section 3.1).
//! Each object p has a value
//!
//! ```text
//! H(p) = L + cost(p) / size(p)        set when p comes in and again at every use
//! ```
//!
//! The object with the lowest H is evicted, and L rises to its H, so that stored objects age relative to new ones.
//! [`GdsCost::One`] maximises the hit ratio of objects; [`GdsCost::Packets`] (2 + size/536) minimises traffic.
//!
//! Objects with equal values are evicted in the order in which the values were set, the earliest first. The paper does not define
//! ties; with this rule objects of one size are evicted exactly as under LRU.
//!
//! The values are in a binary heap with a back reference per object: a use, an insertion and an eviction are each O(log n). H is a
//! 64-bit float. When L passes 2^20, all values are lowered by L, which is exact there (the values are within a factor of two of
//! L). Size differences up to 4 GB objects therefore stay visible in a run of any length.

use super::slab::Slab;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::hash::Hash;
/// The cost of fetching an object again, in Greedy-Dual-Size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GdsCost {
    /// 1 for every object: the best hit ratio.
    #[default]
    One,
    /// 2 + size/536, the packets that a fetch sends and receives: the fewest bytes fetched.
    Packets,
}

impl GdsCost {
    /// Returns `cost / size` in 1/bytes; a size of 0 counts as 1.
    pub fn per_byte(self, size: u64) -> f64 {
        let size = size.max(1) as f64;
        match self {
            Self::One => 1.0 / size,
            Self::Packets => (2.0 + size / 536.0) / size,
        }
    }
}

/// The value of L above which all values are lowered.
const LOWER_AT: f64 = 1_048_576.0;

/// An object's value in the heap; the lowest value is evicted first.
#[derive(Clone, Copy, Debug)]
struct HeapEntry {
    h: f64,
    seq: u64,
    slot: u32,
}

impl HeapEntry {
    fn before(&self, other: &Self) -> bool {
        match self.h.total_cmp(&other.h) {
            Ordering::Less => true,
            Ordering::Equal => self.seq < other.seq,
            Ordering::Greater => false,
        }
    }
}

/// The heap of values. A slot's link is its position in the heap.
#[derive(Clone, Debug)]
pub(super) struct Gds<K> {
    cost: GdsCost,
    slab: Slab<K, u32>,
    heap: Vec<HeapEntry>,
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

    /// Appends keys; see [`Slab::keys_from`].
    pub(super) fn keys_from(&self, from: usize, count: usize, keys: &mut Vec<K>) -> bool {
        self.slab.keys_from(from, count, keys)
    }

    /// Returns the keys of all objects, in an arbitrary order.
    pub(super) fn keys(&self) -> impl Iterator<Item = K> {
        self.slab.keys()
    }

    /// Records a use. Returns false if the object is not stored.
    pub(super) fn touch(&mut self, key: &K) -> bool {
        let Some(slot) = self.slab.find(key) else { return false };
        let rank = self.rank(slot, self.slab.slot(slot).size);
        let place = self.slab.slot(slot).link as usize;
        self.heap[place] = rank;
        // Neither L nor the sequence ever falls, so the new value is larger.
        self.sift_down(place);
        true
    }

    /// Adds an object that is not stored.
    pub(super) fn push(&mut self, key: K, size: u64) {
        let slot = self.slab.insert(key, size, self.heap.len() as u32);
        let rank = self.rank(slot, size);
        self.heap.push(rank);
        self.sift_up(self.heap.len() - 1);
    }

    /// Removes the object with the lowest value and raises L to that value.
    pub(super) fn pop(&mut self) -> Option<(K, u64)> {
        let least = self.heap.first()?.h;
        let slot = self.remove_at(0);
        self.inflation = least;
        if self.inflation > LOWER_AT {
            self.lower();
        }
        Some((slot.0, slot.1))
    }

    /// Removes an object and returns its size; L stays.
    pub(super) fn remove(&mut self, key: &K) -> Option<u64> {
        let at = self.slab.find(key)?;
        let place = self.slab.slot(at).link as usize;
        Some(self.remove_at(place).1)
    }

    fn rank(&mut self, slot: u32, size: u64) -> HeapEntry {
        self.seq += 1;
        HeapEntry { h: self.inflation + self.cost.per_byte(size), seq: self.seq, slot }
    }

    fn remove_at(&mut self, place: usize) -> (K, u64) {
        let rank = self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.update_link(place);
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
            self.update_link(place);
            place = parent;
        }
        self.update_link(place);
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
            self.update_link(place);
            place = child;
        }
        if place < self.heap.len() {
            self.update_link(place);
        }
    }

    fn update_link(&mut self, place: usize) {
        self.slab.slot_mut(self.heap[place].slot).link = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_of_two_objects_is_evicted_first() {
        let mut gds = Gds::new(GdsCost::One);
        gds.push(1_u64, 10);
        gds.push(2, 1_000);
        assert_eq!(gds.pop(), Some((2, 1_000)));
    }

    #[test]
    fn large_object_outlives_aged_small_ones() {
        // L rises to 1/100 with the first eviction; a 1,000-byte object that comes then has H = 0.011, and a
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
