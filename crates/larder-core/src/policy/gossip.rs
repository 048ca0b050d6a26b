//! Server sets between switches: what has changed here, what another has, and which of two sets is the later one.
//!
//! The last change wins: of two sets of a target the one that changed later stays, at every switch, in whatever order they
//! are heard. Of two changes at the same moment the one whose servers' names hash higher stays. So all end up with the same
//! set once all have heard of all changes; between two changes at once one is lost, and with it some locality.
//!
//! Changes are dated by a clock that switches share, which runs ahead of a dispatcher's own by what it is told
//! ([`Targets::run_ahead`]). A change's date stays what it was when it was made, or no two switches would compare alike. Nodes
//! that a switch has lost drop out of its sets; that is no change, and is told to nobody: each looks after nodes by itself.
//!
//! Each entry also has the second in which its set was made or heard here: who has missed something asks for what was learned since,
//! whatever its date.

use super::LearnedState;
use super::targets::{Shard, Targets};
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, lock};
use crate::time::Time;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// What has changed since it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The sets as they are now.
    pub sets: LearnedState,
    /// Some changes are not among them, and will not be.
    pub missed: bool,
    /// Some changes are left for the next time.
    pub more: bool,
}

/// A part of all sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The sets.
    pub sets: LearnedState,
    /// Where the next part begins; `None` after the last one.
    pub next: Option<u64>,
}

/// What became of another's sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Later than what was known: taken.
    pub taken: usize,
    /// The same as what was known.
    pub same: usize,
    /// Earlier than what was known: left.
    pub older: usize,
}

/// Where a page ends: a shard, its table as it is laid now, and a bucket of that.
struct Place {
    shard: usize,
    laid: u32,
    bucket: usize,
}

impl Place {
    const LAID_BITS: u32 = 20;

    fn laid(shard: &Shard) -> u32 {
        shard.table.laid() & ((1 << Self::LAID_BITS) - 1)
    }

    /// There are at most 4,096 shards.
    const fn number(&self) -> u64 {
        (self.shard as u64) << (32 + Self::LAID_BITS) | (self.laid as u64) << 32 | self.bucket as u64
    }

    const fn of(number: u64) -> Self {
        let laid = (number >> 32) as u32 & ((1 << Self::LAID_BITS) - 1);
        Self { shard: (number >> (32 + Self::LAID_BITS)) as usize, laid, bucket: number as u32 as usize }
    }
}

impl Targets {
    /// Changes are dated so far ahead of the own clock from now on.
    pub(crate) fn run_ahead(&self, ahead: Duration) {
        self.shards.iter().for_each(|shard| lock(&shard.0).ahead = ahead);
    }

    /// Keeps journals from now on.
    pub(crate) fn keep_journals(&self) {
        self.shards.iter().for_each(|shard| lock(&shard.0).journal.enabled = true);
    }

    /// The sets that have changed since they were last asked for, about `most` of them; the rest stays for the next time.
    pub(crate) fn changes(&self, most: usize, nodes: ClusterView<'_>) -> Changes {
        let (mut changes, first) = (Changes::default(), self.next.load(Ordering::Relaxed));
        for step in 0..self.shards.len() {
            let at = (first + step) % self.shards.len();
            if changes.sets.len() >= most {
                self.next.store(at, Ordering::Relaxed);
                changes.more = true;
                return changes;
            }
            let mut shard = lock(&self.shards[at].0);
            changes.missed |= core::mem::take(&mut shard.journal.missed);
            let mut changed = core::mem::take(&mut shard.journal.changed);
            changed.sort_unstable();
            changed.dedup();
            for target in &changed {
                shard.show(*target, &mut changes.sets, nodes);
            }
            changed.clear();
            shard.journal.changed = changed;
        }
        changes
    }

