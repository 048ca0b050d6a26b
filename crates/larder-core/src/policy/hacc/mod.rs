//! `hacc`: the Harvard array's smart router (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT 1999, section
//! 3). A document
//! belongs to a node. The nodes' measured loads determine where new documents go and when documents move.
//!
//! ```text
//! on request d:   n = node[d]; none: n = node[d] = least loaded                     serve at n
//! every period:   load(n) = sum of w(i) signal(i, n) / full(i)
//!                 for x by falling load, y = least loaded:
//!                   if load(x) - load(y) > margin:
//!                     for cooldown: of x's documents, as they are asked for, a fraction f moves to y, once each
//!                     f = 2 amount (load(x) - load(y)) / load(x) * weight(y) / (weight(x) + weight(y))
//! ```
//!
//! Loads are in 1/1000. The paper weighs CPU and disk, with 0 and 1 for static files and 1/2 each for Domino; it mentions paging
//! and queue lengths. Here any of the [signals](crate::nodes::Signal) that nodes report can be weighed, each relative to the value
//! that counts as full. The paper's disk signal is a rate in bytes per second, normalised by a constant that it does not give. The
//! presets use the share of time the disk was busy, which is the same on the CPU's scale.
//!
//! *Capacity.* Loads are compared relative to a node's capacity. A share of time is relative already; counts and rates are divided
//! by the node's weight. Load that moves from x to y counts there by weight(x) / weight(y), hence the last factor of f. For equal
//! weights f is amount (load(x) - load(y)) / load(x).
//!
//! *The tree.* The paper keeps a tree of the document store: directories inside, documents as leaves, each leaf with its node; for
//! Domino it is cut at the views. Here the map contains the nodes of the tree at which it is cut, by the hash of their path. This
//! is the same assignment in fewer bytes, and it is bounded. The target key defines the cut: at documents by default. With
//! [`Level::Subtree`] the caller makes keys of host and the first segments of the path ([`Level::key`]), so that a directory's
//! documents stay, move and count together. Any other key template works too, for example host, path to view depth and action for
//! Domino. A document is not associated with its directory if its subtree was not requested.
//!
//! *Static and dynamic content* (the paper's rule for ASP pages: static requests to one node, ASP to two) are separated by routes:
//! one route per kind, each with its group of nodes and its own `hacc`, whose loads, map and offloads are those of its group.
//!
//! *Hot documents* ([`hot`]), which the paper mentions and does not build: a document with more than `hot_share_permille` of the
//! requests is served by several nodes. With the next request it gets another node, the least loaded one. It is then served by the
//! node with the fewest requests in flight among its nodes. When it cools down it loses nodes again, the most loaded first.
//!
//! The paper does not define the following:
//! - *Which documents move, and how many*: the documents requested next whose hash is below f. If the documents of a node are
//!   alike, this moves f of its load, and with `amount` one half the two loads become equal. There is no list of a node's
//!   documents, and a document that is not requested costs nothing. A document moves at most once per offload, and only if it was
//!   at x when the offload began. A document that has several nodes stays.
//! - *Cool-down*: until it ends, x sheds no more and y receives no more, so that reports can show the effect of the move. In one
//!   comparison each node takes part once. See [`monitor`].
//! - *Missing reports* (none, without one of the weighed signals, or older than `report_age_max`): the node is probed. While it
//!   has nothing in flight, it counts as the least loaded of all when a document is placed, once per period. Otherwise a node
//!   that reports with its replies, or a signal that only requests show, would stay missing. Apart from that the node counts as
//!   the mean of the known loads, so it is chosen only if those are all equal. It neither sheds nor receives. With no report at
//!   all, documents go to the node with the fewest requests in flight. Ties as in [`super::lard_util`]. The 200 ms samples are
//!   not smoothed.
//! - *Failure*: a failed node's documents count as never assigned. A joining node is not limited.
//! - *Retries* go to the least loaded node not tried and move nothing.
//!
//! Between two reports the least loaded node stays the same, so all new documents of that time go there; the paper's router does
//! so too.
//!
//! Parameters: [`HaccSettings`], `report_age_max`, the size of the map. State: the map, bounded like the others, a number per
//! node, at most one offload per two nodes. Cost: O(1) for a known document; the search for the least loaded node for a new one;
//! O(n log n) per period, when nodes report.

mod hot;
mod monitor;
mod settings;
#[cfg(test)]
mod tests;

pub use settings::{HaccSettings, Level, SignalWeight};

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::gauge::{Gauge, MissingLoadRule};
use super::lard::known;
use super::lard_r::{SetDecision, apply, least_of, most_of};
use super::targets::{TargetMap, TargetShard};
use super::{Choice, LearnedState, Policy, Reason, Request, TargetServers};
use crate::clock::EntryIndex;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, LoadReport};
use crate::time::Time;
use alloc::boxed::Box;
use hot::{HotDocuments, NodeRange};
use monitor::Monitor;

/// The description of `hacc`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "hacc",
    "the node that has the document; the loads that nodes report move some (HACC)",
);

#[derive(Debug)]
pub(super) struct Hacc {
    settings: HaccSettings,
    gauge: Gauge,
    monitor: Monitor,
    hot: Option<Box<HotDocuments>>,
    targets: TargetMap,
}

