//! The map from targets to their servers: bounded, sharded and compact.
//!
//! LARD section 2.6 keeps the map in an LRU cache, because a target that was not requested recently has left the
//! nodes' caches anyway. This map is split into shards, each with its own lock and its share of the bound, so that
//! threads rarely contend. A secret key selects the shard of a target ([`crate::spread`]), so that chosen URLs
//! cannot fill one shard.
//!
//! A full shard evicts a target that was not used recently ([`crate::clock`]).
//!
//! If several switches share the nodes, each shard also keeps a journal of the targets whose sets have changed here. The
//! journal is sent to the other switches ([`super::set_exchange`]).
//!
//! A node that fails loses its targets. The map is not searched for them: each entry has the membership epoch at
//! which it was last checked. Members lost since then are dropped when the entry is used next.

use super::common::CommonSettings;
use super::journal::Journal;
use super::set::InlineSet;
use super::{Choice, Reason};
use crate::clock::{self, ClockTable, EntryIndex};
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, VisitCounter};
use crate::spread::Spread;
use crate::sync::{Mutex, MutexGuard};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::sync::atomic::AtomicUsize;
use core::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct TargetEntry {
    pub(super) target: TargetId,
    pub(super) changed: Time,
    set: InlineSet,
    epoch: u32,
    /// The second of the dispatcher's clock at which this set was created or received, modulo 2^16; see
    /// [`TargetEntry::received_since`].
    received: u16,
    pub(super) used: bool,
}

impl clock::ClockEntry for TargetEntry {
    #[inline]
    fn target(&self) -> TargetId {
        self.target
    }

    #[inline]
    fn used(&mut self) -> &mut bool {
        &mut self.used
    }
}

/// The largest skew between the clocks of two decisions, in seconds.
const SKEW: u64 = 2;

impl TargetEntry {
    /// Returns whether the set was created or received at `since` or later by the dispatcher's clock. Seconds are
    /// stored modulo 2^16, so a few sets received earlier count as later. If `since` is further back than 2^16
    /// seconds, all sets count as later.
    pub(super) const fn received_since(&self, since: Time, now: Time) -> bool {
        let latest = now.whole_secs() + SKEW;
        let window = latest.saturating_sub(since.whole_secs());
        since.as_nanos() == 0
            || window >= u16::MAX as u64
            || (latest as u16).wrapping_sub(self.received) as u64 <= window
    }
}

/// The smallest difference between the times of two changes.
const TICK: Duration = Duration::from_nanos(1);

/// The map, divided into shards.
#[derive(Debug)]
pub(crate) struct TargetMap {
    pub(super) shards: Box<[PaddedShard]>,
    /// The index of the shard whose journal is read next.
    pub(super) next: AtomicUsize,
    spread: Spread,
}

/// A shard on its own cache lines.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct PaddedShard(pub(super) Mutex<TargetShard>);

impl TargetMap {
    /// Creates a map with these settings.
    pub(super) fn of(common: &CommonSettings) -> Self {
        Self::spread(common.targets_max, common.shards, Spread::new(common.spread_key))
    }

    /// Creates a map of at most `targets_max` targets in `shards` shards, without a key. Both are at least 1, and
    /// `shards` is a power of two.
    #[cfg(test)]
    pub(super) fn new(targets_max: usize, shards: usize) -> Self {
        Self::spread(targets_max, shards, Spread::new(0))
    }

    fn spread(targets_max: usize, shards: usize, spread: Spread) -> Self {
        let share = targets_max.div_ceil(shards).max(1);
        let shards = (0..shards)
            .map(|index| PaddedShard(Mutex::new(TargetShard::new(index, share, spread))))
            .collect();
        Self { shards, next: AtomicUsize::new(0), spread }
    }

