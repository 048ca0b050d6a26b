//! `p2c`: the power of two choices (Mitzenmacher, IEEE Transactions on Parallel and Distributed Systems 12(10),
//! 2001; Azar,
//! Broder, Karlin and Upfal, STOC 1994): the less loaded of two nodes drawn at random.
//!
//! ```text
//! a, b = two different random nodes
//! send to the one with less load / weight; of equals to a
//! ```
//!
//! Two choices reduce the excess of the longest of n queues over the mean from log n / log log n to log log n; a third choice
//! helps little. Front-ends with the same outdated loads would all choose the one least loaded node; a random pair is different
//! each time.
//!
//! The papers do not define the following. With unequal weights, the probability of a node is proportional to its weight, so that
//! an idle cluster is shared by weight too. A retry draws until both nodes are untried, at most 16 times.
//!
//! Parameters: `seed`. State: one counter, and the list of nodes. Cost: O(1); O(log n) with unequal weights.

use super::description::PolicyDescription;
use super::membership_cache::MembershipCache;
use super::sampling::{RandomSequence, WeightedSampler};
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::nodes::ClusterView;
use crate::time::Time;
use alloc::vec;

/// The description of `p2c`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request(
    "p2c",
    "of two nodes drawn at random the one with fewer requests in flight",
);

#[derive(Debug)]
pub(super) struct TwoChoices {
    random: RandomSequence,
    sampler: MembershipCache<WeightedSampler>,
}

impl TwoChoices {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: RandomSequence::new(seed), sampler: MembershipCache::default() }
    }

    fn choose(&self, number: u64, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let sampler = self.sampler.get_or_build(nodes, |members| WeightedSampler::new(&members));
        let usable = |node| nodes.is_open(node) && !request.exclude.contains(node);
        let (first, second) = sampler.draw_two(number, usable)?;
        let node = match second {
            Some(second) if nodes.key(second.node) < nodes.key(first.node) => second.node,
            _ => first.node,
        };
        Some(Choice { node, reason: request.reason_or(Reason::LeastLoaded) })
    }
}

impl Policy for TwoChoices {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(self.random.draw(nodes), request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(self.random.peek(), request, nodes)
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        LearnedState { numbers: vec![self.random.count()], ..LearnedState::default() }
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        saved.numbers.iter().take(1).for_each(|drawn| self.random.resume(*drawn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Dispatcher, Settings};
    use crate::id::TargetId;
    use crate::nodes::{NodeSpec, Weight, mix};
    use crate::policy::PolicyKind;
    use crate::policy::policy_tests::started;

    /// Returns the loads after this number of requests that stay, on nodes of these weights.
    fn loads(policy: PolicyKind, weights: &[f64], requests: u64) -> Vec<u32> {
        let settings = Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
        let spec = |(i, weight): (usize, &f64)| NodeSpec {
            weight: Weight::from_f64(*weight).expect("in range"),
            ..NodeSpec::named(format!("n{i}"))
        };
        let specs: Vec<NodeSpec> = weights.iter().enumerate().map(spec).collect();
        let dispatcher = Dispatcher::new(settings, &specs).expect("the settings are in range");
        for i in 0..requests {
            started(dispatcher.arrive(Time::ZERO, Request::new(TargetId(mix(i)))));
        }
        dispatcher.nodes().rows().iter().map(|row| row.load).collect()
    }

    #[test]
    fn two_choices_keep_the_fullest_near_the_mean() {
        let above = |policy| *loads(policy, &[1.0; 500], 50_000).iter().max().expect("there are 500") - 100;
        // Theory: log2 log2 500, about 3, above the mean for two choices; sqrt(2 100 ln 500), about 35, for one.
        let (one, two) = (above(PolicyKind::Random), above(PolicyKind::P2c));
        assert!(two <= 5 && one >= 20, "{two} against {one}");
    }

    #[test]
    fn loads_follow_weights() {
        let loads = loads(PolicyKind::P2c, &[1.0, 2.0, 5.0], 8_000);
        for (load, weight) in loads.iter().zip([1.0, 2.0, 5.0]) {
            assert!((f64::from(*load) / weight - 1_000.0).abs() < 15.0, "{loads:?}");
        }
    }
}
