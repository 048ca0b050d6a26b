//! Bounded, compact table of the peers that have a target in memory, as reported by them.
//!
//! A set that was evicted is empty until a peer reports the target again. This only costs locality. A target needs
//! 29 to 57 bytes: up to four members in place, 25 bytes per bucket, and 7/16 to 7/8 of the buckets in use. A larger
//! set needs about 60 bytes more and 2 per member. Each node that was ever removed needs 4 bytes, at most 256 KiB in
//! all.

use crate::clock::{self, ClockTable, EntryIndex};
use crate::id::{NodeId, TargetId};
use crate::policy::set::InlineSet;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug)]
struct PeerSetEntry {
    target: TargetId,
    set: InlineSet,
    used: bool,
}

impl clock::ClockEntry for PeerSetEntry {
    #[inline]
    fn target(&self) -> TargetId {
        self.target
    }

    #[inline]
    fn used(&mut self) -> &mut bool {
        &mut self.used
    }
}

/// Server sets of targets.
///
/// A set holds *tags* of nodes. A node that is removed and returns gets a new tag. Members with the old tag no
/// longer count and are dropped when their set next changes. So the removal of a node takes the same time however
/// many targets it had. When all tags are used, after about 65,000 removals, one pass over the table frees the old
/// ones.
#[derive(Debug)]
pub(super) struct PeerSets {
    table: ClockTable<PeerSetEntry>,
    /// Sets with more than four members.
    large: BTreeMap<TargetId, Vec<NodeId>>,
    tags: BTreeMap<NodeId, NodeId>,
    /// Node of each tag; `None` if the node was removed.
    owners: Vec<Option<NodeId>>,
    /// Tags that no set contains.
    free: Vec<NodeId>,
    tags_max: usize,
}

impl PeerSets {
    /// Creates a table for at most `targets_max` targets, at least 1.
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

    /// Returns the number of targets with a set. A set whose members were all removed counts until it is next
    /// changed.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the members of a set in the order of their insertion. With `used`, the lookup counts as a use.
    pub(super) fn members(&mut self, target: TargetId, used: bool) -> impl Iterator<Item = NodeId> + '_ {
        let slot = self.table.find(target);
        if let Some(slot) = slot.filter(|_| used) {
            self.table.get_mut(slot).used = true;
        }
        self.valid_members(target, slot).map(|(_, node)| node)
    }

    /// Records that a node has a target.
    pub(super) fn add(&mut self, target: TargetId, node: NodeId) {
        let tag = self.assign_tag(node);
        let mut members: Vec<NodeId> = self.valid_tags(target);
        if !members.contains(&tag) {
            members.push(tag);
            self.store(target, members);
        }
    }

    /// Records that a node no longer has a target.
    pub(super) fn remove(&mut self, target: TargetId, node: NodeId) {
        let Some(tag) = self.tags.get(&node) else { return };
        let mut members: Vec<NodeId> = self.valid_tags(target);
        if let Some(at) = members.iter().position(|member| member == tag) {
            members.remove(at);
            self.store(target, members);
        }
    }

    /// Removes a node from all sets. O(log nodes).
    pub(super) fn remove_node(&mut self, node: NodeId) {
        if let Some(tag) = self.tags.remove(&node) {
            self.owners[tag.index()] = None;
        }
    }

    /// Returns the valid members of a set, as tag and node.
    fn valid_members(
        &self,
        target: TargetId,
        slot: Option<EntryIndex>,
    ) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        let small = slot.map_or(InlineSet::EMPTY, |slot| self.table.get(slot).set);
        let large = if small == InlineSet::EMPTY { self.large.get(&target) } else { None };
        let tags = small.iter().chain(large.into_iter().flatten().copied());
        tags.filter_map(|tag| Some((tag, self.owners[tag.index()]?)))
    }

    fn valid_tags(&self, target: TargetId) -> Vec<NodeId> {
        self.valid_members(target, self.table.find(target)).map(|(tag, _)| tag).collect()
    }

    fn assign_tag(&mut self, node: NodeId) -> NodeId {
        if let Some(tag) = self.tags.get(&node) {
            return *tag;
        }
        if self.free.is_empty() && self.owners.len() >= self.tags_max {
            self.sweep();
        }
        let tag = self.free.pop().unwrap_or_else(|| {
            self.owners.push(None);
            // There are fewer nodes than tags, so a sweep frees a tag before this overflows.
            NodeId(u16::try_from(self.owners.len() - 1).unwrap_or(u16::MAX))
        });
        self.owners[tag.index()] = Some(node);
        self.tags.insert(node, tag);
        tag
    }

    /// Removes unused tags from all sets. O(targets).
    fn sweep(&mut self) {
        let dead = |owners: &[Option<NodeId>], tag: NodeId| owners[tag.index()].is_none();
        let large: Vec<TargetId> = self.large.keys().copied().collect();
        let stale = self.table.iter_mut().filter(|entry| entry.set.iter().any(|tag| dead(&self.owners, tag)));
        let stale: Vec<TargetId> = stale.map(|entry| entry.target).chain(large).collect();
        for target in stale {
            let members = self.valid_tags(target);
            self.store(target, members);
        }
        let tags = (0..self.owners.len()).filter_map(|tag| Some(NodeId(u16::try_from(tag).ok()?)));
        self.free = tags.filter(|tag| dead(&self.owners, *tag)).collect();
    }

    fn store(&mut self, target: TargetId, members: Vec<NodeId>) {
        if members.is_empty() {
            self.large.remove(&target);
            return self.table.remove(target);
        }
        let fresh = || PeerSetEntry { target, set: InlineSet::EMPTY, used: false };
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
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn of(sets: &mut PeerSets, target: u64) -> BTreeSet<u16> {
        sets.members(TargetId(target), true).map(|node| node.0).collect()
    }

    #[test]
    fn a_full_table_evicts_unused_sets() {
        let mut sets = PeerSets::new(4);
        for target in 0..100 {
            (0..6).for_each(|node| sets.add(TargetId(target), NodeId(node)));
            sets.add(TargetId(1_000), NodeId(3));
            assert_eq!(of(&mut sets, 1_000), BTreeSet::from([3]));
            assert!(sets.len() <= 4 && sets.large.len() <= 4);
        }
    }

    proptest! {
        /// After any sequence of insertions, removals and node removals, the table equals a model of plain sets.
        #[test]
        fn sets_match_a_plain_model(
            steps in prop::collection::vec((0..4_u8, 0..12_u64, 0..9_u16), 1..200),
            tags_max in 9..30_usize,
        ) {
            let mut sets = PeerSets { tags_max, ..PeerSets::new(100) };
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
                        sets.remove_node(NodeId(node));
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
