//! `rr`: each node in turn, whatever its load or weight. State: one counter.

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
    turn: Turn,
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
        Turn::learned_state([&self.turn])
    }

    fn restore(&self, memory: &LearnedState, _nodes: ClusterView<'_>) {
        Turn::restore([&self.turn], memory);
    }
}

/// Whose turn it is: the slot after the one that had it last.
#[derive(Debug, Default)]
pub(super) struct Turn {
    next: AtomicU64,
    /// The turn's number; `None` for a policy's only one.
    number: Option<u16>,
}

impl Turn {
    /// Where a policy's turns are.
    pub(super) fn learned_state<'a>(turns: impl IntoIterator<Item = &'a Self>) -> LearnedState {
        let numbers = turns.into_iter().map(|turn| turn.next.load(Ordering::Relaxed)).collect();
        LearnedState { numbers, ..LearnedState::default() }
    }

    /// Lets a policy's turns go on where others were.
    pub(super) fn restore<'a>(turns: impl IntoIterator<Item = &'a Self>, memory: &LearnedState) {
        for (turn, number) in turns.into_iter().zip(&memory.numbers) {
            turn.next.store(*number, Ordering::Relaxed);
        }
    }

    /// One of several turns of a policy.
    pub(super) fn numbered(number: u16) -> Self {
        Self { next: AtomicU64::new(0), number: Some(number) }
    }

    /// The open node whose turn it is among those for which `fits` is true, and the slots passed over, it included.
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

    /// Like [`Turn::next`], and passes the turn on.
    pub(super) fn take(&self, nodes: ClusterView<'_>, fits: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let (node, passed) = self.next(nodes, fits)?;
        self.pass(nodes, passed);
        Some(node)
    }

    /// Like [`Turn::next`], among these nodes only.
    pub(super) fn next_of(
        &self,
        those: &[NodeId],
        nodes: ClusterView<'_>,
        fits: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, u64)> {
        let count = those.len() as u64;
        let from = nodes.turn(|| self.next.load(Ordering::Relaxed)).checked_rem(count)? as usize;
        let order = those[from..].iter().chain(&those[..from]);
        let (node, step) = order.zip(0..count).find(|(node, _)| nodes.is_open(**node) && fits(**node))?;
        Some((*node, step + 1))
    }

    /// Passes the turn on by what [`Turn::next_of`] says was passed over.
    pub(super) fn pass(&self, nodes: ClusterView<'_>, passed: u64) {
        let before = self.next.fetch_add(passed, Ordering::Relaxed);
        nodes.record_turn(self.number, before, before.wrapping_add(passed));
    }
}