impl Hacc {
    pub(super) fn new(common: &CommonSettings, settings: HaccSettings) -> Self {
        let HaccSettings { hot_share_permille, hot_nodes, .. } = settings;
        Self {
            settings,
            gauge: Gauge::new(common.nodes_max, common.report_age_max),
            monitor: Monitor::default(),
            hot: (hot_share_permille > 0).then(|| Box::new(HotDocuments::new(hot_share_permille, hot_nodes))),
            targets: TargetMap::of(common),
        }
    }

    /// Returns the node with the lowest load for which `skip` is false.
    fn least(
        &self,
        now: Time,
        target: TargetId,
        nodes: ClusterView<'_>,
        skip: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        self.gauge.least(now, nodes.position(target.0), MissingLoadRule::Probe, nodes, skip)
    }

    /// Returns the only node of a document that does not move. This is the common case.
    #[inline]
    fn unmoved_node(
        &self,
        now: Time,
        target: TargetId,
        shard: &TargetShard,
        slot: EntryIndex,
        nodes: ClusterView<'_>,
    ) -> Option<NodeId> {
        let node = shard.sole(slot, nodes)?;
        let moved = self.monitor.move_destination(now, target, node, shard.changed(slot));
        moved.is_none().then_some(node)
    }

    fn first(&self, now: Time, target: TargetId, nodes: ClusterView<'_>, lost: bool) -> Option<SetDecision> {
        let node = self.least(now, target, nodes, |_| false)?;
        let reason = if lost { Reason::Lost } else { Reason::First };
        Some(SetDecision { choice: Choice { node, reason }, add: Some(node), remove: None })
    }

    fn decide(
        &self,
        now: Time,
        target: TargetId,
        (shard, slot): (&TargetShard, EntryIndex),
        spread: NodeRange,
        nodes: ClusterView<'_>,
    ) -> Option<SetDecision> {
        let members = || shard.open_members(slot, nodes);
        let Some(least) = least_of(members(), nodes) else {
            return self.first(now, target, nodes, shard.was_assigned(slot));
        };
        let mut decision =
            SetDecision { choice: Choice { node: least, reason: Reason::Local }, add: None, remove: None };
        let count = members().count();
        if count < usize::from(spread.up_to) {
            let more = self.least(now, target, nodes, |node| members().any(|member| member == node));
            if let Some(node) = more {
                decision.choice = Choice { node, reason: Reason::Replicate };
                decision.add = Some(node);
            }
        } else if count > usize::from(spread.down_to) {
            decision.remove = most_of(members().filter(|node| *node != least), nodes);
            decision.choice.reason = Reason::Shrink;
        } else if count == 1 {
            let moved = self.monitor.move_destination(now, target, least, shard.changed(slot));
            if let Some(node) = moved.filter(|node| nodes.is_open(*node)) {
                let choice = Choice { node, reason: Reason::Migrate };
                decision = SetDecision { choice, add: Some(node), remove: Some(least) };
            }
        }
        Some(decision)
    }

    fn retry(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let node = self.least(now, request.target, nodes, |node| request.exclude.contains(node))?;
        Some(Choice { node, reason: Reason::Retry })
    }

    /// Counts a request at the chosen node. If the node's load is missing, its next probe is deferred.
    fn count_choice(&self, now: Time, choice: Choice, nodes: ClusterView<'_>) -> Choice {
        if self.gauge.get(now, choice.node, nodes).is_none() {
            self.gauge.defer_probe(choice.node, now + self.settings.period);
        }
        choice.count_request(nodes)
    }
}

impl Policy for Hacc {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| self.count_choice(now, choice, nodes));
        }
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        let spread = match &self.hot {
            None => NodeRange::ONE,
            Some(hot) => {
                let counted = nodes.learned(|| hot.count(now, request.target).to_bits());
                NodeRange::from_bits(counted)
            }
        };
        if spread.up_to == 1
            && let Some(node) = self.unmoved_node(now, request.target, &shard, slot, nodes)
        {
            return Some(Choice { node, reason: Reason::Local }.count_request(nodes));
        }
        let epoch = nodes.epoch();
        let decision = self.decide(now, request.target, (&shard, slot), spread, nodes)?;
        let changes = decision.add.is_some() || decision.remove.is_some();
        if changes || !shard.is_current(slot, nodes) {
            apply(&mut shard, slot, decision, changes.then_some(now), nodes, epoch);
        }
        Some(self.count_choice(now, decision.choice, nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let spread = self.hot.as_ref().map_or(NodeRange::ONE, |hot| hot.peek(request.target));
        let decision = match shard.find(request.target) {
            None => self.first(now, request.target, nodes, false),
            Some(slot) => self.decide(now, request.target, (&shard, slot), spread, nodes),
        };
        decision.map(|decision| decision.choice)
    }

    fn on_report(&self, now: Time, node: NodeId, report: &LoadReport, nodes: ClusterView<'_>) {
        let load = self.settings.load(report, nodes.weight(node));
        let put = || self.gauge.put(now, node, load, nodes);
        self.monitor.on_report(now, node, &self.settings, &self.gauge, nodes, put);
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
        self.targets.learned_state(nodes)
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        self.targets.restore(saved, nodes);
    }
}
