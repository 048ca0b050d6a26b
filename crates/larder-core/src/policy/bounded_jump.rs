//! `bounded-jump`: consistent hashing with bounded loads and random jumps (RJ-CH; Chen, Coleman and Shrivastava,
//! "Revisiting Consistent Hashing with Bounded Loads", AAAI 2021): as [`super::bounded`], but a target whose node is
//! full goes on to a random point of the ring.
//!
//! ```text
//! on request t:      m = requests in flight, this one included;  W = sum of the weights
//!                    n = node of the first point at or after h(t, i), for the smallest i = 0, 1, .. with
//!                        load(n) < ceil(c m weight(n) / W)
//! ```
//!
//! In the clockwise order of `bounded` the node after a full node gets that node's overflow beside its own targets and
//! is full next, so full nodes come in rows. Jumps spread the overflow of each target over all nodes. Which nodes a
//! target visits depends on the target alone, so a hot target overflows to the same nodes each time, which then have
//! it in memory. Envoy's ring hash with `hash_balance_factor` overflows at random too.
//!
//! Differences from the paper, and details it does not define: those of `bounded`, whose ring and settings this policy
//! has. h(t, 0) is the point of `bounded`, so the two policies agree while no node is full. After [`super::bounded::WALK`]
//! jumps the least loaded node takes the request.
//!
//! Parameters: those of `bounded`. State: the ring. Cost: O(1) for each jump.

use super::bounded::{BoundedSettings, Ring, in_flight};
use super::description::PolicyDescription;
use super::membership_cache::MembershipCache;
use super::{Choice, Policy, Request};
use crate::id::NodeId;
use crate::nodes::{ClusterView, mix};
use crate::time::Time;

/// The description of `bounded-jump`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "bounded-jump",
    "the node that a hash ring names, or one at a random point that is not above its share of the load",
);

#[derive(Debug)]
pub(super) struct BoundedJump {
    settings: BoundedSettings,
    ring: MembershipCache<Ring>,
}

impl BoundedJump {
    pub(super) fn new(settings: BoundedSettings) -> Self {
        Self { settings, ring: MembershipCache::default() }
    }

    fn choose(&self, request: &Request, nodes: ClusterView<'_>, in_flight: u32) -> Option<Choice> {
        let ring = self.ring.get_or_build(nodes, |members| Ring::new(&members, self.settings.points));
        ring.search(self.settings, jumps(&ring, mix(request.target.0)), request, nodes, in_flight)
    }
}

impl Policy for BoundedJump {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(request, nodes, in_flight(nodes, true)).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(request, nodes, in_flight(nodes, false))
    }
}

/// Returns the nodes at the target's own point and at the points to which it jumps, with their weights.
fn jumps(ring: &Ring, hash: u64) -> impl Iterator<Item = (NodeId, u32)> {
    let hashes = core::iter::successors(Some(hash), |last| Some(mix(last.wrapping_add(1))));
    hashes.map_while(|hash| ring.from(hash).next())
}

#[cfg(test)]
mod tests {
    use super::super::bounded::BoundedSettings;
    use crate::dispatch::{Admission, Arrival, Decision, Dispatcher, Settings};
    use crate::id::{NodeId, TargetId};
    use crate::nodes::{NodeSpec, mix};
    use crate::policy::{PolicyKind, PolicySettings, Reason, Request};
    use crate::time::Time;
    use proptest::prelude::*;

    fn dispatcher(policy: PolicyKind, factor_permille: u32, nodes: usize) -> Dispatcher {
        let settings = Settings {
            policy,
            admission: Admission::Unlimited,
            policies: PolicySettings {
                bounded: BoundedSettings { factor_permille, ..BoundedSettings::default() },
                ..PolicySettings::default()
            },
            ..Settings::default()
        };
        let specs: Vec<NodeSpec> = (0..nodes).map(|i| NodeSpec::named(format!("n{i}"))).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    fn send(dispatcher: &Dispatcher, target: u64) -> Decision {
        match dispatcher.arrive(Time::ZERO, Request::new(TargetId(mix(target)))) {
            Arrival::Start(decision) => decision,
            other => panic!("expected a start, got {other:?}"),
        }
    }

    #[test]
    fn targets_agree_with_bounded_while_no_node_is_full() {
        let (jumping, clockwise) =
            (dispatcher(PolicyKind::BoundedJump, 100_000, 9), dispatcher(PolicyKind::Bounded, 100_000, 9));
        for target in 0..2_000 {
            assert_eq!(send(&jumping, target), send(&clockwise, target));
        }
    }

    /// A hot target overflows to the same nodes each time. Targets with the same node overflow to different nodes;
    /// under `bounded` nearly all of them go to the few nodes behind its points.
    #[test]
    fn overflow_depends_on_the_target_alone() {
        let strays = |policy, target| {
            let dispatcher = dispatcher(policy, 1_250, 40);
            let nodes: Vec<NodeId> = (0..6).map(|_| send(&dispatcher, target).node).collect();
            assert_eq!(nodes.iter().collect::<std::collections::BTreeSet<_>>().len(), 6, "the bound is 1");
            nodes
        };
        assert_eq!(strays(PolicyKind::BoundedJump, 7), strays(PolicyKind::BoundedJump, 7));
        let home = |target| strays(PolicyKind::BoundedJump, target)[0];
        let alike: Vec<u64> = (0..400).filter(|target| home(*target) == home(0)).collect();
        let second: std::collections::BTreeSet<NodeId> =
            alike.iter().map(|target| strays(PolicyKind::BoundedJump, *target)[1]).collect();
        assert!(alike.len() > 4 && second.len() > alike.len() / 2, "{} of {}", second.len(), alike.len());
    }

    proptest! {
        /// For all requests and ends, no node is above its bound when it is given a request.
        #[test]
        fn no_node_is_above_its_bound(
            factor in 1_010_u32..3_000,
            nodes in 1_usize..9,
            steps in prop::collection::vec((0_u64..6, any::<bool>()), 1..300),
        ) {
            let dispatcher = dispatcher(PolicyKind::BoundedJump, factor, nodes);
            let mut held: Vec<NodeId> = Vec::new();
            for (target, ends) in steps {
                if ends && !held.is_empty() {
                    let node = held.remove(target as usize % held.len());
                    dispatcher.finish(Time::ZERO, node, &mut Vec::new());
                }
                let decision = send(&dispatcher, target);
                held.push(decision.node);
                let bound = (f64::from(factor) / 1000.0 * held.len() as f64 / nodes as f64 - 1e-9).ceil();
                prop_assert!(f64::from(dispatcher.nodes().load(decision.node)) <= bound);
                let full = decision.reason == Reason::Overflow;
                prop_assert!(full || decision.reason == Reason::Hash);
            }
        }
    }
}
