//! A mirror of the nodes' caches, as far as the front-end knows: copies of targets at nodes, in the order of use.
//!
//! A copy is a target at a node. Copies are in numbered slots, which are found by target. A linked list through the
//! slots is the order of use over all nodes. Every operation is O(1), or O(copies of the target). A full mirror
//! removes the copy that was unused for the longest time.

use crate::id::{NodeId, TargetId};
use alloc::vec::Vec;
use hashbrown::HashTable;

const NONE: u32 = u32::MAX;

/// The largest number of copies in a mirror: a slot number must fit in 32 bits, and the largest number means "none".
const COPIES_LIMIT: usize = u32::MAX as usize - 1;

/// A copy of a target at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CachedCopy {
    pub(super) target: TargetId,
    pub(super) node: NodeId,
    /// The membership epoch at which the copy was recorded or last used.
    pub(super) epoch: u32,
    /// The number of copies that were evicted for this one, as far as known. 0 while the copy is expected and the
    /// node has not confirmed it.
    pub(super) size: u32,
}

#[derive(Clone, Copy, Debug)]
struct CopySlot {
    copy: CachedCopy,
    newer: u32,
    older: u32,
}

/// The copies, in the order of use.
#[derive(Debug)]
pub(super) struct Mirror {
    index: HashTable<u32>,
    slots: Vec<CopySlot>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    copies_max: usize,
}

impl Mirror {
    /// Creates an empty mirror of at most `copies_max` copies, at least 1.
    pub(super) fn new(copies_max: usize) -> Self {
        Self {
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            copies_max: copies_max.clamp(1, COPIES_LIMIT),
        }
    }

    /// Returns the number of copies.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the copies of a target, in an arbitrary order.
    pub(super) fn of(&self, target: TargetId) -> impl Iterator<Item = CachedCopy> {
        let found = self.index.iter_hash(target.0);
        found.map(|at| self.slots[*at as usize].copy).filter(move |copy| copy.target == target)
    }

    /// Returns all copies, the one unused for the longest time first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = CachedCopy> {
        let slot = |at: u32| (at != NONE).then(|| &self.slots[at as usize]);
        core::iter::successors(slot(self.oldest), move |last| slot(last.newer)).map(|slot| slot.copy)
    }

    /// Records a use: the copy becomes the newest. If there is no copy, an expected one is added.
    pub(super) fn record_use(&mut self, target: TargetId, node: NodeId, epoch: u32) {
        match self.find(target, node) {
            Some(at) => {
                self.slots[at as usize].copy.epoch = epoch;
                self.renew(at);
            }
            None => self.put(CachedCopy { target, node, epoch, size: 0 }),
        }
    }

    /// Stores a copy as the newest, in place of the copy of the same target and node.
    pub(super) fn record_store(&mut self, copy: CachedCopy) {
        match self.find(copy.target, copy.node) {
            Some(at) => {
                self.slots[at as usize].copy = copy;
                self.renew(at);
            }
            None => self.put(copy),
        }
    }

    /// Makes a copy the newest.
    fn renew(&mut self, at: u32) {
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
    }

    /// Adds a copy that does not exist yet.
    fn put(&mut self, copy: CachedCopy) {
        if self.len() >= self.copies_max && self.oldest != NONE {
            self.remove_at(self.oldest);
        }
        let slot = CopySlot { copy, newer: NONE, older: NONE };
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
        index.insert_unique(copy.target.0, at, |&other| slots[other as usize].copy.target.0);
        self.link(at);
    }

    /// Removes and returns a copy; `None` if it does not exist.
    pub(super) fn remove(&mut self, target: TargetId, node: NodeId) -> Option<CachedCopy> {
        let at = self.find(target, node)?;
        self.remove_at(at);
        Some(self.slots[at as usize].copy)
    }

    /// Returns the copy of a target at a node.
    pub(super) fn at(&self, target: TargetId, node: NodeId) -> Option<CachedCopy> {
        self.find(target, node).map(|at| self.slots[at as usize].copy)
    }

    fn find(&self, target: TargetId, node: NodeId) -> Option<u32> {
        let is = |at: &u32| {
            let copy = &self.slots[*at as usize].copy;
            copy.target == target && copy.node == node
        };
        self.index.find(target.0, is).copied()
    }

    fn remove_at(&mut self, at: u32) {
        self.unlink(at);
        let target = self.slots[at as usize].copy.target;
        if let Ok(found) = self.index.find_entry(target.0, |&other| other == at) {
            found.remove();
            self.free.push(at);
        }
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = at,
            newest => self.slots[newest as usize].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let CopySlot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy(target: u64, node: u16) -> CachedCopy {
        CachedCopy { target: TargetId(target), node: NodeId(node), epoch: 1, size: 0 }
    }

    proptest! {
        /// A mirror behaves like a list with the same operations.
        #[test]
        fn mirror_agrees_with_a_list(
            steps in prop::collection::vec((0_u64..12, 0_u16..4, any::<bool>()), 0..200),
            copies_max in 1_usize..20,
        ) {
            let mut mirror = Mirror::new(copies_max);
            let mut list: Vec<CachedCopy> = Vec::new();
            for (target, node, put) in steps {
                let one = copy(target, node);
                let there = list.contains(&one);
                list.retain(|other| *other != one);
                if put {
                    mirror.record_use(one.target, one.node, one.epoch);
                    list.push(one);
                    let excess = list.len().saturating_sub(copies_max);
                    list.drain(..excess);
                } else {
                    prop_assert_eq!(mirror.remove(one.target, one.node), there.then_some(one));
                }
                prop_assert_eq!(mirror.oldest_first().collect::<Vec<_>>(), list.clone());
                prop_assert_eq!(mirror.len(), list.len());
                for target in (0..12).map(TargetId) {
                    let mut nodes: Vec<u16> = mirror.of(target).map(|copy| copy.node.0).collect();
                    nodes.sort_unstable();
                    let mut wanted: Vec<u16> =
                        list.iter().filter(|copy| copy.target == target).map(|copy| copy.node.0).collect();
                    wanted.sort_unstable();
                    prop_assert_eq!(nodes, wanted);
                }
            }
            prop_assert!(mirror.slots.len() <= copies_max, "slots are used again");
        }
    }
}