    /// Locks the shard of a target for a decision, and records the visit.
    #[inline(always)]
    pub(super) fn visit(&self, target: TargetId, nodes: ClusterView<'_>) -> MutexGuard<'_, TargetShard> {
        let mut shard = self.shard(target);
        nodes.record_visit(&mut shard.visits);
        shard
    }

    /// Locks the shard of a target.
    #[inline(always)]
    pub(super) fn shard(&self, target: TargetId) -> MutexGuard<'_, TargetShard> {
        self.shards[self.index(target)].0.lock()
    }

    #[inline]
    fn index(&self, target: TargetId) -> usize {
        // The hash table inside uses the lowest and highest bits of the hash; the middle bits are free for the
        // shard.
        (self.spread.of(target) >> 32) as usize & (self.shards.len() - 1)
    }

    /// Calls `show` for every target with the time of its last change, whether it was used recently, and its
    /// members.
    pub(super) fn each<'a>(
        &self,
        nodes: ClusterView<'a>,
        mut show: impl FnMut((TargetId, Time, bool), &mut dyn Iterator<Item = NodeId>),
    ) {
        for shard in &self.shards {
            let shard = shard.0.lock();
            for (slot, entry) in shard.table.slots() {
                show((entry.target, shard.changed(slot), entry.used), &mut shard.members(slot, nodes));
            }
        }
    }

    /// Returns the number of targets in all shards.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().table.len()).sum()
    }
}

/// One shard of the map.
#[derive(Debug)]
pub(super) struct TargetShard {
    pub(super) table: ClockTable<TargetEntry>,
    /// The sets with more than four members.
    large: BTreeMap<TargetId, Box<[NodeId]>>,
    visits: VisitCounter,
    pub(super) journal: Journal,
    /// The offset by which the clock of changes is ahead of this dispatcher's clock; see [`super::set_exchange`].
    pub(super) clock_offset: Duration,
}

impl TargetShard {
    fn new(index: usize, targets_max: usize, spread: Spread) -> Self {
        Self {
            table: ClockTable::spread(targets_max, spread),
            large: BTreeMap::new(),
            visits: VisitCounter::to_shard(index),
            journal: Journal::default(),
            clock_offset: Duration::ZERO,
        }
    }

    /// Returns the entry of a target without marking it as used.
    pub(super) fn find(&self, target: TargetId) -> Option<EntryIndex> {
        self.table.find(target)
    }

    /// Returns the entry of a target and marks it as used. If there is none, an empty entry is created. A full shard
    /// first evicts an entry that was not used recently.
    pub(super) fn touch(&mut self, target: TargetId) -> EntryIndex {
        let fresh = || TargetEntry {
            target,
            changed: Time::ZERO,
            set: InlineSet::EMPTY,
            epoch: 0,
            received: 0,
            used: false,
        };
        let (slot, evicted) = self.table.touch(target, fresh);
        if let Some(evicted) = evicted {
            self.large.remove(&evicted.target);
        }
        slot
    }

    /// Returns the members that have not lost their targets since the entry was last checked.
    pub(super) fn members(&self, slot: EntryIndex, nodes: ClusterView<'_>) -> impl Iterator<Item = NodeId> {
        let entry = self.entry(slot);
        let (epoch, current) = (entry.epoch, self.is_current(slot, nodes));
        let large = if entry.set == InlineSet::EMPTY { self.large.get(&entry.target) } else { None };
        let all = entry.set.iter().chain(large.into_iter().flat_map(|members| members.iter().copied()));
        all.filter(move |node| current || !nodes.lost_since(*node, epoch))
    }

    /// Returns the members that take requests. Sets of another switch contain nodes that are up there and may be
    /// closed or stand by here.
    pub(super) fn open_members(
        &self,
        slot: EntryIndex,
        nodes: ClusterView<'_>,
    ) -> impl Iterator<Item = NodeId> {
        self.members(slot, nodes).filter(move |node| nodes.is_open(*node))
    }

    /// Returns the only member, if there is exactly one, it takes requests, and no node has lost its targets since
    /// the last check. This is the common case and needs one lookup.
    pub(super) fn sole(&self, slot: EntryIndex, nodes: ClusterView<'_>) -> Option<NodeId> {
        let single = if self.is_current(slot, nodes) { self.entry(slot).set.single() } else { None };
        single.filter(|node| nodes.is_open(*node))
    }

