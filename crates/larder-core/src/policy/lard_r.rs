//! `lard-r`: LARD with replication (Pai et al., ASPLOS'98, section 2.5): a hot target has several servers.
//!
//! ```text
//! n = least loaded of set[target]; m = most loaded of set[target]
//! set empty:                                               n = least loaded of all; add n
//! (load(n) > T_high and some load < T_low)
//!   or load(n) >= 2 T_high:                                p = least loaded of all; add p; n = p
//! set has more than one member and
//!   now - changed > K:                                     remove m
//! serve at n; if the set changed: changed = now
//! ```
//!
//! This has two consequences. An overload more than K after the last change adds p and removes the old server in one step, so
//! the target *migrates*; within K of the last change it *replicates*. A set that is not overloaded shrinks by its most loaded
//! member once per K, as long as it is requested.
//!
//! The paper does not define the following. m is chosen among the members other than n, so the node about to serve is never
//! removed. Ties of least and most loaded members go to the member added first. Members lost to a failure are dropped without
//! counting as a change. A removal stops new requests, not those in flight. A retry goes to another member if one was not tried.
//! Ties among all nodes are resolved as in [`super::lard`].
//!
//! Parameters: T_low (25), T_high (65), or the [rules](super::thresholds) that derive them; K (20 s), the size of the target
//! map. State: the target map.
//! Cost: O(servers of the target), and the search for the least loaded node if a set is empty or overloaded.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::lard::{known, retry};
use super::set::InlineSet;
use super::targets::{TargetMap, TargetShard};
use super::thresholds::{ThresholdKeys, Thresholds};
use super::{Choice, LearnedState, Policy, Reason, ReplyFeedback, Request, TargetServers};
use crate::clock::EntryIndex;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, LoadReport, PlacementOptions};
use crate::time::Time;
use alloc::vec::Vec;
use core::time::Duration;

/// The description of `lard-r`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lard-r",
    "the nodes that have the target; more of them while it is hot (LARD/R)",
);

#[derive(Debug)]
pub(super) struct LardR {
    thresholds: Thresholds,
    decay: Duration,
    targets: TargetMap,
}

/// The decision about a target's server set.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetDecision {
    pub(super) choice: Choice,
    pub(super) add: Option<NodeId>,
    pub(super) remove: Option<NodeId>,
}

impl LardR {
    pub(super) fn new(common: &CommonSettings) -> Self {
        Self {
            thresholds: Thresholds::new(common.t_low, common.t_high, common.thresholds),
            decay: common.replication_decay,
            targets: TargetMap::of(common),
        }
    }

    fn first(
        now: Time,
        target: TargetId,
        nodes: ClusterView<'_>,
        lost: bool,
        placing: PlacementOptions,
    ) -> Option<SetDecision> {
        let node = nodes.place(now, target, |_| false, placing)?;
        let reason = if lost { Reason::Lost } else { Reason::First };
        Some(SetDecision { choice: Choice { node, reason }, add: Some(node), remove: None })
    }

    fn decide(
        &self,
        now: Time,
        target: TargetId,
        found: (&TargetShard, EntryIndex, ThresholdKeys),
        nodes: ClusterView<'_>,
        take: bool,
    ) -> Option<SetDecision> {
        let (shard, slot, levels) = found;
        let members = || shard.members(slot, nodes);
        let Some(least) = least_of(members(), nodes) else {
            let placing = PlacementOptions::first(levels.low, take);
            return Self::first(now, target, nodes, shard.was_assigned(slot), placing);
        };
        let mut decision =
            SetDecision { choice: Choice { node: least, reason: Reason::Local }, add: None, remove: None };
        if levels.overloaded(nodes.key(least), nodes) {
            let other = nodes.place(now, target, |_| false, PlacementOptions::relief(take))?;
            // Loads change while they are read, so the least loaded of all nodes may turn out to be a member.
            if nodes.key(other) < nodes.key(least) && members().all(|member| member != other) {
                decision.choice = Choice { node: other, reason: Reason::Replicate };
                decision.add = Some(other);
            }
        }
        let several = decision.add.is_some() || members().nth(1).is_some();
        if several && now.since(shard.changed(slot)) > self.decay {
            let serving = decision.choice.node;
            decision.remove = most_of(members().filter(|node| *node != serving), nodes);
            decision.choice.reason = match (decision.add, decision.remove) {
                (_, None) => decision.choice.reason,
                (Some(_), Some(_)) => Reason::Migrate,
                (None, Some(_)) => Reason::Shrink,
            };
        }
        Some(decision)
    }

