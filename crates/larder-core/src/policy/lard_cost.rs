//! `lard-cost`: LARD as a sum of costs (Aron, Druschel and Zwaenepoel, USENIX 1999, section 4): what queues, misses and
//! replacements delay, in one unit, instead of thresholds that say when to move.
//!
//! ```text
//! unit of cost and load: the delay of a request for a cached target at an unloaded node
//! balancing(s)     = 0 if load(s) < L_idle, load(s) - L_idle otherwise, infinite if load(s) > L_overload
//! locality(t, s)   = 1 if t is mapped to s, else M
//! replacement(t,s) = 0 if load(s) < L_idle or t is mapped to s, else M
//! s = argmin of the sum; if t is not mapped to s, it is now
//! ```
//! M is the cost of a miss. Load is requests in flight by the node's weight.
//!
//! *Not all nodes need be looked at.* Of the nodes to which t is not mapped the sum is a function f of the load alone, and it
//! does not fall: M below L_idle, 2 M + load - L_idle from there on, infinite at last. Of those to which it is mapped it is
//! g: 1, 1 + load - L_idle, infinite. As M is at least 1, g(x) <= f(x) for every x. Let L be the least loaded of all nodes.
//! For any node u to which t is not mapped, f(load(u)) >= f(load(L)), and that is at least L's own cost, which is f or g of
//! its load. So the minimum is reached at L or at a node to which t is mapped, and only those are compared. And where some
//! mapped node's cost is at most M, the least that f can be, L is not looked for either: as long as a target's node has no more
//! than L_idle + M - 1 in flight, the decision is one look at the map.
//!
//! *M, measured*, unless it is [given](MissCost::Fixed): the median time of misses over the median time of hits at an unloaded node, both
//! from what the shell says of the requests that end. Unloaded means at most [`UNLOADED`] requests in flight by the node's weight;
//! misses count from nodes below L_idle, since what queues cost is counted apart. Medians, because clients that read slowly
//! and targets of all sizes make the times' tails. They are counted in classes of an eighth of a doubling (an error of 9 % at
//! most), each half forgotten after 4,096 samples. M is the ratio, cut to 1 to 1,000; until there are 64 samples of each, or
//! where nodes do not say what was a hit, it is the value to start from, the paper's 50. Decisions read it as
//! [`ClusterView::learned`].
//!
//! *What stays a constant.* L_idle and L_overload, the paper's 30 and 130 connections: no time of a single request tells them.
//! By the formula a node with `load` in flight delays what comes by load - L_idle units, so with hits of r ms L_overload
//! accepts (L_overload - L_idle) r ms of waiting: whoever has a bound D on that sets L_idle + D / r. [`UNLOADED`] and the numbers
//! of samples are constants too.
//!
//! Where the paper is silent:
//! - *How long t stays mapped.* It only says when t becomes mapped. Here t has a set of nodes as in [`super::lard_r`]: where
//!   the set was not changed for longer than K, one that grows also loses its most loaded other member, and so does one that
//!   is left alone; else the map would claim what caches have long dropped.
//! - *All infinite*: where every node that is compared is above L_overload, they are compared without that bound.
//! - *Ties* go to a mapped node, the one added first; among the others as in [`super::lard`]. For a target that is mapped
//!   nowhere the argmin is the least loaded node.
//! - *Retries* as in [`super::lard_r`].
//!
//! Parameters: [`CostSettings`], K, the size of the target map. State: the map and two histograms. Cost: O(servers of the
//! target), and the search for the least loaded node when all of them cost more than M.

mod miss;

pub use miss::{CostSettings, MissCost};

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::lard::{known, retry};
use super::lard_r::{Verdict, apply, least_of, most_of};
use super::targets::{Shard, Targets};
use super::{CacheResult, Choice, LearnedState, Policy, Reason, Request, RequestOutcome, TargetServers};
use crate::clock::Slot;
use crate::id::{NodeId, TargetId};
use crate::nodes::load::Key;
use crate::nodes::{ClusterView, PlacementOptions};
use crate::time::Time;
use core::time::Duration;
use miss::Misses;

/// The description of `lard-cost`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lard-cost",
    "like lard-r, by what queues and misses cost instead of thresholds",
);

/// Requests in flight, by the node's weight, up to which a node counts as unloaded.
pub const UNLOADED: u32 = 4;

/// One unit of cost: one request, as keys count it.
const UNIT: u64 = Key::of(1).get();

/// Above every cost that is not infinite.
const INFINITE: u64 = 1 << 62;

#[derive(Debug)]
pub(super) struct LardCost {
    idle: Key,
    overload: Key,
    /// M where it is given, or nothing is known; in 1/1000.
    miss_milli: u64,
    misses: Option<Box<Misses>>,
    decay: Duration,
    targets: Targets,
}

impl LardCost {
    pub(super) fn new(common: &CommonSettings, settings: CostSettings) -> Self {
        let CostSettings { idle, overload, miss } = settings;
        let (default, measured) = match miss {
            MissCost::Fixed(units) => (units, false),
            MissCost::Measured { default } => (default, true),
        };
        Self {
            idle: Key::of(idle),
            overload: Key::of(overload),
            miss_milli: u64::from(default) * 1000,
            misses: measured.then(Box::default),
            decay: common.replication_decay,
            targets: Targets::of(common),
        }
    }

