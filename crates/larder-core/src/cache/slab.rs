//! The cached objects, each in a numbered slot, found by key.
//!
//! A replacement policy keeps its own order as slot numbers (4 bytes each) and one link value per slot. So an object
//! costs its slot plus about 5 bytes of hash table. The hash function is fixed, so that equal runs behave equally, and no
//! list is in hash order.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash, Hasher};
use hashbrown::HashTable;

/// The objects in numbered slots. `L` is the policy's link value of each object.
#[derive(Clone, Debug)]
pub(super) struct Slab<K, L> {
    index: HashTable<u32>,
    slots: Vec<SlabSlot<K, L>>,
    free: Vec<u32>,
}

/// One cached object.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabSlot<K, L> {
    pub(super) key: K,
    pub(super) size: u64,
    pub(super) link: L,
}

impl<K: Copy + Eq + Hash, L: Copy> Slab<K, L> {
    /// The largest number of objects: a slot number must fit in 32 bits, and the largest number is the policies'
    /// "none".
    pub(super) const LEN_MAX: usize = u32::MAX as usize - 1;

    pub(super) const fn new() -> Self {
        Self { index: HashTable::new(), slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, key: &K) -> Option<u32> {
        self.index.find(hash_of(key), |&at| self.slots[at as usize].key == *key).copied()
    }

    pub(super) fn slot(&self, at: u32) -> &SlabSlot<K, L> {
        &self.slots[at as usize]
    }

    pub(super) fn slot_mut(&mut self, at: u32) -> &mut SlabSlot<K, L> {
        &mut self.slots[at as usize]
    }

    /// Adds an object whose key is not present. The caller keeps the number of objects below [`Self::LEN_MAX`].
    pub(super) fn insert(&mut self, key: K, size: u64, link: L) -> u32 {
        debug_assert!(self.find(&key).is_none(), "a key is inserted twice");
        let slot = SlabSlot { key, size, link };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let Self { index, slots, .. } = self;
        index.insert_unique(hash_of(&key), at, |&other| hash_of(&slots[other as usize].key));
        at
    }

    /// Returns the memory of the tables in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<SlabSlot<K, L>>();
        slots + self.free.capacity() * size_of::<u32>() + self.index.allocation_size()
    }

    /// Returns the keys of all objects, in an arbitrary order.
    pub(super) fn keys(&self) -> impl Iterator<Item = K> {
        self.index.iter().map(|&at| self.slots[at as usize].key)
    }

    /// Returns the slot numbers of all objects, in an arbitrary order.
    pub(super) fn positions(&self) -> impl Iterator<Item = u32> {
        self.index.iter().copied()
    }

    /// Appends the keys of the objects in the slots `from..from + count`. Returns false if there are no slots after
    /// them.
    pub(super) fn keys_from(&self, from: usize, count: usize, keys: &mut Vec<K>) -> bool {
        let end = from.saturating_add(count).min(self.slots.len());
        for at in from..end {
            let key = self.slots[at].key;
            // A free slot still has the key of its last object.
            if self.find(&key) == Some(at as u32) {
                keys.push(key);
            }
        }
        end < self.slots.len()
    }

    /// Removes the object at `at` and returns it; its slot number is reused later.
    pub(super) fn remove(&mut self, at: u32) -> SlabSlot<K, L> {
        let slot = self.slots[at as usize];
        if let Ok(found) = self.index.find_entry(hash_of(&slot.key), |&other| other == at) {
            found.remove();
            self.free.push(at);
        }
        slot
    }
}

fn hash_of<K: Hash>(key: &K) -> u64 {
    FoldHasherBuilder.hash_one(key)
}

/// Builds [`FoldHasher`]s.
#[derive(Clone, Copy, Debug, Default)]
struct FoldHasherBuilder;

impl BuildHasher for FoldHasherBuilder {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher(0x243F_6A88_85A3_08D3)
    }
}

/// A folded-multiply hasher: `state = high(p) ^ low(p)`, `p = (state ^ word) * odd constant` in 128 bits. Keys are
/// hashes or small indices already, so one multiplication per word spreads them well enough.
struct FoldHasher(u64);

impl FoldHasher {
    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word) ^ chunk.len() as u64);
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_keys_stay_findable() {
        let mut slab: Slab<u64, ()> = Slab::new();
        for round in 0..5_u64 {
            let at: Vec<u32> = (0..1_000).map(|n| slab.insert(round * 1_000 + n, n, ())).collect();
            assert_eq!(slab.len(), 1_000);
            for (n, &at) in at.iter().enumerate() {
                assert_eq!(slab.find(&(round * 1_000 + n as u64)), Some(at));
            }
            for at in at {
                slab.remove(at);
            }
            assert_eq!(slab.find(&(round * 1_000)), None);
        }
        assert_eq!(slab.slots.len(), 1_000, "no slot is allocated while one is free");
    }

    #[test]
    fn consecutive_keys_spread_over_both_ends_of_the_hash() {
        // The table uses low bits for the bucket and the top seven for the tag.
        let mut low = [0_u32; 64];
        let mut top = [0_u32; 64];
        for key in 0..64_000_u64 {
            let hash = hash_of(&key);
            low[(hash & 63) as usize] += 1;
            top[(hash >> 58) as usize] += 1;
        }
        for count in low.into_iter().chain(top) {
            assert!((800..1_200).contains(&count), "{count} of 1000 expected");
        }
    }
}