    /// Returns another server of the target, or else any node, that was not tried.
    fn retry(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let shard = self.targets.visit(request.target, nodes);
        let replica = shard.find(request.target).and_then(|slot| {
            let untried = shard.members(slot, nodes).filter(|node| !request.exclude.contains(*node));
            least_of(untried.filter(|node| nodes.is_open(*node)), nodes)
        });
        match replica {
            Some(node) => Some(Choice { node, reason: Reason::Retry }),
            None => retry(now, request, nodes),
        }
    }
}

impl Policy for LardR {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let epoch = nodes.epoch();
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        let levels = self.thresholds.levels(nodes);
        if let Some(choice) =
            shard.sole(slot, nodes).and_then(|node| levels.count_unless_overloaded(node, nodes))
        {
            return Some(choice);
        }
        let decision = self.decide(now, request.target, (&shard, slot, levels), nodes, true)?;
        let changes = decision.add.is_some() || decision.remove.is_some();
        if changes || !shard.is_current(slot, nodes) {
            apply(&mut shard, slot, decision, changes.then_some(now), nodes, epoch);
        }
        Some(decision.choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let levels = self.thresholds.levels(nodes);
        let decision = match shard.find(request.target) {
            None => {
                Self::first(now, request.target, nodes, false, PlacementOptions::first(levels.low, false))
            }
            Some(slot) => self.decide(now, request.target, (&shard, slot, levels), nodes, false),
        };
        decision.map(|decision| decision.choice)
    }

    fn known(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<TargetServers> {
        known(&self.targets, target, nodes)
    }

    fn targets(&self) -> usize {
        self.targets.len()
    }

    fn sets(&self) -> Option<&TargetMap> {
        Some(&self.targets)
    }

    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        LearnedState { numbers: self.thresholds.numbers(), ..self.targets.learned_state(nodes) }
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        self.targets.restore(saved, nodes);
        self.thresholds.resume(&saved.numbers);
    }

    fn on_reply(
        &self,
        _now: Time,
        _request: &Request,
        node: NodeId,
        served: &ReplyFeedback,
        nodes: ClusterView<'_>,
    ) {
        self.thresholds.on_reply(node, served.elapsed, nodes);
    }

    fn on_report(&self, now: Time, node: NodeId, report: &LoadReport, nodes: ClusterView<'_>) {
        self.thresholds.on_report(now, node, report, nodes);
    }

    fn thresholds(&self) -> Option<(u32, u32)> {
        Some(self.thresholds.in_force())
    }
}

/// Stores the members, and the time `changed` if the set did change.
pub(super) fn apply(
    shard: &mut TargetShard,
    slot: EntryIndex,
    decision: SetDecision,
    changed: Option<Time>,
    nodes: ClusterView<'_>,
    epoch: u32,
) {
    // Sets of a few members change often, and need no memory.
    let (mut few, mut count) = ([NodeId(0); InlineSet::MAX], 0);
    let members =
        shard.members(slot, nodes).filter(|node| Some(*node) != decision.remove).chain(decision.add);
    for node in members {
        if let Some(place) = few.get_mut(count) {
            *place = node;
        }
        count += 1;
    }
    if let Some(few) = few.get(..count) {
        return shard.put(slot, few, epoch, changed);
    }
    let members = shard.members(slot, nodes).filter(|node| Some(*node) != decision.remove);
    let members: Vec<NodeId> = members.chain(decision.add).collect();
    shard.put(slot, &members, epoch, changed);
}

/// Returns the least loaded node; the first one among equal nodes.
pub(super) fn least_of(members: impl Iterator<Item = NodeId>, nodes: ClusterView<'_>) -> Option<NodeId> {
    members.min_by_key(|node| nodes.key(*node))
}

/// Returns the most loaded node; the first one among equal nodes.
pub(super) fn most_of(members: impl Iterator<Item = NodeId>, nodes: ClusterView<'_>) -> Option<NodeId> {
    members.reduce(|most, node| if nodes.key(node) > nodes.key(most) { node } else { most })
}
