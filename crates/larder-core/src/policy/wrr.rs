//! `wrr`: round robin weighted by load, the baseline that LARD is measured against (LARD section 3).
//!
//! The paper says "weighted round-robin, weighted by load" and leaves the weight function open. Here a node's turn
//! counts if its `load / weight` is not above the mean over the nodes that take requests, else it is passed over.
//! That is round robin while loads are even, keeps them even when they are not, and needs no constant; some node is
//! always at or below the mean. State: one counter. Cost: O(1) expected, O(n) at worst.

use super::about::About;
use super::rr::Turn;
use super::{Choice, Memory, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::Sight;
use crate::nodes::load::Key;
use crate::time::Time;

/// The description of `wrr`.
pub(super) const ABOUT: About =
    About::by_request("wrr", "each node in turn, passing over those above the mean load");

#[derive(Debug, Default)]
pub(super) struct WeightedRoundRobin {
    turn: Turn,
}

impl WeightedRoundRobin {
    fn fits(request: &Request, nodes: Sight<'_>) -> impl Fn(NodeId) -> bool {
        let mean = Key::mean(nodes.outstanding_count(), nodes.weight_sum());
        move |node| !request.exclude.contains(node) && nodes.key(node) <= mean
    }
}

impl Policy for WeightedRoundRobin {
    fn pick(&self, _now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let usual = self.turn.take(nodes, Self::fits(request, nodes));
        let node = usual.or_else(|| self.turn.take(nodes, |node| !request.exclude.contains(node)))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) }.counted(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let usual = self.turn.next(nodes, Self::fits(request, nodes));
        let (node, _) = usual.or_else(|| self.turn.next(nodes, |node| !request.exclude.contains(node)))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }

    fn memory(&self, _nodes: Sight<'_>) -> Memory {
        Turn::memory([&self.turn])
    }

    fn remember(&self, memory: &Memory, _nodes: Sight<'_>) {
        Turn::remember([&self.turn], memory);
    }
}
