//! The map from targets to their servers: bounded, sharded, compact.
//!
//! LARD section 2.6 keeps the map in an LRU cache, because a target that was not asked for lately has left the
//! nodes' caches anyway. The map here is split by target hash into shards, each with its own lock and its share of
//! the bound, so that threads rarely meet.
//!
//! The order of use is kept to within a quarter of a shard: a target that is still among the most recently used
//! quarter is not moved to the front again. So a target is only forgotten if at least three quarters of its shard's
//! targets were used after it, and a hot target costs no list operation.
//!
//! A node that fails takes its targets with it. They are not hunted down: each entry carries the membership epoch at
//! which it was last looked at, and members lost since then are dropped when it is looked at next.

use super::set::Small;
use crate::id::{NodeId, TargetId};
use crate::nodes::{Nodes, lock};
use crate::time::Time;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

const NIL: u32 = u32::MAX;

/// Bytes per remembered target beside its hash table bucket.
pub const ENTRY_BYTES: usize = size_of::<Entry>();

#[derive(Clone, Copy, Debug)]
struct Entry {
    target: TargetId,
    changed: Time,
    set: Small,
    newer: u32,
    older: u32,
    /// The shard's count of moves when this entry was last moved to the front.
    moved: u32,
    epoch: u32,
}

/// All shards.
#[derive(Debug)]
pub(super) struct Targets {
    shards: Box<[Padded]>,
}

/// A shard on cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Padded(Mutex<Shard>);

impl Targets {
    /// A map of at most `targets_max` targets in `shards` shards, both at least 1; `shards` a power of two.
    pub(super) fn new(targets_max: usize, shards: usize) -> Self {
        let share = targets_max.div_ceil(shards).clamp(1, NIL as usize - 1);
        Self { shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(share as u32)))).collect() }
    }

    /// The shard of a target, locked.
    pub(super) fn shard(&self, target: TargetId) -> MutexGuard<'_, Shard> {
        // The table inside uses the lowest and highest bits of the hash; the middle ones are free for the shard.
        let index = (target.0 >> 32) as usize & (self.shards.len() - 1);
        lock(&self.shards[index].0)
    }

    /// Targets remembered in all shards.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).table.len()).sum()
    }
}

/// A part of the map.
#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<u32>,
    entries: Vec<Entry>,
    /// Sets with more than four members, by entry.
    large: BTreeMap<u32, Box<[NodeId]>>,
    newest: u32,
    oldest: u32,
    moves: u32,
    targets_max: u32,
}

/// An entry found: valid until the shard is changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(u32);

impl Shard {
    fn new(targets_max: u32) -> Self {
        Self {
            table: HashTable::new(),
            entries: Vec::new(),
            large: BTreeMap::new(),
            newest: NIL,
            oldest: NIL,
            moves: 0,
            targets_max,
        }
    }

    /// The entry of a target, without counting as a use.
    pub(super) fn find(&self, target: TargetId) -> Option<Slot> {
        let entries = &self.entries;
        self.table.find(target.0, |at| entries[*at as usize].target == target).map(|at| Slot(*at))
    }

    /// The entry of a target, used now; made if there was none, in place of the least recently used where the shard
    /// is full. An entry made is empty.
    pub(super) fn touch(&mut self, target: TargetId) -> Slot {
        if let Some(slot) = self.find(target) {
            self.freshen(slot.0);
            return slot;
        }
        let entry = Entry {
            target,
            changed: Time::ZERO,
            set: Small::EMPTY,
            newer: NIL,
            older: NIL,
            moved: 0,
            epoch: 0,
        };
        let at = if (self.entries.len() as u32) < self.targets_max {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let at = self.oldest;
            self.forget(at);
            self.entries[at as usize] = entry;
            at
        };
        self.push_front(at);
        let entries = &self.entries;
        self.table.insert_unique(target.0, at, |at| entries[*at as usize].target.0);
        Slot(at)
    }

