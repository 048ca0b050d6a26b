//! `least-conn`: the node with the lowest `load / weight`; among equal nodes each in turn. State: one counter.

use super::description::PolicyDescription;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::nodes::ClusterView;
use crate::time::Time;
use alloc::vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The description of `least-conn`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("least-conn", "the node with the fewest requests in flight");

#[derive(Debug, Default)]
pub(super) struct LeastConnections {
    next: AtomicUsize,
}

impl Policy for LeastConnections {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let choice = self.peek(now, request, nodes)?;
        self.next.store(choice.node.index() + 1, Ordering::Relaxed);
        Some(choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let start = nodes.turn(|| self.next.load(Ordering::Relaxed) as u64) as usize;
        let node = if request.exclude.is_empty() {
            nodes.least(start)
        } else {
            nodes.least_without(start, |node| request.exclude.contains(node))
        }?;
        Some(Choice { node, reason: request.reason_or(Reason::LeastLoaded) })
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        LearnedState { numbers: vec![self.next.load(Ordering::Relaxed) as u64], ..LearnedState::default() }
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        let next = saved.numbers.first().and_then(|next| u16::try_from(*next).ok());
        self.next.store(next.unwrap_or(0).into(), Ordering::Relaxed);
    }
}
