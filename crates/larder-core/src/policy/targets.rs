//! The map from targets to their servers: bounded, sharded, compact.
//!
//! LARD section 2.6 keeps the map in an LRU cache, because a target that was not asked for lately has left the
//! nodes' caches anyway. The map here is split into shards, each with its own lock and its share of
//! the bound, so that threads rarely meet. A secret key chooses the shard of a target ([`crate::spread`]): chosen URLs cannot
//! crowd one shard.
//!
//! A full shard forgets what was not used lately ([`crate::clock`]).
//!
//! Where several switches share the nodes, each shard also keeps a journal of the targets whose sets have changed here, for
//! the others to be told ([`super::gossip`]).
//!
//! A node that fails takes its targets with it. They are not hunted down: each entry carries the membership epoch at
//! which it was last looked at, and members lost since then are dropped when it is looked at next.

use super::common::CommonSettings;
use super::journal::Journal;
use super::set::InlineSet;
use super::{Choice, Reason};
use crate::clock::{self, ClockTable, Slot};
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, VisitCounter, lock};
use crate::spread::Spread;
use crate::time::Time;
use core::sync::atomic::AtomicUsize;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Bytes per bucket of the map, its control byte included. Between 4/7 and 1 of the buckets' 7/8 are in use.
pub const BUCKET_BYTES: usize = size_of::<Entry>() + 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) target: TargetId,
    pub(super) changed: Time,
    set: InlineSet,
    epoch: u32,
    /// The second of the own clock in which this set was made or heard, as [`Entry::learned_since`] reads it.
    learned: u16,
    pub(super) used: bool,
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

/// Decisions may have a clock that was read a moment later than another's. Seconds.
const SKEW: u64 = 2;

impl Entry {
    /// Whether the set was learned at `since` or later by the own clock. Seconds are kept modulo 2^16, so a few that were learned
    /// earlier pass for later ones; what lies back further than that is taken for later always.
    pub(super) const fn learned_since(&self, since: Time, now: Time) -> bool {
        let latest = now.whole_secs() + SKEW;
        let window = latest.saturating_sub(since.whole_secs());
        since.as_nanos() == 0
            || window >= u16::MAX as u64
            || (latest as u16).wrapping_sub(self.learned) as u64 <= window
    }
}

/// What a later change is later by at least.
const TICK: Duration = Duration::from_nanos(1);

/// All shards.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(super) shards: Box<[Padded]>,
    /// The shard whose journal is read next.
    pub(super) next: AtomicUsize,
    spread: Spread,
}

/// A shard on cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Padded(pub(super) Mutex<Shard>);

impl Targets {
    /// The map of these settings.
    pub(super) fn of(common: &CommonSettings) -> Self {
        Self::spread(common.targets_max, common.shards, Spread::new(common.spread_key))
    }

    /// A map of at most `targets_max` targets in `shards` shards, both at least 1; `shards` a power of two. Without a key.
    #[cfg(test)]
    pub(super) fn new(targets_max: usize, shards: usize) -> Self {
        Self::spread(targets_max, shards, Spread::new(0))
    }

    fn spread(targets_max: usize, shards: usize, spread: Spread) -> Self {
        let share = targets_max.div_ceil(shards).max(1);
        let shards = (0..shards).map(|index| Padded(Mutex::new(Shard::new(index, share, spread)))).collect();
        Self { shards, next: AtomicUsize::new(0), spread }
    }

    /// The shard of a target, locked for a decision.
    #[inline(always)]
    pub(super) fn visit(&self, target: TargetId, nodes: ClusterView<'_>) -> MutexGuard<'_, Shard> {
        let mut shard = self.shard(target);
        nodes.record_visit(&mut shard.visits);
        shard
    }

    /// The shard of a target, locked.
    #[inline(always)]
    pub(super) fn shard(&self, target: TargetId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.index(target)].0)
    }

    #[inline]
    fn index(&self, target: TargetId) -> usize {
        // The table inside uses the lowest and highest bits of the hash; the middle ones are free for the shard.
        (self.spread.of(target) >> 32) as usize & (self.shards.len() - 1)
    }

    /// Shows every target with its members: when the set last changed, and whether it was used lately.
    pub(super) fn each<'a>(
        &self,
        nodes: ClusterView<'a>,
        mut show: impl FnMut((TargetId, Time, bool), &mut dyn Iterator<Item = NodeId>),
    ) {
        for shard in &self.shards {
            let shard = lock(&shard.0);
            for (slot, entry) in shard.table.slots() {
                show((entry.target, shard.changed(slot), entry.used), &mut shard.members(slot, nodes));
            }
        }
    }

    /// Targets remembered in all shards.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).table.len()).sum()
    }
}

