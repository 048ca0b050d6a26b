//! Which peers have a target in memory, as they have told: bounded, compact.
//!
//! A set that was forgotten for want of room is empty until a member is told of anew: that costs locality only. Memory: 29
//! to 57 bytes per target (up to four members in place; 25 a bucket, of which 7/16 to 7/8 are in use), and some 60 and 2 per
//! member for a larger set; 4 per node that was ever forgotten, 256 KiB at most.

use crate::clock::{self, ClockTable, EntryIndex};
use crate::id::{NodeId, TargetId};
use crate::policy::set::InlineSet;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Entry {
    target: TargetId,
    set: InlineSet,
    used: bool,
}

impl clock::ClockEntry for Entry {
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
///
/// A set holds *tags* of nodes, and a node that is forgotten gets another: what was under the old one counts no more and goes
/// when its set is next changed, so that forgetting a node costs the same however much it had. Only when all tags have been
/// given out (after some 65,000 nodes were forgotten) the table is gone through, once.
#[derive(Debug)]
pub(super) struct Sets {
    table: ClockTable<Entry>,
    /// Sets with more than four members.
    large: BTreeMap<TargetId, Vec<NodeId>>,
    tags: BTreeMap<NodeId, NodeId>,
    /// Whose each tag is; nobody's if it was forgotten.
    owners: Vec<Option<NodeId>>,
    /// Tags that no set holds.
    free: Vec<NodeId>,
    tags_max: usize,
}

impl Sets {
    /// Sets of at most `targets_max` targets, at least 1.
    pub(super) fn new(targets_max: usize) -> Self {
        Self {
            table: ClockTable::new(targets_max.max(1)),
            large: BTreeMap::new(),
            tags: BTreeMap::new(),
            owners: Vec::new(),
            free: Vec::new(),
            tags_max: usize::from(u16::MAX),
        }
    }

    /// Targets with members, and those whose members were all forgotten since they were last changed.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The members of a target's set, in the order in which they were added. With `used` this counts as a use.
    pub(super) fn members(&mut self, target: TargetId, used: bool) -> impl Iterator<Item = NodeId> + '_ {
        let slot = self.table.find(target);
        if let Some(slot) = slot.filter(|_| used) {
            self.table.get_mut(slot).used = true;
        }
        self.live(target, slot).map(|(_, node)| node)
    }

    /// A node has a target.
    pub(super) fn add(&mut self, target: TargetId, node: NodeId) {
        let tag = self.tag(node);
        let mut members: Vec<NodeId> = self.live_tags(target);
        if !members.contains(&tag) {
            members.push(tag);
            self.put(target, members);
        }
    }

    /// A node has a target no longer.
    pub(super) fn remove(&mut self, target: TargetId, node: NodeId) {
        let Some(tag) = self.tags.get(&node) else { return };
        let mut members: Vec<NodeId> = self.live_tags(target);
        if let Some(at) = members.iter().position(|member| member == tag) {
            members.remove(at);
            self.put(target, members);
        }
    }

    /// Nothing is known any more of what a node has. O(log nodes).
    pub(super) fn forget(&mut self, node: NodeId) {
        if let Some(tag) = self.tags.remove(&node) {
            self.owners[tag.index()] = None;
        }
    }

    /// The members that count, by tag and node.
    fn live(
        &self,
        target: TargetId,
        slot: Option<EntryIndex>,
    ) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        let small = slot.map_or(InlineSet::EMPTY, |slot| self.table.get(slot).set);
        let large = if small == InlineSet::EMPTY { self.large.get(&target) } else { None };
        let tags = small.iter().chain(large.into_iter().flatten().copied());
        tags.filter_map(|tag| Some((tag, self.owners[tag.index()]?)))
    }

    fn live_tags(&self, target: TargetId) -> Vec<NodeId> {
        self.live(target, self.table.find(target)).map(|(tag, _)| tag).collect()
    }

    fn tag(&mut self, node: NodeId) -> NodeId {
        if let Some(tag) = self.tags.get(&node) {
            return *tag;
        }
        if self.free.is_empty() && self.owners.len() >= self.tags_max {
            self.sweep();
        }
        let tag = self.free.pop().unwrap_or_else(|| {
            self.owners.push(None);
            // There are fewer nodes than tags, so that a sweep has found one before this overflows.
            NodeId(u16::try_from(self.owners.len() - 1).unwrap_or(u16::MAX))
        });
        self.owners[tag.index()] = Some(node);
        self.tags.insert(node, tag);
        tag
    }

    /// Takes the tags of nobody out of all sets. O(targets).
    fn sweep(&mut self) {
        let dead = |owners: &[Option<NodeId>], tag: NodeId| owners[tag.index()].is_none();
        let large: Vec<TargetId> = self.large.keys().copied().collect();
        let stale = self.table.iter_mut().filter(|entry| entry.set.iter().any(|tag| dead(&self.owners, tag)));
        let stale: Vec<TargetId> = stale.map(|entry| entry.target).chain(large).collect();
        for target in stale {
            let members = self.live_tags(target);
            self.put(target, members);
        }
        let tags = (0..self.owners.len()).filter_map(|tag| Some(NodeId(u16::try_from(tag).ok()?)));
        self.free = tags.filter(|tag| dead(&self.owners, *tag)).collect();
    }

    fn put(&mut self, target: TargetId, members: Vec<NodeId>) {
        if members.is_empty() {
            self.large.remove(&target);
            return self.table.remove(target);
        }
        let fresh = || Entry { target, set: InlineSet::EMPTY, used: false };
        let (slot, forgotten) = match self.table.find(target) {
            Some(slot) => (slot, None),
            None => self.table.touch(target, fresh),
        };
        if let Some(forgotten) = forgotten {
            self.large.remove(&forgotten.target);
        }
        let small = InlineSet::from_slice(&members);
        self.table.get_mut(slot).set = small.unwrap_or(InlineSet::EMPTY);
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
        fn sets_are_sets(
            steps in prop::collection::vec((0..4_u8, 0..12_u64, 0..9_u16), 1..200),
            tags_max in 9..30_usize,
        ) {
            let mut sets = Sets { tags_max, ..Sets::new(100) };
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
                prop_assert!(sets.len() >= plain.len() && sets.owners.len() <= tags_max);
            }
            sets.sweep();
            prop_assert_eq!(sets.len(), plain.len());
            prop_assert_eq!(sets.large.len(), plain.values().filter(|set| set.len() > 4).count());
        }
    }
}
