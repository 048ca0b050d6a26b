//! The exchange of server sets between switches: the changes here, the sets of another switch, and the rule for
//! conflicts.
//!
//! The last change wins. Of two sets of a target, the one that changed later stays at every switch, in whatever
//! order they arrive. If both changed at the same time, the set whose servers' names have the higher hashes stays.
//! All switches therefore have the same set once all have received all changes. Of two concurrent changes one is
//! lost, and with it some locality.
//!
//! Changes are dated by a clock that the switches share. It is ahead of a dispatcher's clock by a given offset
//! ([`TargetMap::set_clock_offset`]). The date of a change never changes, because otherwise two switches would not
//! compare alike. Nodes that a switch has lost drop out of its sets. That is no change and is not sent, because each
//! switch tracks the nodes itself.
//!
//! Each entry also has the second in which its set was created or received here. A switch that has missed changes
//! asks for the sets received since a time, whatever the dates of their changes.

use super::LearnedState;
use super::targets::{TargetMap, TargetShard};
use crate::id::{NodeId, TargetId};
use crate::nodes::ClusterView;
use crate::time::Time;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// The server sets that have changed since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetChanges {
    /// The current sets of the changed targets.
    pub(crate) sets: LearnedState,
    /// Whether some changes were lost and will not be returned.
    pub(crate) missed: bool,
    /// Whether some changes remain for the next call.
    pub(crate) more: bool,
}

/// A part of all server sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetPage {
    /// The sets.
    pub(crate) sets: LearnedState,
    /// The position at which the next part begins; `None` after the last part.
    pub(crate) next: Option<u64>,
}

/// The results of adopting the server sets of another switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdoptionCounts {
    /// The number of sets that were newer than the stored ones and were taken.
    pub(crate) taken: usize,
    /// The number of sets equal to the stored ones.
    pub(crate) same: usize,
    /// The number of sets older than the stored ones, which were ignored.
    pub(crate) older: usize,
}

/// The position at which a page ends: a shard, the version of its table layout, and a bucket.
struct PagePosition {
    shard: usize,
    layout: u32,
    bucket: usize,
}

impl PagePosition {
    const LAID_BITS: u32 = 20;

    fn layout(shard: &TargetShard) -> u32 {
        shard.table.layout_version() & ((1 << Self::LAID_BITS) - 1)
    }

    /// Encodes the position as a number. There are at most 4,096 shards.
    const fn number(&self) -> u64 {
        (self.shard as u64) << (32 + Self::LAID_BITS) | (self.layout as u64) << 32 | self.bucket as u64
    }

    const fn of(number: u64) -> Self {
        let layout = (number >> 32) as u32 & ((1 << Self::LAID_BITS) - 1);
        Self { shard: (number >> (32 + Self::LAID_BITS)) as usize, layout, bucket: number as u32 as usize }
    }
}

impl TargetMap {
    /// Sets the offset by which changes are dated ahead of the dispatcher's clock.
    pub(crate) fn set_clock_offset(&self, clock_offset: Duration) {
        self.shards.iter().for_each(|shard| shard.0.lock().clock_offset = clock_offset);
    }