/// A part of the map.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: ClockTable<Entry>,
    /// Sets with more than four members.
    large: BTreeMap<TargetId, Box<[NodeId]>>,
    visits: VisitCounter,
    pub(super) journal: Journal,
    /// How far the clock of changes runs ahead of this dispatcher's own; see [`super::gossip`].
    pub(super) ahead: Duration,
}

impl Shard {
    fn new(index: usize, targets_max: usize, spread: Spread) -> Self {
        Self {
            table: ClockTable::spread(targets_max, spread),
            large: BTreeMap::new(),
            visits: VisitCounter::to_shard(index),
            journal: Journal::default(),
            ahead: Duration::ZERO,
        }
    }

    /// The entry of a target, without counting as a use.
    pub(super) fn find(&self, target: TargetId) -> Option<Slot> {
        self.table.find(target)
    }

    /// The entry of a target, used now; made if there was none, in place of one not used lately where the shard is
    /// full. An entry made is empty.
    pub(super) fn touch(&mut self, target: TargetId) -> Slot {
        let fresh = || Entry {
            target,
            changed: Time::ZERO,
            set: InlineSet::EMPTY,
            epoch: 0,
            learned: 0,
            used: false,
        };
        let (slot, forgotten) = self.table.touch(target, fresh);
        if let Some(forgotten) = forgotten {
            self.large.remove(&forgotten.target);
        }
        slot
    }

    /// The members that have not lost their targets since the entry was last looked at.
    pub(super) fn members(&self, slot: Slot, nodes: ClusterView<'_>) -> impl Iterator<Item = NodeId> {
        let entry = self.entry(slot);
        let (epoch, current) = (entry.epoch, self.is_current(slot, nodes));
        let large = if entry.set == InlineSet::EMPTY { self.large.get(&entry.target) } else { None };
        let all = entry.set.iter().chain(large.into_iter().flat_map(|members| members.iter().copied()));
        all.filter(move |node| current || !nodes.lost_since(*node, epoch))
    }

    /// The members that take requests. Another switch's sets name nodes that are up there and may be closed or stand by here.
    pub(super) fn open_members(&self, slot: Slot, nodes: ClusterView<'_>) -> impl Iterator<Item = NodeId> {
        self.members(slot, nodes).filter(move |node| nodes.is_open(*node))
    }

    /// The only member, if there is just one, it takes requests, and none can have been lost: the common case, in one look.
    pub(super) fn sole(&self, slot: Slot, nodes: ClusterView<'_>) -> Option<NodeId> {
        let single = if self.is_current(slot, nodes) { self.entry(slot).set.single() } else { None };
        single.filter(|node| nodes.is_open(*node))
    }

    /// Whether the members were looked at since any node last lost its targets.
    pub(super) fn is_current(&self, slot: Slot, nodes: ClusterView<'_>) -> bool {
        self.entry(slot).epoch == nodes.epoch()
    }

    /// Whether the entry names any server, lost ones included.
    pub(super) fn was_assigned(&self, slot: Slot) -> bool {
        let entry = self.entry(slot);
        entry.set != InlineSet::EMPTY || self.large.contains_key(&entry.target)
    }

