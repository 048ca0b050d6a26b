//! `rr`: each node in turn, regardless of its load and weight. State: one counter.

use super::description::PolicyDescription;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::time::Time;
use core::sync::atomic::{AtomicU64, Ordering};

/// The description of `rr`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request("rr", "each node in turn");

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    turn: TurnCounter,
}

impl Policy for RoundRobin {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let node = self.turn.take(nodes, |node| !request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) }.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let (node, _) = self.turn.next(nodes, |node| !request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        TurnCounter::learned_state([&self.turn])
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        TurnCounter::restore([&self.turn], saved);
    }
}

/// A turn counter: the slot after the one that had the last turn.
#[derive(Debug, Default)]
pub(super) struct TurnCounter {
    next: AtomicU64,
    /// The number of the counter; `None` if the policy has one counter.
    number: Option<u16>,
}

impl TurnCounter {
    /// Returns the positions of a policy's turn counters.
    pub(super) fn learned_state<'a>(turns: impl IntoIterator<Item = &'a Self>) -> LearnedState {
        let numbers = turns.into_iter().map(|turn| turn.next.load(Ordering::Relaxed)).collect();
        LearnedState { numbers, ..LearnedState::default() }
    }

    /// Restores the positions of a policy's turn counters.
    pub(super) fn restore<'a>(turns: impl IntoIterator<Item = &'a Self>, saved: &LearnedState) {
        for (turn, number) in turns.into_iter().zip(&saved.numbers) {
            turn.next.store(*number, Ordering::Relaxed);
        }
    }

    /// Creates one of a policy's several turn counters.
    pub(super) fn numbered(number: u16) -> Self {
        Self { next: AtomicU64::new(0), number: Some(number) }
    }

    /// Returns the next open node for which `fits` is true, and the number of slots to advance, including that
    /// node's slot.
    pub(super) fn next(
        &self,
        nodes: ClusterView<'_>,
        fits: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, u64)> {
        let slots = nodes.slots() as u64;
        let from = nodes.turn(|| self.next.load(Ordering::Relaxed));
        (0..slots).find_map(|step| {
            let node = NodeId(u16::try_from(from.wrapping_add(step) % slots).ok()?);
            (nodes.is_open(node) && fits(node)).then_some((node, step + 1))
        })
    }

    /// Returns the next node like [`TurnCounter::next`], and advances the counter.
    pub(super) fn take(&self, nodes: ClusterView<'_>, fits: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let (node, passed) = self.next(nodes, fits)?;
        self.advance(nodes, passed);
        Some(node)
    }

    /// Returns the next node like [`TurnCounter::next`], among these candidates only.
    pub(super) fn next_of(
        &self,
        candidates: &[NodeId],
        nodes: ClusterView<'_>,
        fits: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, u64)> {
        let count = candidates.len() as u64;
        let from = nodes.turn(|| self.next.load(Ordering::Relaxed)).checked_rem(count)? as usize;
        let order = candidates[from..].iter().chain(&candidates[..from]);
        let (node, step) = order.zip(0..count).find(|(node, _)| nodes.is_open(**node) && fits(**node))?;
        Some((*node, step + 1))
    }

    /// Advances the counter by the number that [`TurnCounter::next_of`] returned.
    pub(super) fn advance(&self, nodes: ClusterView<'_>, passed: u64) {
        let before = self.next.fetch_add(passed, Ordering::Relaxed);
        nodes.record_turn(self.number, before, before.wrapping_add(passed));
    }
}
