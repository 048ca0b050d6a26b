//! `hacc`: the Harvard array's smart router (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT 1999, section 3): a
//! document belongs to a node; nodes' measured loads say where new ones go and when some move.
//!
//! ```text
//! on request d:   n = node[d]; none: n = node[d] = least loaded                     serve at n
//! every period:   load(n) = sum of w(i) signal(i, n) / full(i)
//!                 for x by falling load, y = least loaded:
//!                   if load(x) - load(y) > margin:
//!                     for cooldown: of x's documents, as they are asked for, a fraction f moves to y, once each
//!                     f = 2 amount (load(x) - load(y)) / load(x) * weight(y) / (weight(x) + weight(y))
//! ```
//! Loads are in 1/1000. The paper weighs CPU and disk, with 0 and 1 for static files and 1/2 each for Domino; it foresees
//! paging and queue lengths. Here any of the [signals](crate::nodes::Signal) that nodes report can be weighed, each over the
//! value that counts as full. The paper's disk is a rate in bytes per second, normalised by a constant that it does not give;
//! the presets take the share of time the disk was busy, which is the same thing on the CPU's scale.
//!
//! *Capacity.* Loads are compared relative to what a node can bear. A share of time is that already; counts and rates are
//! divided by the node's weight. Load that moves from x to y counts there by weight(x) / weight(y), hence the last factor of
//! f; for equal weights f is amount (load(x) - load(y)) / load(x).
//!
//! *The tree.* The paper keeps a tree of the document store: directories inside, documents as leaves, each leaf with its
//! node, and nothing else; for Domino it is cut at the views. Here the map holds the nodes of the tree at which it is cut,
//! by the hash of their path, which is the same assignment in fewer bytes and bounded. Where it is cut is the target
//! key's business: at documents by default; with [`Level::Subtree`] the shell makes keys of host and the first segments
//! of the path ([`Level::key`]), so that a directory's documents stay together, move together and count together; and any
//! key template does for what no path says, as host, path to view depth and action for Domino. That a document is in a
//! directory is not looked at when its subtree was not seen.
//!
//! *Static and dynamic apart* (the paper's rule for ASP pages: static requests to one node, ASP to two) is a matter of routes:
//! one route per kind, each with its group of nodes and its own `hacc`, whose loads, map and offloads are those of its group.
//!
//! *Hot documents* ([`hot`]), which the paper mentions and does not build: a document with more than `hot_share_permille` of
//! the requests is served by several nodes. It gets a further one, the least loaded, with the next request, is then served by
//! the least loaded of its nodes by requests in flight, and loses them again when it cools down, the most loaded first.
//!
//! Where the paper is silent:
//! - *Which documents move, and how many*: those asked for next whose hash falls below f. If documents of one node are
//!   alike, that moves f of its load, and with `amount` one half the two loads meet. No list of a node's documents
//!   is kept, and a document that nobody asks for costs nothing. A document moves at most once per offload, and only
//!   if it was at x when the offload began. One that has several nodes stays.
//! - *When again*: until the cool-down ends x sheds no more and y is given no more, so that reports can show what
//!   the first move did. Within one comparison each node takes part once. See [`monitor`].
//! - *Missing reports* (none, without one of the weighed signals, or older than `report_age_max`): the node is probed. While
//!   it has nothing in flight it counts as the least of all when a document is placed, once in every period, since a node
//!   that reports with its replies, or a signal that only requests show, would stay missing otherwise. Beside that it counts
//!   as the mean of those that are known, so it is chosen only where those are all equal. It neither sheds nor receives. With no report at all documents go to the node with the fewest requests in flight. Ties as in
//!   [`super::lard_util`]. The 200 ms samples are not smoothed.
//! - *Failure*: a failed node's documents count as never seen. A node that joins is not held back.
//! - *Retries* go to the least loaded node not tried and move nothing.
//!
//! Between two reports the least loaded node stays the same, so all new documents of that time go there; the paper's
//! router does so too.
//!
//! Parameters: [`HaccSettings`], `report_age_max`, the size of the map. State: the map, bounded like the others, a number per
//! node, at most one offload per two nodes. Cost: O(1) for a document that is known; the search for the least loaded for a
//! new one; O(n log n) per period, when nodes report.

mod hot;
mod monitor;
mod settings;
#[cfg(test)]
mod tests;

pub use settings::{HaccSettings, Level, SignalWeight};

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::gauge::{Gauge, Unknown};
use super::lard::known;
use super::lard_r::{Verdict, apply, least_of, most_of};
use super::targets::{Shard, Targets};
use super::{Choice, LearnedState, Policy, Reason, Request, TargetServers};
use crate::clock::Slot;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, LoadReport};
use crate::time::Time;
use hot::{Hot, Spread};
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
    hot: Option<Box<Hot>>,
    targets: Targets,
}

