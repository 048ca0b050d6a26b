//! Least recently used: the object that was unused for the longest time is evicted first.
//!
//! A linked list through the slots is the order of use; every operation is O(1). The LARD paper combines it with a
//! limit: files above 500 KB are never cached (section 3.1). That limit is `object_max` of
//! [`ByteCache`](super::ByteCache).

use super::slab::Slab;
use alloc::vec::Vec;
use core::hash::Hash;

const NONE: u32 = u32::MAX;

/// The neighbours of an object in the order of use.
#[derive(Clone, Copy, Debug)]
struct LruLink {
    newer: u32,
    older: u32,
}

/// The order of use.
#[derive(Clone, Debug)]
pub(super) struct Lru<K> {
    slab: Slab<K, LruLink>,
    newest: u32,
    oldest: u32,
}

impl<K: Copy + Eq + Hash> Lru<K> {
    pub(super) const fn new() -> Self {
        Self { slab: Slab::new(), newest: NONE, oldest: NONE }
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
        let Some(at) = self.slab.find(key) else { return false };
        if at != self.newest {
            self.unlink(at);
            self.link_newest(at);
        }
        true
    }

    /// Adds an object that is not stored, as the newest.
    pub(super) fn push(&mut self, key: K, size: u64) {
        let at = self.slab.insert(key, size, LruLink { newer: NONE, older: NONE });
        self.link_newest(at);
    }

    /// Removes the oldest object.
    pub(super) fn pop(&mut self) -> Option<(K, u64)> {
        if self.oldest == NONE {
            return None;
        }
        let at = self.oldest;
        self.unlink(at);
        let slot = self.slab.remove(at);
        Some((slot.key, slot.size))
    }

    /// Removes an object and returns its size.
    pub(super) fn remove(&mut self, key: &K) -> Option<u64> {
        let at = self.slab.find(key)?;
        self.unlink(at);
        Some(self.slab.remove(at).size)
    }

    fn link_newest(&mut self, at: u32) {
        self.slab.slot_mut(at).link = LruLink { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = at,
            newest => self.slab.slot_mut(newest).link.newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let LruLink { newer, older } = self.slab.slot(at).link;
        match newer {
            NONE => self.newest = older,
            newer => self.slab.slot_mut(newer).link.older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slab.slot_mut(older).link.newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_object_is_not_evicted_next() {
        let mut lru = Lru::new();
        for key in 1..=3_u64 {
            lru.push(key, 10);
        }
        assert!(lru.touch(&1));
        assert_eq!(lru.pop(), Some((2, 10)));
        assert_eq!(lru.remove(&1), Some(10));
        assert_eq!(lru.pop(), Some((3, 10)));
        assert_eq!(lru.pop(), None);
    }
}