    /// When the set last changed.
    pub(super) fn changed(&self, slot: Slot) -> Time {
        let ahead = u64::try_from(self.ahead.as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(self.stamp(slot).as_nanos().saturating_sub(ahead))
    }

    /// The same by the clock of changes.
    pub(super) fn stamp(&self, slot: Slot) -> Time {
        self.entry(slot).changed
    }

    /// Replaces the members, as seen at `epoch`. With `changed` this counts as a change of the set.
    pub(super) fn put(&mut self, slot: Slot, members: &[NodeId], epoch: u32, changed: Option<Time>) {
        let (small, ahead) = (InlineSet::from_slice(members), self.ahead);
        let entry = self.entry_mut(slot);
        let (target, was_large) = (entry.target, entry.set == InlineSet::EMPTY);
        entry.epoch = epoch;
        entry.set = small.unwrap_or(InlineSet::EMPTY);
        if let Some(changed) = changed {
            // Another switch's clock may be ahead: what is decided after that was heard is the later change all the same.
            let after = if entry.changed > Time::ZERO { entry.changed + TICK } else { Time::ZERO };
            entry.changed = (changed + ahead).max(after);
            entry.learned = changed.whole_secs() as u16;
            self.journal.record(target);
        }
        if small.is_none() {
            self.large.insert(target, members.into());
        } else if was_large {
            self.large.remove(&target);
        }
    }

    /// Writes down what was decided for a target with one server: a change unless the server stays.
    pub(super) fn put_sole(
        &mut self,
        slot: Slot,
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

    /// Lays down a set as another has it, with the time of its change by the clock of changes; `learned` by the own one.
    pub(super) fn lay(&mut self, slot: Slot, members: &[NodeId], epoch: u32, stamp: Time, learned: Time) {
        self.put(slot, members, epoch, None);
        let entry = self.entry_mut(slot);
        (entry.changed, entry.learned) = (stamp, learned.whole_secs() as u16);
    }

    fn entry(&self, slot: Slot) -> &Entry {
        self.table.get(slot)
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
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

    /// URLs whose ids agree in the bits that choose a shard and, in part, a bucket. Without a key they share one shard and its
    /// part of the bound; with a key they use the whole map.
    #[test]
    fn crafted_urls_fill_all_shards_of_a_keyed_map() {
        const SHARDS: usize = 64;
        const EACH: usize = 64;
        let agrees = |target: &TargetId| target.0 >> 32 & 63 == 7 && target.0 & 7 == 5;
        let urls = (0..).map(|n| TargetId::of(format!("site.example/{n}").as_bytes()));
        let crafted: Vec<TargetId> = urls.filter(agrees).take(SHARDS * EACH).collect();
        let used = |key: u64| -> Vec<usize> {
            let targets = Targets::spread(2 * SHARDS * EACH, SHARDS, Spread::new(key));
            for target in &crafted {
                targets.shard(*target).touch(*target);
            }
            targets.shards.iter().map(|shard| lock(&shard.0).table.len()).collect()
        };
        let unkeyed = used(0);
        assert_eq!(unkeyed.iter().filter(|len| **len > 0).count(), 1);
        assert_eq!(unkeyed.iter().sum::<usize>(), 2 * EACH, "the shard's part of the bound");
        for key in [1, mix(2), u64::MAX] {
            let keyed = used(key);
            assert_eq!(keyed.iter().sum::<usize>(), crafted.len(), "key {key}: none is forgotten");
            // 64 each; of that many throws into 64 shards none is expected below 20 or above 128.
            assert!(keyed.iter().all(|len| (20..=2 * EACH).contains(len)), "key {key}: {keyed:?}");
        }
    }

    #[test]
    fn a_bucket_is_33_bytes() {
        assert_eq!(BUCKET_BYTES, 33);
    }

    #[test]
    fn large_sets_come_and_go() {
        let (targets, nodes) = (Targets::new(8, 1), nodes());
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
    fn a_forgotten_target_takes_its_large_set_with_it() {
        let (targets, nodes) = (Targets::new(1, 1), nodes());
        let mut shard = targets.shard(TargetId(1));
        let slot = shard.touch(TargetId(1));
        let many: Vec<NodeId> = (0..9).map(NodeId).collect();
        shard.put(slot, &many, nodes.epoch(), None);
        let slot = shard.touch(TargetId(2));
        assert_eq!(shard.members(slot, ClusterView::live(&nodes)).count(), 0);
        assert!(shard.find(TargetId(1)).is_none() && shard.large.is_empty());
    }

    #[test]
    fn a_full_map_stays_at_its_size_for_good() {
        let targets = Targets::new(1_000, 1);
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
        /// A target that is used between any two new ones is never forgotten for them, and the newest is always known.
        #[test]
        fn targets_in_use_are_kept(news in 1_u64..800, max in 2_usize..40) {
            let targets = Targets::new(max, 1);
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