    /// About `most` of the sets that were made or heard here at `since` or later by the own clock, and some others, from the place
    /// `at` on, which is 0 or the last page's `next`. Where a shard's table was laid anew since the last page it is shown from
    /// its beginning. What changes meanwhile may be missing: it is told anyway.
    pub(crate) fn page(
        &self,
        (now, since): (Time, Time),
        at: u64,
        most: usize,
        nodes: ClusterView<'_>,
    ) -> Page {
        let Place { shard: first, laid, bucket } = Place::of(at);
        let mut page = Page::default();
        for (index, shard) in self.shards.iter().enumerate().skip(first) {
            let shard = lock(&shard.0);
            let begin = if index == first && laid == Place::laid(&shard) { bucket } else { 0 };
            for (bucket, slot, entry) in shard.table.slots_from(begin) {
                if page.sets.len() >= most {
                    page.next = Some(Place { shard: index, laid: Place::laid(&shard), bucket }.number());
                    return page;
                }
                if entry.learned_since(since, now) {
                    page.sets.push((entry.target, entry.changed, entry.used), shard.members(slot, nodes));
                }
            }
        }
        page
    }

    /// Takes over those sets that are later than what is known here. No use is counted.
    pub(crate) fn adopt(&self, now: Time, sets: &LearnedState, nodes: ClusterView<'_>) -> Adopted {
        let (mut adopted, epoch) = (Adopted::default(), nodes.epoch());
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
                shard.lay(slot, set.servers, epoch, set.changed, now);
            } else {
                let slot = shard.touch(set.target);
                shard.lay(slot, set.servers, epoch, set.changed, now);
            }
            adopted.taken += 1;
        }
        adopted
    }
}

