//! `bounded`: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018): the node that
//! the ring
//! selects, or the next node if that one has more than its share of the load.
//!
//! ```text
//! ring:              points h(name, 0), h(name, 1), .. for each node, in proportion to its weight
//! on request t:      m = requests in flight, this one included;  W = sum of the weights
//!                    n = node of the first point at or after h(t), clockwise, with
//!                        load(n) < ceil(c m weight(n) / W)
//! ```
//!
//! c = 1 + epsilon bounds every node at c times its fair share of the requests in flight. The smaller c, the more targets leave
//! their node. HAProxy calls this `hash-type consistent` with `hash-balance-factor` 100 c. [`super::bounded_jump`]
//! goes on to random points instead.
//!
//! Differences from the paper, and details it does not define: in the paper a ball stays where it is placed. Here, as in
//! HAProxy and Envoy, a request is a ball that leaves when it ends. The search starts at the target's own node each time.
//! A target therefore returns as soon as there is capacity. A hot target spreads over the nodes after its own, as far as
//! the bound requires. After [`WALK`] points without capacity the least loaded node takes the request; it is never above
//! the mean. Two threads that decide concurrently may both use a node's last capacity. A node that returns gets its
//! points back, also in another slot, since points are derived from names. If all nodes together would have more than
//! [`POINTS_MAX`] points, each has fewer in proportion. A retry skips the nodes tried.
//!
//! Parameters: `bounded.factor_permille` c (1250; HAProxy recommends 125 to 200), `bounded.points` (160 per weight of 1,
//! ketama's). State: the ring, about 20 bytes a point. Cost: O(1) to find the point, then one step for each full node: few
//! unless c is close to 1 or the target hot; O(p log p) for p points on a change of membership or weights.

use super::description::PolicyDescription;
use super::membership_cache::{MembershipCache, OpenNode};
use super::{Choice, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::{ClusterView, mix};
use crate::range::{SettingsError, in_range};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The description of `bounded`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "bounded",
    "the node that a hash ring names, or the next that is not above its share of the load",
);

/// The number of points examined before the least loaded node takes the request.
pub(super) const WALK: usize = 256;

/// The largest number of points of a ring, plus or minus one per node.
pub(super) const POINTS_MAX: u64 = 1 << 20;

/// The parameters of `bounded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundedSettings {
    /// c: the largest load of a node relative to its fair share of the requests in flight, in 1/1000. 1,010 to
    /// 100,000; default 1,250, the lowest value that HAProxy recommends for its `hash-balance-factor`. From about
    /// 10,000 on the policy is plain consistent hashing.
    pub factor_permille: u32,
    /// The number of points on the ring for a node of weight 1. Other nodes have points in proportion, at least one.
    /// More points make shares more even: a share varies by 1 / sqrt(points) of itself. 1 to 10,000; default 160
    /// (ketama).
    pub points: u32,
}

impl Default for BoundedSettings {
    fn default() -> Self {
        Self { factor_permille: 1_250, points: 160 }
    }
}

impl BoundedSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let (factor, points) = (self.factor_permille, self.points);
        let factor_ok = (1_010..=100_000).contains(&factor);
        in_range("bounded.factor_permille", factor.into(), factor_ok, "1010 to 100000")?;
        in_range("bounded.points", points.into(), (1..=10_000).contains(&points), "1 to 10000")
    }
}

#[derive(Debug)]
pub(super) struct Bounded {
    settings: BoundedSettings,
    ring: MembershipCache<Ring>,
}

impl Bounded {
    pub(super) fn new(settings: BoundedSettings) -> Self {
        Self { settings, ring: MembershipCache::default() }
    }

    /// Chooses a node while `in_flight` requests are in flight, including this one.
    fn choose(&self, request: &Request, nodes: ClusterView<'_>, in_flight: u32) -> Option<Choice> {
        let ring = self.ring.get_or_build(nodes, |members| Ring::new(&members, self.settings.points));
        ring.search(self.settings, ring.from(mix(request.target.0)), request, nodes, in_flight)
    }
}

