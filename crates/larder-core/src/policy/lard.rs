//! `lard`: basic LARD (Pai et al., ASPLOS'98, section 2.4): a target has one server until that server is overloaded.
//!
//! ```text
//! n = server[target]
//! none:                                                    n = least loaded; server[target] = n
//! (load(n) > T_high and some load < T_low)
//!   or load(n) >= 2 T_high:                                n = least loaded; server[target] = n
//! serve at n
//! ```
//!
//! Load is requests in flight divided by the node's weight. Any reassignment under the first condition therefore goes from a
//! node above T_high to a node below T_low.
//!
//! The paper does not define the following. Ties among the least loaded nodes go to the first one at or after the target's hash
//! position ([`ClusterView::place`]). If the nodes' caches differ in size, a first placement goes by cache size among the nodes
//! within T_low of the least loaded one. Otherwise a large cache would get no more targets than a small one. A retry at another
//! node does not move the target, because a node that really fails is removed and loses its targets anyway.
//!
//! Parameters: T_low (25), T_high (65), or the [rules](super::thresholds) that derive them; the size of the target map.
//! State: the target map.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::targets::TargetMap;
use super::thresholds::{ThresholdKeys, Thresholds};
use super::{Choice, LearnedState, Policy, Reason, ReplyFeedback, Request, TargetServers};
use crate::clock::EntryIndex;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, LoadReport, PlacementOptions};
use crate::time::Time;

/// The description of `lard`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lard",
    "the node that has the target, until that node is overloaded (LARD)",
);

#[derive(Debug)]
pub(super) struct Lard {
    thresholds: Thresholds,
    targets: TargetMap,
}

impl Lard {
    pub(super) fn new(common: &CommonSettings) -> Self {
        Self {
            thresholds: Thresholds::new(common.t_low, common.t_high, common.thresholds),
            targets: TargetMap::of(common),
        }
    }

    fn decide(
        now: Time,
        target: TargetId,
        (seen, levels): (StoredTarget, ThresholdKeys),
        nodes: ClusterView<'_>,
        take: bool,
    ) -> Option<Choice> {
        let place = |reason, placing| {
            let node = nodes.place(now, target, |_| false, placing)?;
            Some(Choice { node, reason })
        };
        match seen.server {
            None => {
                let reason = if seen.was_assigned { Reason::Lost } else { Reason::First };
                place(reason, PlacementOptions::first(levels.low, take))
            }
            Some(node) if levels.overloaded(nodes.key(node), nodes) => {
                let choice = place(Reason::Migrate, PlacementOptions::relief(take))?;
                // All nodes are at twice T_high, or only paused joining nodes are free: no node is better.
                let moved = choice.node != node && nodes.key(choice.node) < nodes.key(node);
                Some(if moved { choice } else { Choice { node, reason: Reason::Local } })
            }
            Some(node) => Some(Choice { node, reason: Reason::Local }),
        }
    }
}

/// The stored state of a target.
#[derive(Clone, Copy, Debug)]
struct StoredTarget {
    server: Option<NodeId>,
    was_assigned: bool,
}

impl Policy for Lard {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let mut shard = self.targets.visit(request.target, nodes);
        let slot: EntryIndex = shard.touch(request.target);
        let levels = self.thresholds.levels(nodes);
        if let Some(choice) =
            shard.sole(slot, nodes).and_then(|node| levels.count_unless_overloaded(node, nodes))
        {
            return Some(choice);
        }
        let epoch = nodes.epoch();
        let server = shard.members(slot, nodes).next();
        let was_assigned = server.is_some() || shard.was_assigned(slot);
        let choice =
            Self::decide(now, request.target, (StoredTarget { server, was_assigned }, levels), nodes, true)?;
        shard.put_sole(slot, choice, now, epoch, nodes);
        Some(choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let seen = match shard.find(request.target) {
            None => StoredTarget { server: None, was_assigned: false },
            Some(slot) => StoredTarget {
                server: shard.members(slot, nodes).next(),
                was_assigned: shard.was_assigned(slot),
            },
        };
        Self::decide(now, request.target, (seen, self.thresholds.levels(nodes)), nodes, false)
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

/// Returns a node for a request that has failed at another node: the least loaded one that was not tried.
pub(super) fn retry(now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
    let skip = |node| request.exclude.contains(node);
    let node = nodes.place(now, request.target, skip, PlacementOptions::retry())?;
    Some(Choice { node, reason: Reason::Retry })
}

pub(super) fn known(targets: &TargetMap, target: TargetId, nodes: ClusterView<'_>) -> Option<TargetServers> {
    let shard = targets.shard(target);
    let slot = shard.find(target)?;
    let servers = shard.members(slot, nodes).collect();
    Some(TargetServers { servers, changed: Some(shard.changed(slot)) })
}
