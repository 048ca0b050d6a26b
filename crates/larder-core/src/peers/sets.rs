//! Which peers have a target in memory, as they have told: bounded, compact.
//!
//! A set that was forgotten for want of room is empty until a member is told of anew: that costs locality only. Memory: 29
//! to 57 bytes per target (up to four members in place; 25 a bucket, of which 7/16 to 7/8 are in use), and some 60 and 2 per
//! member for a larger set.

use crate::clock::{self, ClockTable};
use crate::id::{NodeId, TargetId};
use crate::policy::set::Small;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Entry {
    target: TargetId,
    set: Small,
    used: bool,
}

impl clock::Entry for Entry {
    #[inline]
    fn target(&self) -> TargetId {
        self.target
    }

    #[inline]
    fn used(&mut self) -> &mut bool {
        &mut self.used
    }
}

/// Server sets.
#[derive(Debug)]
pub(super) struct Sets {
    table: ClockTable<Entry>,
    /// Sets with more than four members.
    large: BTreeMap<TargetId, Vec<NodeId>>,
}

impl Sets {
    /// Sets of at most `targets_max` targets, at least 1.
    pub(super) fn new(targets_max: usize) -> Self {
        Self { table: ClockTable::new(targets_max.max(1)), large: BTreeMap::new() }
    }

    /// Targets with members.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The members of a target's set, in the order in which they were added. With `used` this counts as a use.
    pub(super) fn members(&mut self, target: TargetId, used: bool) -> impl Iterator<Item = NodeId> + '_ {
        let slot = self.table.find(target);
        if let Some(slot) = slot.filter(|_| used) {
            self.table.get_mut(slot).used = true;
        }
        let small = slot.map_or(Small::EMPTY, |slot| self.table.get(slot).set);
        let large = if small == Small::EMPTY { self.large.get(&target) } else { None };
        small.iter().chain(large.into_iter().flatten().copied())
    }

    /// A node has a target.
    pub(super) fn add(&mut self, target: TargetId, node: NodeId) {
        let mut members: Vec<NodeId> = self.members(target, false).collect();
        if !members.contains(&node) {
            members.push(node);
            self.put(target, members);
        }
    }

    /// A node has a target no longer.
    pub(super) fn remove(&mut self, target: TargetId, node: NodeId) {
        let mut members: Vec<NodeId> = self.members(target, false).collect();
        if let Some(at) = members.iter().position(|member| *member == node) {
            members.remove(at);
            self.put(target, members);
        }
    }

    /// Nothing is known any more of what a node has. O(targets).
    pub(super) fn forget(&mut self, node: NodeId) {
        let mut emptied = Vec::new();
        let mut shrunk = Vec::new();
        self.large.retain(|target, members| {
            members.retain(|member| *member != node);
            let small = Small::from_slice(members);
            shrunk.extend(small.map(|small| (*target, small)));
            small.is_none()
        });
        for entry in self.table.iter_mut() {
            if entry.set.iter().any(|member| member == node) {
                let left: Vec<NodeId> = entry.set.iter().filter(|member| *member != node).collect();
                entry.set = Small::from_slice(&left).unwrap_or(Small::EMPTY);
                if left.is_empty() {
                    emptied.push(entry.target);
                }
            }
        }
        for (target, small) in shrunk {
            if let Some(slot) = self.table.find(target) {
                self.table.get_mut(slot).set = small;
            }
        }
        emptied.into_iter().for_each(|target| self.table.remove(target));
    }

    fn put(&mut self, target: TargetId, members: Vec<NodeId>) {
        if members.is_empty() {
            self.large.remove(&target);
            return self.table.remove(target);
        }
        let fresh = || Entry { target, set: Small::EMPTY, used: false };
        let (slot, forgotten) = match self.table.find(target) {
            Some(slot) => (slot, None),
            None => self.table.touch(target, fresh),
        };
        if let Some(forgotten) = forgotten {
            self.large.remove(&forgotten.target);
        }
        let small = Small::from_slice(&members);
        self.table.get_mut(slot).set = small.unwrap_or(Small::EMPTY);
        match small {
            Some(_) => drop(self.large.remove(&target)),
            None => drop(self.large.insert(target, members)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(sets: &mut Sets, target: u64) -> BTreeSet<u16> {
        sets.members(TargetId(target), true).map(|node| node.0).collect()
    }

    #[test]
    fn a_full_table_forgets_what_is_not_used() {
        let mut sets = Sets::new(4);
        for target in 0..100 {
            (0..6).for_each(|node| sets.add(TargetId(target), NodeId(node)));
            sets.add(TargetId(1_000), NodeId(3));
            assert_eq!(of(&mut sets, 1_000), BTreeSet::from([3]));
            assert!(sets.len() <= 4 && sets.large.len() <= 4);
        }
    }

    proptest! {
        /// Whatever is added, removed and forgotten: the sets are those that plain sets would be.
        #[test]
        fn sets_are_sets(steps in prop::collection::vec((0..4_u8, 0..12_u64, 0..9_u16), 1..200)) {
            let mut sets = Sets::new(100);
            let mut plain = BTreeMap::<u64, BTreeSet<u16>>::new();
            for (step, target, node) in steps {
                match step {
                    0 | 1 => {
                        sets.add(TargetId(target), NodeId(node));
                        plain.entry(target).or_default().insert(node);
                    }
                    2 => {
                        sets.remove(TargetId(target), NodeId(node));
                        plain.entry(target).or_default().remove(&node);
                    }
                    _ => {
                        sets.forget(NodeId(node));
                        for set in plain.values_mut() {
                            set.remove(&node);
                        }
                    }
                }
                plain.retain(|_, set| !set.is_empty());
                for target in 0..12 {
                    prop_assert_eq!(of(&mut sets, target), plain.get(&target).cloned().unwrap_or_default());
                }
                prop_assert_eq!(sets.len(), plain.len());
                prop_assert_eq!(sets.large.len(), plain.values().filter(|set| set.len() > 4).count());
            }
        }
    }
}
