//! What the nodes' caches hold, as far as the front-end knows: copies of targets at nodes, in the order of use.
//!
//! A copy is a target at a node. Copies lie in numbered slots, found by their target, and a list threaded through the
//! slots holds the order of use over all nodes. Every operation is O(1), or O(copies of the target). A full
//! mirror forgets the copy that was not used the longest.

use crate::id::{NodeId, TargetId};
use hashbrown::HashTable;

const NONE: u32 = u32::MAX;

/// Most copies a mirror holds: a slot number must fit in 32 bits, and the largest stands for none.
const COPIES_LIMIT: usize = u32::MAX as usize - 1;

/// A target at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) target: TargetId,
    pub(super) node: NodeId,
    /// The membership epoch at which it was put down or used last.
    pub(super) epoch: u32,
    /// How many copies had to leave for it, as far as that is known; 0 while it is expected and the node has not said that it
    /// is there.
    pub(super) size: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    copy: Copy,
    newer: u32,
    older: u32,
}

/// The copies, in the order of use.
#[derive(Debug)]
pub(super) struct Mirror {
    index: HashTable<u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    copies_max: usize,
}

impl Mirror {
    /// An empty mirror of at most `copies_max` copies, at least 1.
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

    /// Copies held.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The copies of a target, in no order that may matter.
    pub(super) fn of(&self, target: TargetId) -> impl Iterator<Item = Copy> {
        let found = self.index.iter_hash(target.0);
        found.map(|at| self.slots[*at as usize].copy).filter(move |copy| copy.target == target)
    }

    /// All copies, the one not used the longest first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = Copy> {
        let slot = |at: u32| (at != NONE).then(|| &self.slots[at as usize]);
        core::iter::successors(slot(self.oldest), move |last| slot(last.newer)).map(|slot| slot.copy)
    }

    /// Notes a use: the copy is now the newest, and is put down as expected if it was not there.
    pub(super) fn used(&mut self, target: TargetId, node: NodeId, epoch: u32) {
        match self.find(target, node) {
            Some(at) => {
                self.slots[at as usize].copy.epoch = epoch;
                self.renew(at);
            }
            None => self.put(Copy { target, node, epoch, size: 0 }),
        }
    }

    /// Puts a copy down as the newest, in place of the same one if it was there.
    pub(super) fn stored(&mut self, copy: Copy) {
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

    /// Puts a copy down that is not there.
    fn put(&mut self, copy: Copy) {
        if self.len() >= self.copies_max && self.oldest != NONE {
            self.take_out(self.oldest);
        }
        let slot = Slot { copy, newer: NONE, older: NONE };
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

    /// Forgets a copy and gives it back; `None` if it is not there.
    pub(super) fn remove(&mut self, target: TargetId, node: NodeId) -> Option<Copy> {
        let at = self.find(target, node)?;
        self.take_out(at);
        Some(self.slots[at as usize].copy)
    }

    /// The copy of a target at a node.
    pub(super) fn at(&self, target: TargetId, node: NodeId) -> Option<Copy> {
        self.find(target, node).map(|at| self.slots[at as usize].copy)
    }

    fn find(&self, target: TargetId, node: NodeId) -> Option<u32> {
        let is = |at: &u32| {
            let copy = &self.slots[*at as usize].copy;
            copy.target == target && copy.node == node
        };
        self.index.find(target.0, is).copied()
    }

    fn take_out(&mut self, at: u32) {
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
        let Slot { newer, older, .. } = self.slots[at as usize];
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

    fn copy(target: u64, node: u16) -> Copy {
        Copy { target: TargetId(target), node: NodeId(node), epoch: 1, size: 0 }
    }

    proptest! {
        /// A mirror is a list from which the same operations take and put the same.
        #[test]
        fn a_mirror_is_a_list_in_order_of_use(
            steps in prop::collection::vec((0_u64..12, 0_u16..4, any::<bool>()), 0..200),
            copies_max in 1_usize..20,
        ) {
            let mut mirror = Mirror::new(copies_max);
            let mut list: Vec<Copy> = Vec::new();
            for (target, node, put) in steps {
                let one = copy(target, node);
                let there = list.contains(&one);
                list.retain(|other| *other != one);
                if put {
                    mirror.used(one.target, one.node, one.epoch);
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
