//! Switches side by side: the rule by which all of them place a target at the same node.
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
use super::{Elsewhere, Nodes, Sight, mix, slot};
use crate::curve::ln;
use crate::id::{NodeId, TargetId};

impl Nodes {
    /// Lets decisions go by what other switches have.
    pub(crate) fn set_elsewhere(&self, elsewhere: &Elsewhere) {
        self.shared.set_requests(elsewhere);
        self.loads.set_elsewhere(Some(&elsewhere.requests));
        self.shared.set_apart(elsewhere);
    }

    /// Requests of other switches at `node`, as they last told.
    pub fn elsewhere(&self, node: NodeId) -> u32 {
        if node.index() < self.slots() { self.loads.elsewhere(node.index()) } else { 0 }
    }

    /// Requests of other switches at all nodes.
    pub(super) fn elsewhere_total(&self) -> u32 {
        self.shared.requests()
    }

    /// The number that stands for a node at every switch: the hash of its name.
    pub(crate) fn identity(&self, node: NodeId) -> u64 {
        self.view.load().rows.get(node.index()).map_or(0, |entry| entry.identity)
    }
}

impl Sight<'_> {
    /// The node of a target that all switches are to place alike: by rendezvous among the open nodes with a key below
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
}
