//! Switches side by side: what the others have at the nodes, and where a target goes so that all of them agree.
//!
//! Loads of other switches are as old as their last word ([`crate::switches`]). Nodes whose loads lie closer together than
//! that makes certain count as equal, and the target's own hash decides among them: weighted rendezvous over the nodes'
//! names (Thaler and Ravishankar, IEEE/ACM Transactions on Networking 6(1), 1998)
//!
//! ```text
//! u(n, t) = hash(name of n, t) in (0, 1)
//! score   = -ln(u(n, t)) / width(n)          width: the cache's size where all are known and differ, else the weight
//! ```
//! and the least score wins. Two switches that place the same target without having spoken choose the same node, whatever
//! order their nodes came in, as long as both count it among the equals; and different targets go to different nodes, so
//! that switches with the same old picture do not all run to the one node that seemed least loaded.

use super::load::Key;
use super::view::{Entry, View};
use super::{GroupId, Nodes, Sight, mix, slot};
use crate::curve::ln;
use crate::id::{NodeId, TargetId};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// What the other switches have, as they last told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Other switches that live.
    pub switches: u32,
    /// Their requests at each node, by slot; nodes beyond the list have none.
    pub requests: Vec<u32>,
    /// Nodes whose loads differ by no more than this count as equal when a target is placed. Connections at a node of
    /// weight 1.
    pub apart: u32,
    /// How far the clock by which changes of server sets are dated runs ahead of the dispatcher's own.
    pub ahead: Duration,
    /// What they have admitted, by group of nodes; see [`fair_share`].
    pub admitted: Vec<(GroupId, Vec<Option<Demand>>)>,
}

/// What a switch has admitted, and what waits there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests admitted and not ended.
    pub outstanding: u32,
    /// Requests waiting for admission.
    pub waiting: u32,
}

/// A switch's part of S requests: max-min fair among all of them, where this one could use any number. What the others do
/// not use is shared by those who want more; a switch whose demand is unknown is taken to want all it can get. Never less
/// than `total / (others + 1)`, rounded down, or 1.
///
/// With demands as told, the parts in use sum up to S at most. A switch that wakes up finds its equal part at once, before
/// the others have heard of it: for that moment there may be up to one such part more.
pub fn fair_share(total: u32, others: &[Option<Demand>]) -> u32 {
    let wants = |demand: &Option<Demand>| {
        demand.map_or(u32::MAX, |demand| demand.outstanding.saturating_add(demand.waiting))
    };
    let mut wanted: Vec<u32> = others.iter().map(wants).collect();
    wanted.sort_unstable();
    let (mut left, mut sharers) = (u64::from(total), wanted.len() as u64 + 1);
    for want in wanted {
        if u64::from(want) * sharers >= left {
            break;
        }
        left -= u64::from(want);
        sharers -= 1;
    }
    u32::try_from(left / sharers).unwrap_or(u32::MAX).max(1)
}

/// What the table keeps of it, for decisions.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// [`Elsewhere::apart`] as a key and 1; 0 where there are no other switches.
    apart: AtomicU64,
    requests: AtomicU32,
}