/// Returns the number of requests in flight, the next one included. `counted`: whether the group of all nodes has counted
/// it; other groups have not.
pub(super) fn in_flight(nodes: ClusterView<'_>, counted: bool) -> u32 {
    nodes.outstanding_count().saturating_add((!counted || !nodes.sees_all()).into())
}

impl Policy for Bounded {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(request, nodes, in_flight(nodes, true)).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(request, nodes, in_flight(nodes, false))
    }
}

/// The points in ascending order, indexed by their highest bits.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[Point]>,
    /// The start of the points whose highest bits are the index, and the end of the last ones.
    buckets: Box<[u32]>,
    shift: u32,
    weight_sum: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    hash: u64,
    node: NodeId,
    weight_milli: u32,
}

impl Ring {
    #[expect(clippy::cast_possible_truncation, reason = "a ring has at most 2^20 points and one per node")]
    pub(super) fn new(members: &[OpenNode], points_each: u32) -> Self {
        let weight_sum: u64 = members.iter().map(|member| u64::from(member.weight_milli)).sum();
        let wanted = |weight_milli: u64| weight_milli * u64::from(points_each);
        let scale = (wanted(weight_sum) / 1000).max(POINTS_MAX);
        let mut points = Vec::new();
        for &OpenNode { node, identity, weight_milli } in members {
            let share = u128::from(wanted(weight_milli.into())) * u128::from(POINTS_MAX);
            let count = ((share / u128::from(scale) + 500) / 1000).max(1) as u64;
            points.extend((1..=count).map(|i| Point { hash: mix(identity ^ mix(i)), node, weight_milli }));
        }
        points.sort_unstable();
        let bits = points.len().max(2).ilog2();
        let shift = u64::BITS - bits;
        let begins = |bucket: u64| points.partition_point(|point| point.hash >> shift < bucket) as u32;
        let buckets = (0..=1_u64 << bits).map(begins).collect();
        Self { points: points.into_boxed_slice(), buckets, shift, weight_sum }
    }

    /// Returns the first node in this order that has capacity, else the least loaded node, while `in_flight` requests
    /// are in flight, including this one.
    pub(super) fn search(
        &self,
        settings: BoundedSettings,
        order: impl Iterator<Item = (NodeId, u32)>,
        request: &Request,
        nodes: ClusterView<'_>,
        in_flight: u32,
    ) -> Option<Choice> {
        let fair = u128::from(settings.factor_permille) * u128::from(in_flight.max(1));
        // The bound for a node of this weight is computed once for neighbours of equal weight.
        let bound =
            |weight: u32| (fair * u128::from(weight)).div_ceil(1000 * u128::from(self.weight_sum.max(1)));
        let (mut weight_before, mut room_below) = (0, 0);
        let mut reason = Reason::Hash;
        for (node, weight) in order.take(WALK.min(self.points.len())) {
            if weight != weight_before {
                (weight_before, room_below) = (weight, bound(weight));
            }
            if u128::from(nodes.load(node)) >= room_below {
                reason = Reason::Overflow;
            } else if nodes.is_open(node) && !request.exclude.contains(node) {
                return Some(Choice { node, reason: request.reason_or(reason) });
            }
        }
        let start = nodes.position(request.target.0);
        let node = if request.exclude.is_empty() {
            nodes.least(start)
        } else {
            nodes.least_without(start, |node| request.exclude.contains(node))
        }?;
        Some(Choice { node, reason: request.reason_or(Reason::Overflow) })
    }

    /// Returns the nodes of the points at or after `hash`, once around the ring, with their weights.
    pub(super) fn from(&self, hash: u64) -> impl Iterator<Item = (NodeId, u32)> {
        let begin = self.buckets[(hash >> self.shift) as usize] as usize;
        let after = self.points[begin..].iter().take_while(|point| point.hash < hash).count();
        let (head, tail) = self.points.split_at(begin + after);
        tail.iter().chain(head).map(|point| (point.node, point.weight_milli))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Dispatcher, Settings};
    use crate::id::TargetId;
    use crate::nodes::{NodeSpec, Weight};
    use crate::policy::policy_tests::started;
    use crate::policy::{PolicyKind, PolicySettings};
    use proptest::prelude::*;

