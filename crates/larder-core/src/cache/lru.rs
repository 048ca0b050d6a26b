//! Least recently used: the object that was not asked for the longest leaves first.
//!
//! A list threaded through the slots holds the order, newest at one end; every operation is O(1). The LARD paper
//! runs it with files above 500 KB never cached (section 3.1): that limit is the facade's `object_max`.

use super::slab::Slab;
use core::hash::Hash;

const NONE: u32 = u32::MAX;

/// Neighbours of an object in the order of use.
#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

/// The order of use.
#[derive(Clone, Debug)]
pub(super) struct Lru<K> {
    slab: Slab<K, Link>,
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
        let Some(at) = self.slab.find(key) else { return false };
        if at != self.newest {
            self.unlink(at);
            self.link_newest(at);
        }
        true
    }

    /// Adds an object that is not here, as the newest.
    pub(super) fn push(&mut self, key: K, size: u64) {
        let at = self.slab.insert(key, size, Link { newer: NONE, older: NONE });
        self.link_newest(at);
    }

    /// Takes the oldest object out.
    pub(super) fn pop(&mut self) -> Option<(K, u64)> {
        if self.oldest == NONE {
            return None;
        }
        let at = self.oldest;
        self.unlink(at);
        let slot = self.slab.remove(at);
        Some((slot.key, slot.size))
    }

    /// Takes a certain object out and returns its size.
    pub(super) fn remove(&mut self, key: &K) -> Option<u64> {
        let at = self.slab.find(key)?;
        self.unlink(at);
        Some(self.slab.remove(at).size)
    }

    fn link_newest(&mut self, at: u32) {
        self.slab.slot_mut(at).link = Link { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = at,
            newest => self.slab.slot_mut(newest).link.newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Link { newer, older } = self.slab.slot(at).link;
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
    fn a_use_saves_an_object_from_leaving_next() {
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
