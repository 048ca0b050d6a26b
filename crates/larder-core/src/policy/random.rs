//! `random`: any node, by lot.
//!
//! The lot is SplitMix64 of the seed and a counter, so a run repeats. Nodes with larger caches are drawn more often,
//! like everywhere else where load is not looked at. Parameter: the seed. State: one counter.

use super::description::PolicyDescription;
use super::lots::Lots;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::nodes::ClusterView;
use crate::time::Time;

/// The description of `random`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request("random", "any node, by lot");

#[derive(Debug)]
pub(super) struct Random {
    lots: Lots,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { lots: Lots::new(seed) }
    }
}

fn choose(lot: u64, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
    let node = nodes.hashed(lot, |node| request.exclude.contains(node))?;
    Some(Choice { node, reason: request.reason_or(Reason::Random) })
}

impl Policy for Random {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        choose(self.lots.take(nodes), request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        choose(self.lots.next(), request, nodes)
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        LearnedState { numbers: vec![self.lots.drawn()], ..LearnedState::default() }
    }

    fn restore(&self, memory: &LearnedState, _nodes: ClusterView<'_>) {
        memory.numbers.iter().take(1).for_each(|drawn| self.lots.go_on(*drawn));
    }
}