    /// Enables the journals.
    pub(crate) fn keep_journals(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().journal.enabled = true);
    }

    /// Returns about `most` of the sets that have changed since the last call. The rest remains for the next call.
    pub(crate) fn changes(&self, most: usize, nodes: ClusterView<'_>) -> SetChanges {
        let (mut changes, first) = (SetChanges::default(), self.next.load(Ordering::Relaxed));
        for step in 0..self.shards.len() {
            let at = (first + step) % self.shards.len();
            if changes.sets.len() >= most {
                self.next.store(at, Ordering::Relaxed);
                changes.more = true;
                return changes;
            }
            let mut shard = self.shards[at].0.lock();
            changes.missed |= core::mem::take(&mut shard.journal.missed);
            let mut changed = core::mem::take(&mut shard.journal.changed);
            changed.sort_unstable();
            changed.dedup();
            for target in &changed {
                shard.append_set(*target, &mut changes.sets, nodes);
            }
            changed.clear();
            shard.journal.changed = changed;
        }
        changes
    }

    /// Returns a page of about `most` sets that were created or received here at `since` or later by the
    /// dispatcher's clock, and some others. The page starts at the position `at`, which is 0 or the last page's
    /// `next`.
    ///
    /// If the layout of a shard's table changed since the last page, the shard starts from its beginning. Sets that
    /// change meanwhile may be missing, because they are sent as changes anyway.
    pub(crate) fn page(
        &self,
        (now, since): (Time, Time),
        at: u64,
        most: usize,
        nodes: ClusterView<'_>,
    ) -> SetPage {
        let PagePosition { shard: first, layout, bucket } = PagePosition::of(at);
        let mut page = SetPage::default();
        for (index, shard) in self.shards.iter().enumerate().skip(first) {
            let shard = shard.0.lock();
            let begin = if index == first && layout == PagePosition::layout(&shard) { bucket } else { 0 };
            for (bucket, slot, entry) in shard.table.slots_from(begin) {
                if page.sets.len() >= most {
                    page.next = Some(
                        PagePosition { shard: index, layout: PagePosition::layout(&shard), bucket }.number(),
                    );
                    return page;
                }
                if entry.received_since(since, now) {
                    page.sets.push((entry.target, entry.changed, entry.used), shard.members(slot, nodes));
                }
            }
        }
        page
    }

    /// Adopts the sets that are newer than the stored ones. This does not mark them as used.
    pub(crate) fn adopt(&self, now: Time, sets: &LearnedState, nodes: ClusterView<'_>) -> AdoptionCounts {
        let (mut adopted, epoch) = (AdoptionCounts::default(), nodes.epoch());
        let identities = |servers: &mut dyn Iterator<Item = NodeId>| -> Vec<u64> {
            servers.map(|node| nodes.identity(node)).collect()
        };
        for set in sets.sets() {
            let mut shard = self.shard(set.target);
            if let Some(slot) = shard.find(set.target) {
                let theirs = (set.changed, identities(&mut set.servers.iter().copied()));
                let ours = (shard.stamp(slot), identities(&mut shard.members(slot, nodes)));
                if theirs <= ours {
                    adopted.same += usize::from(theirs == ours);
                    adopted.older += usize::from(theirs < ours);
                    continue;
                }
                shard.store_received(slot, set.servers, epoch, set.changed, now);
            } else {
                let slot = shard.touch(set.target);
                shard.store_received(slot, set.servers, epoch, set.changed, now);
            }
            adopted.taken += 1;
        }
        adopted
    }
}