impl Hacc {
    pub(super) fn new(common: &CommonSettings, settings: HaccSettings) -> Self {
        let HaccSettings { hot_share_permille, hot_nodes, .. } = settings;
        Self {
            settings,
            gauge: Gauge::new(common.nodes_max, common.report_age_max),
            monitor: Monitor::default(),
            hot: (hot_share_permille > 0).then(|| Box::new(Hot::new(hot_share_permille, hot_nodes))),
            targets: Targets::of(common),
        }
    }

    /// The node with the least load for which `skip` is false.
    fn least(
        &self,
        now: Time,
        target: TargetId,
        nodes: ClusterView<'_>,
        skip: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        self.gauge.least(now, nodes.position(target.0), Unknown::Probe, nodes, skip)
    }

    /// The only node of a document that is to stay there: the common case.
    #[inline]
    fn settled(
        &self,
        now: Time,
        target: TargetId,
        shard: &Shard,
        slot: Slot,
        nodes: ClusterView<'_>,
    ) -> Option<NodeId> {
        let node = shard.sole(slot, nodes)?;
        let moved = self.monitor.moved(now, target, node, shard.changed(slot));
        moved.is_none().then_some(node)
    }

    fn first(&self, now: Time, target: TargetId, nodes: ClusterView<'_>, lost: bool) -> Option<Verdict> {
        let node = self.least(now, target, nodes, |_| false)?;
        let reason = if lost { Reason::Lost } else { Reason::First };
        Some(Verdict { choice: Choice { node, reason }, add: Some(node), remove: None })
    }

    fn decide(
        &self,
        now: Time,
        target: TargetId,
        (shard, slot): (&Shard, Slot),
        spread: Spread,
        nodes: ClusterView<'_>,
    ) -> Option<Verdict> {
        let members = || shard.open_members(slot, nodes);
        let Some(least) = least_of(members(), nodes) else {
            return self.first(now, target, nodes, shard.was_assigned(slot));
        };
        let mut verdict =
            Verdict { choice: Choice { node: least, reason: Reason::Local }, add: None, remove: None };
        let count = members().count();
        if count < usize::from(spread.up_to) {
            let more = self.least(now, target, nodes, |node| members().any(|member| member == node));
            if let Some(node) = more {
                verdict.choice = Choice { node, reason: Reason::Replicate };
                verdict.add = Some(node);
            }
        } else if count > usize::from(spread.down_to) {
            verdict.remove = most_of(members().filter(|node| *node != least), nodes);
            verdict.choice.reason = Reason::Shrink;
        } else if count == 1 {
            let moved = self.monitor.moved(now, target, least, shard.changed(slot));
            if let Some(node) = moved.filter(|node| nodes.is_open(*node)) {
                let choice = Choice { node, reason: Reason::Migrate };
                verdict = Verdict { choice, add: Some(node), remove: Some(least) };
            }
        }
        Some(verdict)
    }

    fn retry(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let node = self.least(now, request.target, nodes, |node| request.exclude.contains(node))?;
        Some(Choice { node, reason: Reason::Retry })
    }

    /// Notes that a node was chosen that may have been probed.
    fn chosen(&self, now: Time, choice: Choice, nodes: ClusterView<'_>) -> Choice {
        if self.gauge.get(now, choice.node, nodes).is_none() {
            self.gauge.rest(choice.node, now + self.settings.period);
        }
        choice.count_request(nodes)
    }
}

impl Policy for Hacc {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| self.chosen(now, choice, nodes));
        }
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        let spread = match &self.hot {
            None => Spread::ONE,
            Some(hot) => {
                let counted = nodes.learned(|| hot.count(now, request.target).to_bits());
                Spread::from_bits(counted)
            }
        };
        if spread.up_to == 1
            && let Some(node) = self.settled(now, request.target, &shard, slot, nodes)
        {
            return Some(Choice { node, reason: Reason::Local }.count_request(nodes));
        }
        let epoch = nodes.epoch();
        let verdict = self.decide(now, request.target, (&shard, slot), spread, nodes)?;
        let changes = verdict.add.is_some() || verdict.remove.is_some();
        if changes || !shard.is_current(slot, nodes) {
            apply(&mut shard, slot, verdict, changes.then_some(now), nodes, epoch);
        }
        Some(self.chosen(now, verdict.choice, nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let spread = self.hot.as_ref().map_or(Spread::ONE, |hot| hot.ask(request.target));
        let verdict = match shard.find(request.target) {
            None => self.first(now, request.target, nodes, false),
            Some(slot) => self.decide(now, request.target, (&shard, slot), spread, nodes),
        };
        verdict.map(|verdict| verdict.choice)
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

    fn sets(&self) -> Option<&Targets> {
        Some(&self.targets)
    }

    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        self.targets.learned_state(nodes)
    }

    fn restore(&self, memory: &LearnedState, nodes: ClusterView<'_>) {
        self.targets.restore(memory, nodes);
    }
}