    /// The members that have not lost their targets since the entry was last looked at; whether some had.
    pub(super) fn members(&self, slot: Slot, nodes: &Nodes) -> Members<'_> {
        Members { shard: self, slot, current: self.is_current(slot, nodes) }
    }

    /// The only member, if there is just one and none can have been lost: the common case, in one look.
    pub(super) fn sole(&self, slot: Slot, nodes: &Nodes) -> Option<NodeId> {
        if self.is_current(slot, nodes) { self.entries[slot.0 as usize].set.single() } else { None }
    }

    /// Whether the members were looked at since any node last lost its targets.
    pub(super) fn is_current(&self, slot: Slot, nodes: &Nodes) -> bool {
        self.entries[slot.0 as usize].epoch == nodes.epoch()
    }

    /// Whether the entry names any server, lost ones included.
    pub(super) fn was_assigned(&self, slot: Slot) -> bool {
        self.entries[slot.0 as usize].set != Small::EMPTY || self.large.contains_key(&slot.0)
    }

    /// When the set last changed.
    pub(super) fn changed(&self, slot: Slot) -> Time {
        self.entries[slot.0 as usize].changed
    }

    /// Replaces the members, as seen at `epoch`. With `changed` this counts as a change of the set.
    pub(super) fn put(&mut self, slot: Slot, members: &[NodeId], epoch: u32, changed: Option<Time>) {
        let entry = &mut self.entries[slot.0 as usize];
        let had_large = entry.set == Small::EMPTY && !self.large.is_empty();
        entry.epoch = epoch;
        if let Some(now) = changed {
            entry.changed = now;
        }
        if let Some(set) = Small::from_slice(members) {
            entry.set = set;
            if had_large {
                self.large.remove(&slot.0);
            }
        } else {
            entry.set = Small::EMPTY;
            self.large.insert(slot.0, members.into());
        }
    }

    /// The lists of all members, lost ones included.
    fn raw(&self, slot: Slot) -> impl Iterator<Item = NodeId> {
        let small = self.entries[slot.0 as usize].set;
        let large = if small == Small::EMPTY { self.large.get(&slot.0) } else { None };
        small.iter().chain(large.into_iter().flat_map(|members| members.iter().copied()))
    }

    fn freshen(&mut self, at: u32) {
        let age = self.moves.wrapping_sub(self.entries[at as usize].moved);
        if age >= (self.entries.len() as u32) / 4 && self.newest != at {
            self.unlink(at);
            self.push_front(at);
        }
    }

    fn forget(&mut self, at: u32) {
        let target = self.entries[at as usize].target;
        self.unlink(at);
        self.large.remove(&at);
        if let Ok(found) = self.table.find_entry(target.0, |other| *other == at) {
            found.remove();
        }
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match newer {
            NIL => self.newest = older,
            other => self.entries[other as usize].older = older,
        }
        match older {
            NIL => self.oldest = newer,
            other => self.entries[other as usize].newer = newer,
        }
    }

    fn push_front(&mut self, at: u32) {
        let front = self.newest;
        self.moves = self.moves.wrapping_add(1);
        let moved = self.moves;
        let entry = &mut self.entries[at as usize];
        entry.newer = NIL;
        entry.older = front;
        entry.moved = moved;
        match front {
            NIL => self.oldest = at,
            other => self.entries[other as usize].newer = at,
        }
        self.newest = at;
    }
}

/// The members of a set that count.
pub(super) struct Members<'a> {
    shard: &'a Shard,
    slot: Slot,
    current: bool,
}

impl Members<'_> {
    /// The members in the order in which they were added, without those lost.
    pub(super) fn iter(&self, nodes: &Nodes) -> impl Iterator<Item = NodeId> {
        let epoch = self.shard.entries[self.slot.0 as usize].epoch;
        let current = self.current;
        self.shard.raw(self.slot).filter(move |node| current || !nodes.lost_since(*node, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::JoinPace;
    use proptest::prelude::*;

    fn nodes() -> Nodes {
        Nodes::new(16, JoinPace { targets_per_s: 1, warm_targets: 0 })
    }

    #[test]
    fn an_entry_is_forty_bytes() {
        assert_eq!(ENTRY_BYTES, 40);
    }

    #[test]
    fn large_sets_come_and_go() {
        let (targets, nodes) = (Targets::new(8, 1), nodes());
        let mut shard = targets.shard(TargetId(1));
        let slot = shard.touch(TargetId(1));
        let many: Vec<NodeId> = (0..9).map(NodeId).collect();
        for members in [&many[..], &many[..2], &many[..5], &many[..0]] {
            shard.put(slot, members, nodes.epoch(), None);
            assert_eq!(shard.members(slot, &nodes).iter(&nodes).collect::<Vec<_>>(), members);
        }
        assert!(shard.large.is_empty());
    }

    #[test]
    fn a_forgotten_target_takes_its_large_set_with_it() {
        let (targets, nodes) = (Targets::new(1, 1), nodes());
        let mut shard = targets.shard(TargetId(1));
        let slot = shard.touch(TargetId(1));
        let many: Vec<NodeId> = (0..9).map(NodeId).collect();
        shard.put(slot, &many, nodes.epoch(), None);
        let slot = shard.touch(TargetId(2));
        assert_eq!(shard.members(slot, &nodes).iter(&nodes).count(), 0);
        assert!(shard.find(TargetId(1)).is_none() && shard.large.is_empty());
    }

    proptest! {
        /// The bound holds, and what is forgotten was used before at least three quarters of the rest.
        #[test]
        fn only_old_targets_are_forgotten(uses in prop::collection::vec(0_u64..60, 1..800)) {
            const MAX: usize = 32;
            let targets = Targets::new(MAX, 1);
            let mut order: Vec<u64> = Vec::new();
            for target in uses {
                let mut shard = targets.shard(TargetId(target));
                let before: Vec<u64> = order.iter().copied().filter(|t| shard.find(TargetId(*t)).is_some()).collect();
                shard.touch(TargetId(target));
                for (rank, other) in before.iter().rev().enumerate() {
                    if *other != target && shard.find(TargetId(*other)).is_none() {
                        prop_assert!(rank + 1 >= MAX * 3 / 4, "forgot {other} at rank {rank}");
                    }
                }
                prop_assert!(shard.table.len() <= MAX);
                prop_assert!(shard.find(TargetId(target)).is_some());
                order.retain(|t| *t != target);
                order.push(target);
            }
        }
    }
}