    fn members(weights: &[u32]) -> Vec<OpenNode> {
        let member = |(slot, weight): (u16, &u32)| OpenNode {
            node: NodeId(slot),
            identity: mix(900 + u64::from(slot)),
            weight_milli: *weight,
        };
        (0..).zip(weights).map(member).collect()
    }

    fn dispatcher(factor_permille: u32, weights: &[u32]) -> Dispatcher {
        let settings = Settings {
            policy: PolicyKind::Bounded,
            admission: Admission::Unlimited,
            policies: PolicySettings {
                bounded: BoundedSettings { factor_permille, ..BoundedSettings::default() },
                ..PolicySettings::default()
            },
            ..Settings::default()
        };
        let spec = |(i, weight): (usize, &u32)| NodeSpec {
            weight: Weight::from_milli(*weight).expect("in range"),
            ..NodeSpec::named(format!("n{i}"))
        };
        let specs: Vec<NodeSpec> = weights.iter().enumerate().map(spec).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    #[test]
    fn hot_target_overflows_to_the_next_node_and_returns() {
        let dispatcher = dispatcher(1_250, &[1000; 4]);
        let send = || match dispatcher.arrive(Time::ZERO, Request::new(TargetId(1))) {
            crate::dispatch::Arrival::Start(choice) => choice,
            other => panic!("expected a start, got {other:?}"),
        };
        let home = send();
        assert_eq!(home.reason, Reason::Hash);
        // ceil(1.25 m / 4) is 1 for m to 3: the next three go to other nodes, each to a different one.
        let strays = [send(), send()];
        assert!(strays.iter().all(|stray| stray.reason == Reason::Overflow && stray.node != home.node));
        assert_ne!(strays[0].node, strays[1].node);
        assert_eq!(send().node, home.node, "ceil(1.25 4 / 4) is 2");
        (0..2).for_each(|_| dispatcher.finish(Time::ZERO, home.node, &mut Vec::new()));
        assert_eq!(send(), home);
    }

    #[test]
    fn ring_size_is_bounded_for_all_weights() {
        let ring = Ring::new(&members(&[100_000; 300]), 10_000);
        assert!(ring.points.len() as u64 <= POINTS_MAX + 300, "{}", ring.points.len());
        assert_eq!(Ring::new(&members(&[1, 1000, 2500]), 160).points.len(), 1 + 160 + 400);
        assert_eq!(Ring::new(&[], 160).from(7).count(), 0);
    }

    proptest! {
        /// The search finds the same point as a scan of all points.
        #[test]
        fn point_search_agrees_with_scan(n in 1_usize..12, hashes in prop::collection::vec(any::<u64>(), 1..50)) {
            let ring = Ring::new(&members(&vec![1000; n]), 7);
            for hash in hashes.into_iter().chain([0, u64::MAX]) {
                let next = ring.points.iter().find(|point| point.hash >= hash).unwrap_or(&ring.points[0]);
                prop_assert_eq!(ring.from(hash).next().map(|(node, _)| node), Some(next.node));
                prop_assert_eq!(ring.from(hash).count(), ring.points.len());
            }
        }

        /// For all requests and ends, no node is above its bound when it is given a request.
        #[test]
        fn no_node_is_above_its_bound(
            factor in 1_010_u32..3_000,
            weights in prop::collection::vec(1_u32..5, 1..8),
            steps in prop::collection::vec((0_u64..6, any::<bool>()), 1..300),
        ) {
            let weights: Vec<u32> = weights.iter().map(|weight| weight * 1000).collect();
            let sum: u32 = weights.iter().sum();
            let dispatcher = dispatcher(factor, &weights);
            let mut held = Vec::new();
            for (target, ends) in steps {
                if ends && !held.is_empty() {
                    let node = held.remove(target as usize % held.len());
                    dispatcher.finish(Time::ZERO, node, &mut Vec::new());
                }
                let node = started(dispatcher.arrive(Time::ZERO, Request::new(TargetId(target))));
                held.push(node);
                let fair = held.len() as f64 * f64::from(weights[node.index()]) / f64::from(sum);
                let bound = (f64::from(factor) / 1000.0 * fair - 1e-9).ceil();
                prop_assert!(f64::from(dispatcher.nodes().load(node)) <= bound, "{} at {}", bound, node);
            }
        }
    }
}
