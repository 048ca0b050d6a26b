//! `hacc`: the Harvard array's smart router (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT 1999, section 3): a
//! document belongs to a node; nodes' measured loads say where new ones go and when some move.
//!
//! ```text
//! on request d:   n = node[d]; none: n = node[d] = least loaded                     serve at n
//! every period:   load(n) = w_cpu cpu(n) + w_disk disk(n)
//!                 for x by falling load, y = least loaded:
//!                   if load(x) - load(y) > margin:
//!                     for cooldown: of x's documents, as they are asked for, a fraction f moves to y, once each
//!                     f = amount (load(x) - load(y)) / load(x)
//! ```
//! Loads are in 1/1000. `cpu` is the share of time the CPU was busy. `disk` is the paper's bytes per second to and from
//! disk over `disk_full` bytes per second, at most 1000; the paper does not give its constant, so with `disk_full` = 0,
//! the default, it is the share of time the disk was busy, which is the same thing on the CPU's scale.
//!
//! Where the paper is silent:
//! - *Which documents move, and how many*: those asked for next whose hash falls below f. If documents of one node are
//!   alike, that moves f of its load, and with `amount` one half the two loads meet. No list of a node's documents
//!   is kept, and a document that nobody asks for costs nothing. A document moves at most once per offload, and only
//!   if it was at x when the offload began.
//! - *When again*: until the cool-down ends x sheds no more and y is given no more, so that reports can show what
//!   the first move did. Within one check each decision is added to the loads before the next is made.
//! - *Granularity*: the target. The paper's tree of directories stores the same map; whoever wants a document to be
//!   a database view makes that the target key.
//! - *Missing reports* (none, or older than `report_age_max`): the node counts as the mean of those that have reported
//!   when a document is placed, and neither sheds nor receives. With no report at all documents go to the node with the
//!   fewest requests in flight. Ties as in [`super::lard_util`]. The 200 ms samples are not smoothed.
//! - *Failure*: a failed node's documents count as never seen. A node that joins is not held back.
//! - *Retries* go to the least loaded node not tried and move nothing.
//!
//! Checks happen at the first request after each period. Between two reports the least loaded node stays the same, so
//! all new documents of that time go there; the paper's router does so too.
//!
//! Parameters: [`HaccSettings`], `report_age_max`, the size of the map. State: the map, bounded like the others, and at
//! most one offload per node. Cost: O(1) for a document that is known, O(n) for a new one, O(n^2) at worst per
//! check.

mod monitor;
mod settings;
#[cfg(test)]
mod tests;

pub use settings::HaccSettings;

use super::lard::known;
use super::measured::{least_by, open};
use super::targets::Targets;
use super::{Choice, Known, Policy, Reason};
use crate::dispatch::{Request, Settings};
use crate::id::{NodeId, TargetId};
use crate::nodes::{Sight, lock};
use crate::tape::Lane;
use crate::time::Time;
use core::time::Duration;
use monitor::Monitor;
use std::sync::Mutex;

#[derive(Debug)]
pub(super) struct Hacc {
    settings: HaccSettings,
    age_max: Duration,
    targets: Targets,
    monitor: Mutex<Monitor>,
}

/// What the map says of a document.
#[derive(Clone, Copy, Debug)]
struct Seen {
    server: Option<NodeId>,
    was_assigned: bool,
    changed: Time,
}

impl Hacc {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            settings: settings.hacc,
            age_max: settings.report_age_max,
            targets: Targets::new(settings.targets_max, settings.shards),
            monitor: Mutex::default(),
        }
    }

    /// The node's load in 1/1000; `None` if it is unknown.
    fn load(&self, now: Time, node: NodeId, nodes: Sight<'_>) -> Option<u32> {
        self.settings.load(&nodes.fresh_report(now, node, self.age_max)?)
    }

    fn least(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<NodeId> {
        let loads: Vec<(NodeId, Option<u32>)> =
            open(nodes).map(|node| (node, self.load(now, node, nodes))).collect();
        let known = || loads.iter().filter_map(|(_, load)| *load);
        let sum: u64 = known().map(u64::from).sum();
        let mean = sum.checked_div(known().count() as u64).unwrap_or(0);
        let load = |node: NodeId| {
            let at = loads.binary_search_by_key(&node, |(node, _)| *node).ok();
            at.and_then(|at| loads[at].1).map_or(mean, u64::from)
        };
        let tried = |node| request.exclude.contains(node);
        least_by(nodes, nodes.position(request.target.0), tried, load)
    }

    fn decide(
        &self,
        now: Time,
        request: &Request,
        seen: Seen,
        nodes: Sight<'_>,
        monitor: &mut Monitor,
    ) -> Option<Choice> {
        monitor.check(now, &self.settings, nodes, |node| self.load(now, node, nodes));
        let Some(node) = seen.server else {
            let reason = if seen.was_assigned { Reason::Lost } else { Reason::First };
            return self.least(now, request, nodes).map(|node| Choice { node, reason });
        };
        let moved = monitor.moved(now, request.target, node, seen.changed);
        match moved.filter(|to| nodes.is_open(*to)) {
            Some(to) => Some(Choice { node: to, reason: Reason::Migrate }),
            None => Some(Choice { node, reason: Reason::Local }),
        }
    }

    fn retry(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let node = self.least(now, request, nodes)?;
        Some(Choice { node, reason: Reason::Retry })
    }
}

impl Policy for Hacc {
    fn pick(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| choice.counted(nodes));
        }
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        let epoch = nodes.epoch();
        let seen = Seen {
            server: shard.members(slot, nodes).next(),
            was_assigned: shard.was_assigned(slot),
            changed: shard.changed(slot),
        };
        let choice = {
            let mut monitor = lock(&self.monitor);
            nodes.visit(Lane::Own(0), &mut monitor.visits);
            self.decide(now, request, seen, nodes, &mut monitor)?
        };
        shard.put_sole(slot, choice, now, epoch, nodes);
        Some(choice.counted(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let seen = match shard.find(request.target) {
            None => Seen { server: None, was_assigned: false, changed: Time::ZERO },
            Some(slot) => Seen {
                server: shard.members(slot, nodes).next(),
                was_assigned: shard.was_assigned(slot),
                changed: shard.changed(slot),
            },
        };
        let mut monitor = lock(&self.monitor).clone();
        self.decide(now, request, seen, nodes, &mut monitor)
    }

    fn known(&self, target: TargetId, nodes: Sight<'_>) -> Option<Known> {
        known(&self.targets, target, nodes)
    }

    fn targets(&self) -> usize {
        self.targets.len()
    }
}
