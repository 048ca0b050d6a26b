//! `lard-cost`: LARD as a sum of costs (Aron, Druschel and Zwaenepoel, USENIX 1999, section 4). The delays of
//! queueing, misses and
//! replacement are measured in one unit and replace the thresholds.
//!
//! ```text
//! unit of cost and load: the delay of a request for a cached target at an unloaded node
//! balancing(s)     = 0 if load(s) < L_idle, load(s) - L_idle otherwise, infinite if load(s) > L_overload
//! locality(t, s)   = 1 if t is mapped to s, else M
//! replacement(t,s) = 0 if load(s) < L_idle or t is mapped to s, else M
//! s = argmin of the sum; if t is not mapped to s, it is now
//! ```
//!
//! M is the cost of a miss. Load is requests in flight divided by the node's weight.
//!
//! *Only some nodes are compared.* For nodes to which t is not mapped, the sum is a non-decreasing function f of the load: M
//! below L_idle, 2 M + load - L_idle from there on, then infinite. For nodes to which t is mapped it is g: 1, 1 + load - L_idle,
//! infinite. As M is at least 1, g(x) <= f(x) for every x. Let L be the least loaded of all nodes. For any node u to which t is
//! not mapped, f(load(u)) >= f(load(L)), which is at least L's own cost. The minimum is therefore reached at L or at a node to
//! which t is mapped, and only those are compared. If some mapped node's cost is at most M, the lowest value of f, L is not
//! searched for. While a target's node has at most L_idle + M - 1 requests in flight, the decision is one lookup in the map.
//!
//! *M, measured*, unless it is [fixed](MissCost::Fixed): the median time of misses divided by the median time of hits at an
//! unloaded node, both from the results of requests. Unloaded means at most [`UNLOADED`] requests in flight by the node's weight.
//! Misses count from nodes below L_idle, because the cost of queueing is counted separately. Medians are used because clients
//! that read slowly and targets of all sizes cause long tails. Times are counted in classes of an eighth of a doubling (an error
//! of at most 9 %), and the counts are halved after 4,096 samples. M is the ratio, limited to 1 to 1,000. Until there are 64
//! samples of each kind, or if nodes do not report hits, M is the initial value, the paper's 50. Decisions read M through
//! `ClusterView::learned`.
//!
//! *Constants.* L_idle and L_overload are the paper's 30 and 130 connections, because the time of a single request does not
//! reveal them. By the formula a node with `load` requests in flight delays the next one by load - L_idle units. With hits of
//! r ms, L_overload accepts a wait of (L_overload - L_idle) r ms. For a bound D on that wait, set L_overload to L_idle + D / r.
//! [`UNLOADED`] and the numbers of samples are constants too.
//!
//! The paper does not define the following:
//! - *Duration of a mapping.* The paper defines only when t becomes mapped. Here t has a set of nodes as in
//!   [`super::lard_r`]. Suppose a set was not changed for longer than K. If it grows or is not overloaded, it also loses
//!   its most loaded other member. Otherwise the map would contain targets that the caches have evicted long ago.
//! - *All costs infinite*: if every compared node is above L_overload, they are compared without that bound.
//! - *Ties* go to a mapped node, the one added first; among other nodes as in [`super::lard`]. For a target that is mapped
//!   nowhere the argmin is the least loaded node.
//! - *Retries* as in [`super::lard_r`].
//!
//! Parameters: [`CostSettings`], K, the size of the target map. State: the map and two histograms. Cost: O(servers of the
//! target), and the search for the least loaded node if all of them cost more than M.

mod miss;

pub(super) use miss::MissCostEstimator;
pub use miss::{CostSettings, MissCost};

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::lard::{known, retry};
use super::lard_r::{SetDecision, apply, least_of, most_of};
use super::targets::{TargetMap, TargetShard};
use super::{CacheResult, Choice, LearnedState, Policy, Reason, ReplyFeedback, Request, TargetServers};
use crate::clock::EntryIndex;
use crate::id::{NodeId, TargetId};
use crate::nodes::load::Key;
use crate::nodes::{ClusterView, PlacementOptions};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

/// The description of `lard-cost`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lard-cost",
    "like lard-r, by what queues and misses cost instead of thresholds",
);

/// The largest load at which a node counts as unloaded: requests in flight by the node's weight.
pub const UNLOADED: u32 = 4;

/// One unit of cost in units of keys: one request.
const UNIT: u64 = Key::of(1).get();

/// A value above every finite cost.
const INFINITE: u64 = 1 << 62;

#[derive(Debug)]
pub(super) struct LardCost {
    idle: Key,
    overload: Key,
    /// M if it is fixed or not measured yet, in 1/1000.
    miss_milli: u64,
    misses: Option<Box<MissCostEstimator>>,
    decay: Duration,
    targets: TargetMap,
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
            targets: TargetMap::of(common),
        }
    }

    /// Returns M in units of keys.
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

    /// Returns the cost at a node with this key. Above L_overload this is the cost without the bound plus
    /// [`INFINITE`], so that of two such nodes the cheaper one is chosen.
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

    /// Counts a request at the only server and returns the choice, if its cost is the lowest possible one.
    #[inline]
    fn count_if_cheapest(&self, node: NodeId, nodes: ClusterView<'_>) -> Option<Choice> {
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
    ) -> Option<SetDecision> {
        let node = nodes.place(now, target, |_| false, placing)?;
        let reason = if lost { Reason::Lost } else { Reason::First };
        Some(SetDecision { choice: Choice { node, reason }, add: Some(node), remove: None })
    }

    fn decide(
        &self,
        now: Time,
        target: TargetId,
        found: (&TargetShard, EntryIndex),
        nodes: ClusterView<'_>,
        take: bool,
    ) -> Option<SetDecision> {
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
        let mut decision = SetDecision { choice, add: None, remove: None };
        let miss = self.miss(nodes);
        let cost = self.cost(nodes.key(least), true, miss);
        if cost > miss {
            let other = nodes.place(now, target, |_| false, PlacementOptions::relief(take))?;
            if members().all(|member| member != other) && self.cost(nodes.key(other), false, miss) < cost {
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

impl Policy for LardCost {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let epoch = nodes.epoch();
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        if let Some(choice) = shard.sole(slot, nodes).and_then(|node| self.count_if_cheapest(node, nodes)) {
            return Some(choice);
        }
        let decision = self.decide(now, request.target, (&shard, slot), nodes, true)?;
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
        let decision = match shard.find(request.target) {
            None => Self::first(now, request.target, nodes, false, PlacementOptions::first(self.idle, false)),
            Some(slot) => self.decide(now, request.target, (&shard, slot), nodes, false),
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
        let numbers = self.misses.as_ref().map_or_else(Vec::new, |misses| misses.numbers());
        LearnedState { numbers, ..self.targets.learned_state(nodes) }
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        self.targets.restore(saved, nodes);
        if let Some(misses) = &self.misses {
            misses.resume(&saved.numbers);
        }
    }

    fn on_reply(
        &self,
        _now: Time,
        _request: &Request,
        node: NodeId,
        served: &ReplyFeedback,
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