impl Shard {
    /// Adds a target's set as it is now; a target that was forgotten since is left out.
    fn show(&self, target: TargetId, to: &mut LearnedState, nodes: ClusterView<'_>) {
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

    fn set(targets: &Targets, nodes: &Nodes, target: u64, servers: &[u16], at: u64) {
        let mut shard = targets.shard(TargetId(target));
        let slot = shard.touch(TargetId(target));
        let servers: Vec<NodeId> = servers.iter().copied().map(NodeId).collect();
        shard.put(slot, &servers, nodes.epoch(), Some(Time::from_nanos(at)));
    }

    #[test]
    fn what_changes_is_told_once_and_what_is_adopted_is_not_told_on() {
        let nodes = nodes(&["a", "b", "c"]);
        let view = ClusterView::live(&nodes);
        let (ours, theirs) = (Targets::new(100, 4), Targets::new(100, 4));
        set(&ours, &nodes, 1, &[0], 5);
        ours.keep_journals();
        theirs.keep_journals();
        for target in 0..20 {
            set(&ours, &nodes, mix(target), &[0, 1], 10 + target);
            set(&ours, &nodes, mix(target), &[2], 100 + target);
        }
        let mut told = 0;
        while let changes @ Changes { missed: false, .. } = ours.changes(5, view) {
            if changes.sets.is_empty() {
                break;
            }
            told += changes.sets.len();
            assert!(changes.sets.sets().all(|set| set.servers == [NodeId(2)]), "the last change alone");
            assert_eq!(theirs.adopt(Time::ZERO, &changes.sets, view).taken, changes.sets.len());
        }
        assert_eq!(told, 20, "what was there before the journal is for those who ask");
        assert_eq!(theirs.changes(100, view), Changes::default(), "no echo");
    }

    #[test]
    fn a_full_journal_says_so_once() {
        use crate::policy::journal::JOURNAL_MAX;
        let nodes = nodes(&["a"]);
        let view = ClusterView::live(&nodes);
        let targets = Targets::new(4_000, 1);
        targets.keep_journals();
        for target in 0..=JOURNAL_MAX as u64 {
            set(&targets, &nodes, mix(target), &[0], 1);
        }
        let changes = targets.changes(10_000, view);
        assert_eq!((changes.sets.len(), changes.missed), (JOURNAL_MAX, true));
        assert!(!targets.changes(10_000, view).missed);
    }

    #[test]
    fn a_later_decision_wins_over_a_clock_that_is_ahead() {
        let nodes = nodes(&["a", "b"]);
        let view = ClusterView::live(&nodes);
        let targets = Targets::new(10, 1);
        set(&targets, &nodes, 1, &[0], 5_000);
        let ahead = targets.learned_state(view);
        set(&targets, &nodes, 1, &[1], 10);
        let adopted = targets.adopt(Time::ZERO, &ahead, view);
        assert_eq!((adopted.older, adopted.taken), (1, 0));
    }

    #[test]
    fn the_clock_of_changes_runs_ahead_and_dates_stay() {
        let nodes = nodes(&["a", "b"]);
        let targets = Targets::new(10, 1);
        set(&targets, &nodes, 1, &[0], 100);
        targets.run_ahead(Duration::from_nanos(1_000));
        set(&targets, &nodes, 2, &[0], 100);
        let stamp = |target| {
            let shard = targets.shard(TargetId(target));
            let slot = shard.find(TargetId(target)).expect("it was set");
            (shard.stamp(slot).as_nanos(), shard.changed(slot).as_nanos())
        };
        assert_eq!((stamp(1), stamp(2)), ((100, 0), (1_100, 100)));
    }

    #[test]
    fn pages_show_every_set_since() {
        let nodes = nodes(&["a"]);
        let view = ClusterView::live(&nodes);
        let targets = Targets::new(1_000, 4);
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
    fn pages_miss_nothing_where_a_table_grows_between_them() {
        let nodes = nodes(&["a"]);
        let view = ClusterView::live(&nodes);
        let targets = Targets::new(2_000, 1);
        (0..200).for_each(|target| set(&targets, &nodes, mix(target), &[0], 1));
        let (mut at, mut seen, mut pages) = (Some(0), Vec::new(), 0);
        while let Some(from) = at {
            let page = targets.page((Time::ZERO, Time::ZERO), from, 20, view);
            seen.extend(page.sets.sets().map(|set| set.target));
            (at, pages) = (page.next, pages + 1);
            if pages == 5 {
                // Its entries find other buckets, and so they do where it is full and some are forgotten.
                (200..9_000).for_each(|target| set(&targets, &nodes, mix(target % 1_500), &[0], 1));
            }
        }
        assert!((0..200).all(|target| seen.contains(&TargetId(mix(target)))));
    }

    #[test]
    fn what_was_learned_of_late_is_found_whatever_its_date() {
        let nodes = nodes(&["a", "b"]);
        let view = ClusterView::live(&nodes);
        let theirs = Targets::new(10, 1);
        set(&theirs, &nodes, 1, &[0], 5);
        let old = theirs.learned_state(view);
        // Seconds are kept in two bytes.
        for now in [100, 65_536, 65_536 + 40, 400_000].map(Time::from_secs) {
            let targets = Targets::new(10, 1);
            assert_eq!(targets.adopt(now, &old, view).taken, 1);
            let shown = |later: u64, ago: u64| {
                let at = Time::from_secs(now.whole_secs() + later);
                let since = Time::from_secs(at.whole_secs().saturating_sub(ago));
                targets.page((at, since), 0, 10, view).sets.len()
            };
            assert_eq!((shown(0, 0), shown(50, 50), shown(50, 49), shown(50, 40)), (1, 1, 0, 0));
            assert_eq!((shown(65_500, 65_500), shown(200_000, 200_000)), (1, 1));
            let ahead = targets.page((Time::from_secs(now.whole_secs() - 1), now), 0, 10, view);
            assert_eq!(ahead.sets.len(), 1, "another thread's clock was read a moment later");
        }
    }

    proptest! {
        /// Whatever changes were made where, and in whatever order they are heard, all have the same sets in the end, though
        /// their nodes are in different slots.
        #[test]
        fn sets_converge(changes in prop::collection::vec((0_u64..4, 0_u16..3, 0_u64..6, any::<bool>()), 1..40)) {
            let (left, right) = (nodes(&["a", "b", "c"]), nodes(&["c", "a", "b"]));
            let (ours, theirs) = (Targets::new(100, 2), Targets::new(100, 2));
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
            let sorted = |memory: &LearnedState| {
                let mut sets: Vec<_> = memory.sets().map(|set| (set.target, set.changed, set.servers.to_vec())).collect();
                sets.sort_unstable();
                sets
            };
            let (ours, theirs) = (ours.learned_state(ClusterView::live(&left)), theirs.learned_state(ClusterView::live(&right)).with_nodes(back));
            prop_assert_eq!(sorted(&ours), sorted(&theirs));
        }
    }
}
