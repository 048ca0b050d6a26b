//! `wrr`: round robin weighted by load, the baseline with which LARD is compared (LARD section 3).
//!
//! The paper says "weighted round-robin, weighted by load" and does not define the weight function. Here a node has
//! its turn if its `load / weight` is not above the mean over the nodes that take requests. Otherwise it is skipped.
//! That is round robin while loads are even, evens them out when they are not, and needs no constant. Some node is
//! always at or below the mean. State: one counter. Cost: O(1) expected, O(n) at worst.

use super::description::PolicyDescription;
use super::rr::TurnCounter;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::nodes::load::Key;
use crate::time::Time;

/// The description of `wrr`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("wrr", "each node in turn; skips those above the mean load");

#[derive(Debug, Default)]
pub(super) struct WeightedRoundRobin {
    turn: TurnCounter,
}

impl WeightedRoundRobin {
    fn fits(request: &Request, nodes: ClusterView<'_>) -> impl Fn(NodeId) -> bool {
        let mean = Key::mean(nodes.outstanding_count(), nodes.weight_sum());
        move |node| !request.exclude.contains(node) && nodes.key(node) <= mean
    }
}

impl Policy for WeightedRoundRobin {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let usual = self.turn.take(nodes, Self::fits(request, nodes));
        let node = usual.or_else(|| self.turn.take(nodes, |node| !request.exclude.contains(node)))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) }.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let usual = self.turn.next(nodes, Self::fits(request, nodes));
        let (node, _) = usual.or_else(|| self.turn.next(nodes, |node| !request.exclude.contains(node)))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        TurnCounter::learned_state([&self.turn])
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        TurnCounter::restore([&self.turn], saved);
    }
}