    /// Returns whether the entry was checked after a node last lost its targets.
    pub(super) fn is_current(&self, slot: EntryIndex, nodes: ClusterView<'_>) -> bool {
        self.entry(slot).epoch == nodes.epoch()
    }

    /// Returns whether the entry contains any server, including lost ones.
    pub(super) fn was_assigned(&self, slot: EntryIndex) -> bool {
        let entry = self.entry(slot);
        entry.set != InlineSet::EMPTY || self.large.contains_key(&entry.target)
    }

    /// Returns the time at which the set last changed, by the dispatcher's clock.
    pub(super) fn changed(&self, slot: EntryIndex) -> Time {
        let clock_offset = u64::try_from(self.clock_offset.as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(self.stamp(slot).as_nanos().saturating_sub(clock_offset))
    }

    /// Returns the time at which the set last changed, by the clock of changes.
    pub(super) fn stamp(&self, slot: EntryIndex) -> Time {
        self.entry(slot).changed
    }

    /// Replaces the members, as read at `epoch`. If `changed` is given, this counts as a change of the set.
    pub(super) fn put(&mut self, slot: EntryIndex, members: &[NodeId], epoch: u32, changed: Option<Time>) {
        let (small, clock_offset) = (InlineSet::from_slice(members), self.clock_offset);
        let entry = self.entry_mut(slot);
        let (target, was_large) = (entry.target, entry.set == InlineSet::EMPTY);
        entry.epoch = epoch;
        entry.set = small.unwrap_or(InlineSet::EMPTY);
        if let Some(changed) = changed {
            // Another switch's clock may be ahead. A decision made after its set was received must still count as
            // the later change.
            let after = if entry.changed > Time::ZERO { entry.changed + TICK } else { Time::ZERO };
            entry.changed = (changed + clock_offset).max(after);
            entry.received = changed.whole_secs() as u16;
            self.journal.record(target);
        }
        if small.is_none() {
            self.large.insert(target, members.into());
        } else if was_large {
            self.large.remove(&target);
        }
    }

    /// Stores the decision for a target with one server. It is a change unless the server stays the same.
    pub(super) fn put_sole(
        &mut self,
        slot: EntryIndex,
        choice: Choice,
        now: Time,
        epoch: u32,
        nodes: ClusterView<'_>,
    ) {
        if choice.reason != Reason::Local {
            self.put(slot, &[choice.node], epoch, Some(now));
        } else if !self.is_current(slot, nodes) {
            self.put(slot, &[choice.node], epoch, None);
        }
    }

    /// Stores a set received from another switch, with the time of its change by the clock of changes. `received` is
    /// the time of its receipt by the dispatcher's clock.
    pub(super) fn store_received(
        &mut self,
        slot: EntryIndex,
        members: &[NodeId],
        epoch: u32,
        stamp: Time,
        received: Time,
    ) {
        self.put(slot, members, epoch, None);
        let entry = self.entry_mut(slot);
        (entry.changed, entry.received) = (stamp, received.whole_secs() as u16);
    }

    fn entry(&self, slot: EntryIndex) -> &TargetEntry {
        self.table.get(slot)
    }

    fn entry_mut(&mut self, slot: EntryIndex) -> &mut TargetEntry {
        self.table.get_mut(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{JoinPace, Nodes, mix};
    use proptest::prelude::*;

    fn nodes() -> Nodes {
        Nodes::new(16, JoinPace { targets_per_s: 1, warm_targets: 0 })
    }

    /// Tests that URLs cannot fill one shard of a keyed map. Their ids agree in the bits that select a shard and, in
    /// part, a bucket. Without a key they share one shard and its part of the bound; with a key they use the whole
    /// map.
    #[test]
    fn crafted_urls_use_all_shards_of_a_keyed_map() {
        const SHARDS: usize = 64;
        const EACH: usize = 64;
        let agrees = |target: &TargetId| target.0 >> 32 & 63 == 7 && target.0 & 7 == 5;
        let urls = (0..).map(|n| TargetId::of(format!("site.example/{n}").as_bytes()));
        let crafted: Vec<TargetId> = urls.filter(agrees).take(SHARDS * EACH).collect();
        let used = |key: u64| -> Vec<usize> {
            let targets = TargetMap::spread(2 * SHARDS * EACH, SHARDS, Spread::new(key));
            for target in &crafted {
                targets.shard(*target).touch(*target);
            }
            targets.shards.iter().map(|shard| shard.0.lock().table.len()).collect()
        };
        let unkeyed = used(0);
        assert_eq!(unkeyed.iter().filter(|len| **len > 0).count(), 1);
        assert_eq!(unkeyed.iter().sum::<usize>(), 2 * EACH, "the shard's part of the bound");
        for key in [1, mix(2), u64::MAX] {
            let keyed = used(key);
            assert_eq!(keyed.iter().sum::<usize>(), crafted.len(), "key {key}: none is forgotten");
            // Of 64 x 64 random placements into 64 shards, none is expected below 20 or above 128.
            assert!(keyed.iter().all(|len| (20..=2 * EACH).contains(len)), "key {key}: {keyed:?}");
        }
    }

    /// A bucket has a control byte too. Between 4/7 and 1 of the buckets' 7/8 are in use.
    #[test]
    fn a_bucket_is_33_bytes() {
        assert_eq!(size_of::<TargetEntry>() + 1, 33);
    }

    #[test]
    fn large_sets_come_and_go() {
        let (targets, nodes) = (TargetMap::new(8, 1), nodes());
        let mut shard = targets.shard(TargetId(1));
        let slot = shard.touch(TargetId(1));
        let many: Vec<NodeId> = (0..9).map(NodeId).collect();
        for members in [&many[..], &many[..2], &many[..5], &many[..0]] {
            shard.put(slot, members, nodes.epoch(), None);
            assert_eq!(shard.members(slot, ClusterView::live(&nodes)).collect::<Vec<_>>(), members);
        }
        assert!(shard.large.is_empty());
    }

    #[test]
    fn eviction_removes_the_large_set() {
        let (targets, nodes) = (TargetMap::new(1, 1), nodes());
        let mut shard = targets.shard(TargetId(1));
        let slot = shard.touch(TargetId(1));
        let many: Vec<NodeId> = (0..9).map(NodeId).collect();
        shard.put(slot, &many, nodes.epoch(), None);
        let slot = shard.touch(TargetId(2));
        assert_eq!(shard.members(slot, ClusterView::live(&nodes)).count(), 0);
        assert!(shard.find(TargetId(1)).is_none() && shard.large.is_empty());
    }

    #[test]
    fn full_map_never_grows() {
        let targets = TargetMap::new(1_000, 1);
        let mut buckets = 0;
        for i in 0..200_000 {
            let target = TargetId(mix(i));
            let mut shard = targets.shard(target);
            shard.touch(target);
            assert!(shard.table.len() <= 1_000);
            if i == 5_000 {
                buckets = shard.table.buckets();
            }
        }
        let shard = targets.shard(TargetId(0));
        assert_eq!((shard.table.len(), shard.table.buckets()), (1_000, buckets));
    }

    proptest! {
        /// A target that is used between any two new ones is never evicted for them, and the newest is always
        /// stored.
        #[test]
        fn used_targets_are_never_evicted(news in 1_u64..800, max in 2_usize..40) {
            let targets = TargetMap::new(max, 1);
            let hot = TargetId(mix(0));
            targets.shard(hot).touch(hot);
            for target in (1..=news).map(|i| TargetId(mix(i))) {
                let mut shard = targets.shard(target);
                shard.touch(hot);
                shard.touch(target);
                prop_assert!(shard.find(hot).is_some() && shard.find(target).is_some());
                prop_assert!(shard.table.len() <= max);
            }
        }
    }
}
