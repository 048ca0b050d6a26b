//! `random`: a node drawn at random.
//!
//! The random number is SplitMix64 of the seed and a counter, so a run repeats. Nodes with larger caches are drawn
//! more often, as in every policy that ignores load. Parameter: the seed. State: one counter.

use super::description::PolicyDescription;
use super::sampling::RandomSequence;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::nodes::ClusterView;
use crate::time::Time;
use alloc::vec;

/// The description of `random`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("random", "any node, at random");

#[derive(Debug)]
pub(super) struct Random {
    random: RandomSequence,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: RandomSequence::new(seed) }
    }
}

fn choose(number: u64, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
    let node = nodes.hashed(number, |node| request.exclude.contains(node))?;
    Some(Choice { node, reason: request.reason_or(Reason::Random) })
}

impl Policy for Random {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        choose(self.random.draw(nodes), request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        choose(self.random.peek(), request, nodes)
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        LearnedState { numbers: vec![self.random.count()], ..LearnedState::default() }
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        saved.numbers.iter().take(1).for_each(|drawn| self.random.resume(*drawn));
    }
}
