//! The tie-break rule by which all switches place a target at the same node.
//!
//! Loads of other switches are as old as their last message ([`crate::switches`]). Nodes whose loads differ by less than this
//! uncertainty count as equal. Among equal nodes the target's hash decides, by weighted rendezvous hashing over the nodes'
//! names (Thaler and Ravishankar, IEEE/ACM Transactions on Networking 6(1), 1998):
//!
//! ```text
//! u(n, t) = hash(name of n, t) in (0, 1)
//! score   = -ln(u(n, t)) / width(n)          width: the cache's size where all are known and differ, else the weight
//! ```
//!
//! The node with the lowest score wins. Two switches that place the same target without communication choose the same
//! node if both count it among the equals. The order in which their nodes joined does not matter. Different targets go to
//! different nodes. Switches with the same outdated loads therefore do not all choose the one node that seemed least
//! loaded.

use super::load::Key;
use super::membership::{Membership, MembershipEntry};
use super::{ClusterView, Nodes, PeerSwitchState, mix, slot};
use crate::curve::ln;
use crate::id::{NodeId, TargetId};

impl Nodes {
    /// Makes decisions count the requests of the other switches.
    pub(crate) fn set_peer_switches(&self, peer_switches: &PeerSwitchState) {
        self.peer_loads.set_requests(peer_switches);
        self.loads.set_peer_requests(Some(&peer_switches.requests));
        self.peer_loads.set_equal_within(peer_switches);
    }

    /// Returns the number of requests that other switches have at `node`, as they last reported.
    pub fn peer_requests(&self, node: NodeId) -> u32 {
        if node.index() < self.slots() { self.loads.peer_requests(node.index()) } else { 0 }
    }

    /// Returns the number of requests that other switches have at all nodes.
    pub(super) fn peer_requests_total(&self) -> u32 {
        self.peer_loads.requests()
    }

    /// Returns the identity of a node, which is the same at every switch: the hash of its name.
    pub(crate) fn identity(&self, node: NodeId) -> u64 {
        self.membership.load().rows.get(node.index()).map_or(0, |entry| entry.identity)
    }
}

impl ClusterView<'_> {
    /// Returns the node at which all switches place a target: the rendezvous choice among the open nodes with a key
    /// below `bound`. O(n).
    pub(super) fn tie_break_node(
        self,
        target: TargetId,
        bound: Key,
        membership: &Membership,
        skip: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let summary = membership.summary(self.group);
        let by_cache = summary.has_widths();
        let width = |entry: &MembershipEntry| {
            if by_cache { entry.cache.get() as f64 } else { f64::from(entry.weight.milli()) }
        };
        let mut best = (f64::INFINITY, u64::MAX, None);
        let mut offer = |index: usize| {
            let (node, Some(entry)) = (slot(index), membership.rows.get(index)) else { return };
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
            summary.from(0).for_each(&mut offer);
        }
        best.2
    }
}

/// Returns -ln of a number in (0, 1) that is derived from the node and the target.
fn score(identity: u64, target: TargetId) -> f64 {
    let drawn = mix(identity ^ mix(target.0)) >> 11;
    -ln((drawn as f64 + 0.5) / (1_u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::{JoinPace, NodeSpec, PlacementOptions, Weight};
    use super::*;
    use crate::read_source::ReadSource;
    use crate::time::Time;

    fn table(names: &[&str], peer_switches: &PeerSwitchState) -> Nodes {
        let nodes = Nodes::new(16, JoinPace { targets_per_s: 1, warm_targets: 0 });
        for name in names {
            nodes.join(Time::ZERO, NodeSpec::named(*name), true, ReadSource::LIVE, |_| {}).expect("room");
        }
        nodes.set_peer_switches(peer_switches);
        nodes
    }

    fn placed(nodes: &Nodes, target: u64) -> String {
        let placing = PlacementOptions::first(Key::of(25), false);
        let node = ClusterView::live(nodes).place(Time::ZERO, TargetId(mix(target)), |_| false, placing);
        nodes.name(node.expect("some are open")).to_string()
    }

    /// The first numbers of SplitMix64 from seed 0, as published.
    #[test]
    fn mixed_bits_are_those_of_splitmix64() {
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn switches_place_alike_without_messages_and_a_lost_node_moves_only_its_targets() {
        let one = PeerSwitchState { switches: 1, equal_within: 4, ..PeerSwitchState::default() };
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
    fn node_loaded_by_other_switches_is_not_chosen() {
        let full = PeerSwitchState {
            switches: 1,
            requests: vec![0, 60, 3],
            equal_within: 4,
            ..PeerSwitchState::default()
        };
        let nodes = table(&["x", "y", "z"], &full);
        assert!((0..300).all(|target| placed(&nodes, target) != "y"), "it is above T_low");
        assert_eq!((nodes.load(NodeId(1)), nodes.peer_requests(NodeId(1))), (0, 60));
        let view = ClusterView::live(&nodes);
        assert_eq!((view.load(NodeId(1)), view.outstanding_count()), (60, 63));
        let relief = |target| {
            let placing = PlacementOptions::relief(false);
            view.place(Time::ZERO, TargetId(mix(target)), |_| false, placing).expect("open")
        };
        let chosen: Vec<NodeId> = (0..64).map(relief).collect();
        assert!(chosen.contains(&NodeId(0)) && chosen.contains(&NodeId(2)), "0 and 3 cannot be told apart");
        assert!(!chosen.contains(&NodeId(1)));
    }

    #[test]
    fn shares_follow_weights_where_caches_are_equal() {
        let nodes =
            table(&["x"], &PeerSwitchState { switches: 1, equal_within: 4, ..PeerSwitchState::default() });
        let spec =
            NodeSpec { weight: Weight::from_milli(3_000).expect("in range"), ..NodeSpec::named("big") };
        nodes.join(Time::ZERO, spec, true, ReadSource::LIVE, |_| {}).expect("room");
        let big = (0..4_000).filter(|target| placed(&nodes, *target) == "big").count();
        // Three in four, five standard deviations.
        assert!((2_863..=3_137).contains(&big), "{big}");
    }
}