    /// M in units of keys.
    fn miss(&self, nodes: ClusterView<'_>) -> u64 {
        let milli = match &self.misses {
            None => self.miss_milli,
            Some(misses) => match nodes.learned(|| misses.milli()) {
                0 => self.miss_milli,
                milli => milli,
            },
        };
        milli * UNIT / 1000
    }

    /// The cost at a node with this key. Above L_overload it is that without the bound, and infinite beside: of two such
    /// nodes the cheaper one is taken all the same.
    fn cost(&self, key: Key, mapped: bool, miss: u64) -> u64 {
        let balancing = key.get().saturating_sub(self.idle.get());
        let beyond = if key > self.overload { INFINITE } else { 0 };
        let rest = match (mapped, key < self.idle) {
            (true, _) => UNIT,
            (false, true) => miss,
            (false, false) => 2 * miss,
        };
        balancing + beyond + rest
    }

    /// The only server, counted, if its cost is the least there can be.
    #[inline]
    fn cheap(&self, node: NodeId, nodes: ClusterView<'_>) -> Option<Choice> {
        if nodes.start(node) < self.idle {
            return Some(Choice { node, reason: Reason::Local });
        }
        let counted = nodes.end(node);
        debug_assert!(counted, "it was counted a moment ago");
        None
    }

    fn first(
        now: Time,
        target: TargetId,
        nodes: ClusterView<'_>,
        lost: bool,
        placing: PlacementOptions,
    ) -> Option<Verdict> {
        let node = nodes.place(now, target, |_| false, placing)?;
        let reason = if lost { Reason::Lost } else { Reason::First };
        Some(Verdict { choice: Choice { node, reason }, add: Some(node), remove: None })
    }

    fn decide(
        &self,
        now: Time,
        target: TargetId,
        found: (&Shard, Slot),
        nodes: ClusterView<'_>,
        take: bool,
    ) -> Option<Verdict> {
        let (shard, slot) = found;
        let members = || shard.members(slot, nodes);
        let Some(least) = least_of(members(), nodes) else {
            return Self::first(
                now,
                target,
                nodes,
                shard.was_assigned(slot),
                PlacementOptions::first(self.idle, take),
            );
        };
        let choice = Choice { node: least, reason: Reason::Local };
        let mut verdict = Verdict { choice, add: None, remove: None };
        let miss = self.miss(nodes);
        let cost = self.cost(nodes.key(least), true, miss);
        if cost > miss {
            let other = nodes.place(now, target, |_| false, PlacementOptions::relief(take))?;
            if members().all(|member| member != other) && self.cost(nodes.key(other), false, miss) < cost {
                verdict.choice = Choice { node: other, reason: Reason::Replicate };
                verdict.add = Some(other);
            }
        }
        let several = verdict.add.is_some() || members().nth(1).is_some();
        if several && now.since(shard.changed(slot)) > self.decay {
            let serving = verdict.choice.node;
            verdict.remove = most_of(members().filter(|node| *node != serving), nodes);
            verdict.choice.reason = match (verdict.add, verdict.remove) {
                (_, None) => verdict.choice.reason,
                (Some(_), Some(_)) => Reason::Migrate,
                (None, Some(_)) => Reason::Shrink,
            };
        }
        Some(verdict)
    }

    /// Another server of the target, or else any node, that was not tried.
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

impl Policy for LardCost {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let epoch = nodes.epoch();
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        if let Some(choice) = shard.sole(slot, nodes).and_then(|node| self.cheap(node, nodes)) {
            return Some(choice);
        }
        let verdict = self.decide(now, request.target, (&shard, slot), nodes, true)?;
        let changes = verdict.add.is_some() || verdict.remove.is_some();
        if changes || !shard.is_current(slot, nodes) {
            apply(&mut shard, slot, verdict, changes.then_some(now), nodes, epoch);
        }
        Some(verdict.choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let verdict = match shard.find(request.target) {
            None => Self::first(now, request.target, nodes, false, PlacementOptions::first(self.idle, false)),
            Some(slot) => self.decide(now, request.target, (&shard, slot), nodes, false),
        };
        verdict.map(|verdict| verdict.choice)
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
        let numbers = self.misses.as_ref().map_or_else(Vec::new, |misses| misses.numbers());
        LearnedState { numbers, ..self.targets.learned_state(nodes) }
    }

    fn restore(&self, memory: &LearnedState, nodes: ClusterView<'_>) {
        self.targets.restore(memory, nodes);
        if let Some(misses) = &self.misses {
            misses.go_on(&memory.numbers);
        }
    }

    fn on_reply(
        &self,
        _now: Time,
        _request: &Request,
        node: NodeId,
        served: &RequestOutcome,
        nodes: ClusterView<'_>,
    ) {
        let (Some(misses), Some(found)) = (&self.misses, served.found) else { return };
        let load = nodes.key(node);
        let counts = match found {
            CacheResult::Hit => load <= Key::of(UNLOADED),
            CacheResult::Miss => load < self.idle,
        };
        if counts {
            misses.sample(found, served.elapsed);
        }
    }
}

#[cfg(test)]
mod tests;