impl Shared {
    /// Nodes whose loads differ by no more count as equal; `None` where there are no other switches.
    #[inline]
    pub(super) fn apart(&self) -> Option<u64> {
        self.apart.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl Nodes {
    /// Lets decisions go by what other switches have.
    pub(crate) fn set_elsewhere(&self, elsewhere: &Elsewhere) {
        let sum: u64 = elsewhere.requests.iter().map(|requests| u64::from(*requests)).sum();
        self.shared.requests.store(u32::try_from(sum).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.loads.set_elsewhere(Some(&elsewhere.requests));
        self.shared.apart.store(Key::of(elsewhere.apart).get() + 1, Ordering::Relaxed);
    }

    /// Requests of other switches at `node`, as they last told.
    pub fn elsewhere(&self, node: NodeId) -> u32 {
        if node.index() < self.slots() { self.loads.elsewhere(node.index()) } else { 0 }
    }

    /// Requests of other switches at all nodes.
    pub(super) fn elsewhere_total(&self) -> u32 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// What stands for a node at every switch: the hash of its name.
    pub(crate) fn identity(&self, node: NodeId) -> u64 {
        self.view.load().rows.get(node.index()).map_or(0, |entry| entry.identity)
    }
}

impl Sight<'_> {
    /// Where a target goes that all switches are to place alike: by rendezvous among the open nodes with a key below
    /// `bound`. O(n).
    pub(super) fn agreed(
        self,
        target: TargetId,
        bound: Key,
        view: &View,
        skip: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let pool = view.pool(self.group);
        let by_cache = pool.has_widths();
        let width = |entry: &Entry| {
            if by_cache { entry.cache.get() as f64 } else { f64::from(entry.weight.milli()) }
        };
        let mut best = (f64::INFINITY, u64::MAX, None);
        let mut offer = |index: usize| {
            let (node, Some(entry)) = (slot(index), view.rows.get(index)) else { return };
            if self.key(node) >= bound.min(Key::CLOSED) || skip(node) {
                return;
            }
            let score = (score(entry.identity, target) / width(entry), entry.identity);
            if score < (best.0, best.1) {
                best = (score.0, score.1, Some(node));
            }
        };
        if self.sees_all() {
            (0..self.slots()).for_each(&mut offer);
        } else {
            pool.from(0).for_each(&mut offer);
        }
        best.2
    }
}

/// -ln of a number in (0, 1) that node and target draw.
fn score(identity: u64, target: TargetId) -> f64 {
    let drawn = mix(identity ^ mix(target.0)) >> 11;
    -ln((drawn as f64 + 0.5) / (1_u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::{JoinPace, NodeSpec, Placing, Weight};
    use super::*;
    use crate::source::Source;
    use crate::time::Time;
    use proptest::prelude::*;

    fn table(names: &[&str], elsewhere: &Elsewhere) -> Nodes {
        let nodes = Nodes::new(16, JoinPace { targets_per_s: 1, warm_targets: 0 });
        for name in names {
            nodes.join(Time::ZERO, NodeSpec::named(*name), true, Source::LIVE, |_| {}).expect("room");
        }
        nodes.set_elsewhere(elsewhere);
        nodes
    }

    fn placed(nodes: &Nodes, target: u64) -> String {
        let placing = Placing::first(Key::of(25), false);
        let node = Sight::live(nodes).place(Time::ZERO, TargetId(mix(target)), |_| false, placing);
        nodes.name(node.expect("some are open")).to_string()
    }

    #[test]
    fn switches_that_never_spoke_place_alike_and_a_lost_node_moves_its_own_alone() {
        let one = Elsewhere { switches: 1, apart: 4, ..Elsewhere::default() };
        let (a, b) = (table(&["x", "y", "z"], &one), table(&["z", "w", "x", "y"], &one));
        let gone = table(&["z", "x", "y"], &one);
        let mut counts = [0; 3];
        for target in 0..3_000 {
            let there = placed(&a, target);
            assert_eq!(there, placed(&gone, target), "the order of nodes means nothing");
            let among_four = placed(&b, target);
            assert!(among_four == there || among_four == "w");
            counts[["x", "y", "z"].iter().position(|name| *name == there).expect("one of them")] += 1;
        }
        // Five standard deviations of a third of 3,000.
        assert!(counts.iter().all(|count| (871..=1129).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_node_that_others_have_loaded_is_left_alone() {
        let full = Elsewhere { switches: 1, requests: vec![0, 60, 3], apart: 4, ..Elsewhere::default() };
        let nodes = table(&["x", "y", "z"], &full);
        assert!((0..300).all(|target| placed(&nodes, target) != "y"), "it is above T_low");
        assert_eq!((nodes.load(NodeId(1)), nodes.elsewhere(NodeId(1))), (0, 60));
        let sight = Sight::live(&nodes);
        assert_eq!((sight.load(NodeId(1)), sight.outstanding_count()), (60, 63));
        let relief = |target| {
            let placing = Placing::relief(false);
            sight.place(Time::ZERO, TargetId(mix(target)), |_| false, placing).expect("open")
        };
        let chosen: Vec<NodeId> = (0..64).map(relief).collect();
        assert!(chosen.contains(&NodeId(0)) && chosen.contains(&NodeId(2)), "0 and 3 cannot be told apart");
        assert!(!chosen.contains(&NodeId(1)));
    }

    #[test]
    fn shares_follow_weights_where_caches_are_equal() {
        let nodes = table(&["x"], &Elsewhere { switches: 1, apart: 4, ..Elsewhere::default() });
        let spec =
            NodeSpec { weight: Weight::from_milli(3_000).expect("in range"), ..NodeSpec::named("big") };
        nodes.join(Time::ZERO, spec, true, Source::LIVE, |_| {}).expect("room");
        let big = (0..4_000).filter(|target| placed(&nodes, *target) == "big").count();
        // Three in four, five standard deviations.
        assert!((2_863..=3_137).contains(&big), "{big}");
    }

    #[test]
    fn parts_of_s_are_fair() {
        let demand = |outstanding, waiting| Some(Demand { outstanding, waiting });
        assert_eq!(fair_share(90, &[]), 90);
        assert_eq!(fair_share(90, &[demand(0, 0)]), 90, "an idle one leaves all of it");
        assert_eq!(fair_share(90, &[demand(30, 0)]), 60);
        assert_eq!(fair_share(90, &[demand(80, 40)]), 45, "who wants more than his part gets his part");
        assert_eq!(fair_share(90, &[None, demand(10, 0)]), 40);
        assert_eq!(fair_share(1, &[None; 7]), 1, "nobody starves");
        assert_eq!(fair_share(u32::MAX, &[None]), u32::MAX / 2);
    }

    proptest! {
        /// Each takes what it wants up to its part: together that is S at most (and one each at least), and nobody who
        /// wants more could have more without another below him having less.
        #[test]
        fn parts_sum_up_to_s_at_most(total in 1_u32..5_000, wants in prop::collection::vec(0_u32..3_000, 1..9)) {
            let demands: Vec<Option<Demand>> =
                wants.iter().map(|want| Some(Demand { outstanding: *want, waiting: 0 })).collect();
            let taken: u64 = wants.iter().enumerate().map(|(own, want)| {
                let mut others = demands.clone();
                others.remove(own);
                u64::from((*want).min(fair_share(total, &others)))
            }).sum();
            prop_assert!(taken <= u64::from(total).max(wants.len() as u64));
            let wanted: u64 = wants.iter().map(|want| u64::from(*want)).sum();
            prop_assert!(taken + wants.len() as u64 > wanted.min(u64::from(total)), "nothing is left unused");
        }
    }
}