impl TargetShard {
    /// Appends a target's current set; a target that has been evicted since is omitted.
    fn append_set(&self, target: TargetId, to: &mut LearnedState, nodes: ClusterView<'_>) {
        if let Some(slot) = self.find(target) {
            let used = self.table.get(slot).used;
            to.push((target, self.stamp(slot), used), self.members(slot, nodes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{JoinPace, NodeSpec, Nodes, mix};
    use crate::read_source::ReadSource;
    use proptest::prelude::*;

    fn nodes(names: &[&str]) -> Nodes {
        let nodes = Nodes::new(8, JoinPace { targets_per_s: 1, warm_targets: 0 });
        for name in names {
            nodes.join(Time::ZERO, NodeSpec::named(*name), true, ReadSource::LIVE, |_| {}).expect("room");
        }
        nodes
    }

    fn set(targets: &TargetMap, nodes: &Nodes, target: u64, servers: &[u16], at: u64) {
        let mut shard = targets.shard(TargetId(target));
        let slot = shard.touch(TargetId(target));
        let servers: Vec<NodeId> = servers.iter().copied().map(NodeId).collect();
        shard.put(slot, &servers, nodes.epoch(), Some(Time::from_nanos(at)));
    }

    #[test]
    fn changes_are_returned_once_and_adopted_sets_are_not_returned() {
        let nodes = nodes(&["a", "b", "c"]);
        let view = ClusterView::live(&nodes);
        let (ours, theirs) = (TargetMap::new(100, 4), TargetMap::new(100, 4));
        set(&ours, &nodes, 1, &[0], 5);
        ours.keep_journals();
        theirs.keep_journals();
        for target in 0..20 {
            set(&ours, &nodes, mix(target), &[0, 1], 10 + target);
            set(&ours, &nodes, mix(target), &[2], 100 + target);
        }
        let mut told = 0;
        while let changes @ SetChanges { missed: false, .. } = ours.changes(5, view) {
            if changes.sets.is_empty() {
                break;
            }
            told += changes.sets.len();
            assert!(changes.sets.sets().all(|set| set.servers == [NodeId(2)]), "the last change alone");
            assert_eq!(theirs.adopt(Time::ZERO, &changes.sets, view).taken, changes.sets.len());
        }
        assert_eq!(told, 20, "what was there before the journal is for those who ask");
        assert_eq!(theirs.changes(100, view), SetChanges::default(), "no echo");
    }

    #[test]
    fn full_journal_reports_a_loss_once() {
        use crate::policy::journal::JOURNAL_MAX;
        let nodes = nodes(&["a"]);
        let view = ClusterView::live(&nodes);
        let targets = TargetMap::new(4_000, 1);
        targets.keep_journals();
        for target in 0..=JOURNAL_MAX as u64 {
            set(&targets, &nodes, mix(target), &[0], 1);
        }
        let changes = targets.changes(10_000, view);
        assert_eq!((changes.sets.len(), changes.missed), (JOURNAL_MAX, true));
        assert!(!targets.changes(10_000, view).missed);
    }

    #[test]
    fn later_decision_wins_over_a_clock_that_is_ahead() {
        let nodes = nodes(&["a", "b"]);
        let view = ClusterView::live(&nodes);
        let targets = TargetMap::new(10, 1);
        set(&targets, &nodes, 1, &[0], 5_000);
        let clock_offset = targets.learned_state(view);
        set(&targets, &nodes, 1, &[1], 10);
        let adopted = targets.adopt(Time::ZERO, &clock_offset, view);
        assert_eq!((adopted.older, adopted.taken), (1, 0));
    }

    #[test]
    fn clock_of_changes_is_ahead_and_dates_stay() {
        let nodes = nodes(&["a", "b"]);
        let targets = TargetMap::new(10, 1);
        set(&targets, &nodes, 1, &[0], 100);
        targets.set_clock_offset(Duration::from_nanos(1_000));
        set(&targets, &nodes, 2, &[0], 100);
        let stamp = |target| {
            let shard = targets.shard(TargetId(target));
            let slot = shard.find(TargetId(target)).expect("it was set");
            (shard.stamp(slot).as_nanos(), shard.changed(slot).as_nanos())
        };
        assert_eq!((stamp(1), stamp(2)), ((100, 0), (1_100, 100)));
    }

    #[test]
    fn pages_contain_every_set_since_a_time() {
        let nodes = nodes(&["a"]);
        let view = ClusterView::live(&nodes);
        let targets = TargetMap::new(1_000, 4);
        let second = |target: u64| (target + 1) * 1_000_000_000;
        (0..300).for_each(|target| set(&targets, &nodes, mix(target), &[0], second(target)));
        let (mut at, mut seen) = (Some(0), Vec::new());
        while let Some(from) = at {
            let page = targets.page((Time::from_secs(301), Time::from_secs(101)), from, 7, view);
            assert!(page.sets.len() <= 7);
            seen.extend(page.sets.sets().map(|set| set.target));
            at = page.next;
        }
        seen.sort_unstable();
        let mut expected: Vec<TargetId> = (100..300).map(|target| TargetId(mix(target))).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }

    #[test]
    fn pages_miss_no_set_when_a_table_grows_between_them() {
        let nodes = nodes(&["a"]);
        let view = ClusterView::live(&nodes);
        let targets = TargetMap::new(2_000, 1);
        (0..200).for_each(|target| set(&targets, &nodes, mix(target), &[0], 1));
        let (mut at, mut seen, mut pages) = (Some(0), Vec::new(), 0);
        while let Some(from) = at {
            let page = targets.page((Time::ZERO, Time::ZERO), from, 20, view);
            seen.extend(page.sets.sets().map(|set| set.target));
            (at, pages) = (page.next, pages + 1);
            if pages == 5 {
                // Its entries move to other buckets, also if it is full and some are evicted.
                (200..9_000).for_each(|target| set(&targets, &nodes, mix(target % 1_500), &[0], 1));
            }
        }
        assert!((0..200).all(|target| seen.contains(&TargetId(mix(target)))));
    }

    #[test]
    fn recently_received_sets_are_found_whatever_their_date() {
        let nodes = nodes(&["a", "b"]);
        let view = ClusterView::live(&nodes);
        let theirs = TargetMap::new(10, 1);
        set(&theirs, &nodes, 1, &[0], 5);
        let old = theirs.learned_state(view);
        // Seconds are stored in two bytes.
        for now in [100, 65_536, 65_536 + 40, 400_000].map(Time::from_secs) {
            let targets = TargetMap::new(10, 1);
            assert_eq!(targets.adopt(now, &old, view).taken, 1);
            let shown = |later: u64, ago: u64| {
                let at = Time::from_secs(now.whole_secs() + later);
                let since = Time::from_secs(at.whole_secs().saturating_sub(ago));
                targets.page((at, since), 0, 10, view).sets.len()
            };
            assert_eq!((shown(0, 0), shown(50, 50), shown(50, 49), shown(50, 40)), (1, 1, 0, 0));
            assert_eq!((shown(65_500, 65_500), shown(200_000, 200_000)), (1, 1));
            let clock_offset = targets.page((Time::from_secs(now.whole_secs() - 1), now), 0, 10, view);
            assert_eq!(clock_offset.sets.len(), 1, "another thread's clock was read a moment later");
        }
    }

    proptest! {
        /// After all switches have received all changes, in any order, all have the same sets, although their nodes
        /// have different slots.
        #[test]
        fn sets_converge(changes in prop::collection::vec((0_u64..4, 0_u16..3, 0_u64..6, any::<bool>()), 1..40)) {
            let (left, right) = (nodes(&["a", "b", "c"]), nodes(&["c", "a", "b"]));
            let (ours, theirs) = (TargetMap::new(100, 2), TargetMap::new(100, 2));
            ours.keep_journals();
            theirs.keep_journals();
            let across = |node: NodeId| Some(NodeId((node.0 + 1) % 3));
            let back = |node: NodeId| Some(NodeId((node.0 + 2) % 3));
            for (target, server, at, here) in changes {
                let (targets, table) = if here { (&ours, &left) } else { (&theirs, &right) };
                set(targets, table, target, &[server], at);
            }
            let told = ours.changes(1_000, ClusterView::live(&left)).sets;
            let heard = theirs.changes(1_000, ClusterView::live(&right)).sets;
            theirs.adopt(Time::ZERO, &told.with_nodes(across), ClusterView::live(&right));
            ours.adopt(Time::ZERO, &heard.with_nodes(back), ClusterView::live(&left));
            let sorted = |saved: &LearnedState| {
                let mut sets: Vec<_> = saved.sets().map(|set| (set.target, set.changed, set.servers.to_vec())).collect();
                sets.sort_unstable();
                sets
            };
            let (ours, theirs) = (ours.learned_state(ClusterView::live(&left)), theirs.learned_state(ClusterView::live(&right)).with_nodes(back));
            prop_assert_eq!(sorted(&ours), sorted(&theirs));
        }
    }
}
