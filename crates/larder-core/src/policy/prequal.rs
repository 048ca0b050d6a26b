//! `prequal`: a pool of recent probes, of which the hot-cold rule selects a node by requests in flight and latency
//! (Prequal; Wydrowski, Kleinberg, Rumble and Archer, "Load is not what you should balance: Introducing Prequal",
//! NSDI 2024).
//!
//! ```text
//! a probe of n:      (RIF(n), latency(n)) at the time of the probe
//! hot:               RIF > the Q_RIF quantile of the RIFs of the last 128 probes
//! on request:        of the cold probes in the pool the one with the lowest latency, else of the hot ones the one
//!                    with the lowest RIF; with fewer than 2 probes a node at random
//!                    the probe's RIF grows by 1; after b uses the probe is removed
//!                    one more probe is removed: in turn the oldest, and the worst (of the hot probes the one with the
//!                    highest RIF, else the one with the highest latency)
//!                    3 probes are sent, to different nodes at random; they serve the next requests
//! b:                 max(1, 2 / ((1 - m / n) 3 - 1)), rounded up or down at random; without limit if that is negative
//! ```
//!
//! m is the size of the pool, 16; n the number of nodes. A probe older than a second is removed.
//!
//! *Probes* are messages to servers in the paper, because a thousand clients share the servers and none knows their load.
//! A larder switch counts all requests of all switches itself, so a probe here reads the switch's own counts: RIF is
//! requests in flight divided by weight. As in the paper a probe is used by later requests, when its values have
//! aged. The latency is the median of the 5 of the node's last 16 latencies whose requests met the most similar load, as
//! the paper's server reports it; the load that a request met is taken as the one that it leaves. The latency is that to
//! the first byte, or to the last one if the first is not known. A failed attempt counts if it waited longer than
//! expected. Latencies older than a second do not count, or a node that was slow once would stay unused. A node without
//! latencies counts as the fastest.
//!
//! The paper does not define the following: a new probe of a node replaces the node's older one, and the pool has no
//! more probes than there are nodes. Equal probes are ordered by the other value, then by age. A retry takes the best
//! probe of a node that was not tried.
//!
//! The latencies are not recorded. A probe reads them through [`ClusterView::learned`], so that it can be replayed.
//!
//! Parameters: `prequal.rif_quantile` Q_RIF (0.84, the paper's 2^-0.25), `seed`. State: the pool behind one lock, and
//! 280 bytes per node. Cost: O(1).

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::membership_cache::{MembershipCache, scale};
use super::{Choice, LearnedState, Policy, Reason, ReplyFeedback, Request};
use crate::id::NodeId;
use crate::nodes::load::Key;
use crate::nodes::{ClusterView, VisitCounter, mix};
use crate::range::{SettingsError, in_range};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// The description of `prequal`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request(
    "prequal",
    "the quickest node of a pool of probes that has not too many requests in flight",
);

/// The largest number of probes in the pool.
const POOL_MAX: usize = 16;
/// The number of probes for each request.
const PROBES: usize = 3;
/// The number of probes below which a node is drawn at random.
const POOL_MIN: usize = 2;
/// The age at which a probe is removed, and a latency no longer counts.
const AGE_MAX: Duration = Duration::from_secs(1);
/// The number of probes whose RIFs give the limit of hot ones.
const RIFS: usize = 128;
/// The number of stored latencies of a node, and the number of those whose median counts.
const SAMPLES: usize = 16;
const NEAREST: usize = 5;

/// The parameters of `prequal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrequalSettings {
    /// Q_RIF: the share of probes that are not hot, in 1/1000. Below it latency decides, above it requests in flight.
    /// 0 to 1,000; default 841 (section 5 of the paper: 2^-0.25).
    pub rif_quantile_permille: u16,
}

impl Default for PrequalSettings {
    fn default() -> Self {
        Self { rif_quantile_permille: 841 }
    }
}

impl PrequalSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let quantile = self.rif_quantile_permille;
        in_range("prequal.rif_quantile_permille", quantile.into(), quantile <= 1_000, "0 to 1000")
    }
}

#[derive(Debug)]
pub(super) struct Prequal {
    seed: u64,
    settings: PrequalSettings,
    members: MembershipCache<Vec<NodeId>>,
    state: Mutex<ProbeState>,
    latencies: Box<[Mutex<NodeLatencies>]>,
}

#[derive(Debug, Default)]
struct ProbeState {
    /// The pool, the oldest probe first; at most one of each node.
    pool: Vec<Probe>,
    /// The RIFs of the last probes in their order, and sorted.
    rifs: VecDeque<u64>,
    sorted: Vec<u64>,
    /// The number of decisions, which numbers random draws and the turns of removals.
    decisions: u64,
    visits: VisitCounter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    node: NodeId,
    /// Requests in flight by weight, as [`Key::get`] gives them.
    rif: u64,
    latency_us: u64,
    /// The number of further uses.
    uses: u32,
    at: Time,
    /// The membership epoch of the probe.
    epoch: u32,
}

/// The last latencies of a node.
#[derive(Debug, Default)]
struct NodeLatencies {
    samples: VecDeque<LatencySample>,
    /// The membership epoch of the last sample.
    epoch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LatencySample {
    load: u32,
    us: u32,
    at: Time,
}

impl Prequal {
    pub(super) fn new(common: &CommonSettings, settings: PrequalSettings) -> Self {
        Self {
            seed: mix(common.seed),
            settings,
            members: MembershipCache::default(),
            state: Mutex::default(),
            latencies: (0..common.nodes_max).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns the choice, and the place of its probe in the pool if there is one.
    fn choose(
        &self,
        state: &ProbeState,
        now: Time,
        request: &Request,
        nodes: ClusterView<'_>,
    ) -> Option<(Choice, Option<usize>)> {
        let valid = |probe: &Probe| {
            nodes.is_open(probe.node)
                && now.since(probe.at) <= AGE_MAX
                && !nodes.lost_since(probe.node, probe.epoch)
        };
        let valid = || state.pool.iter().enumerate().filter(|(_, probe)| valid(probe));
        let limit = state.hot_limit(self.settings);
        let best = valid()
            .filter(|(_, probe)| !request.exclude.contains(probe.node))
            .min_by_key(|(at, probe)| (probe.badness(limit), *at))
            .filter(|_| valid().nth(POOL_MIN - 1).is_some());
        if let Some((at, probe)) = best {
            let choice = Choice { node: probe.node, reason: request.reason_or(Reason::Quickest) };
            return Some((choice, Some(at)));
        }
        let members = self.members(nodes);
        let start = scale(self.random(state.decisions, 0), members.len() as u64) as usize;
        let usable = |node: &&NodeId| nodes.is_open(**node) && !request.exclude.contains(**node);
        let node = members[start..].iter().chain(&members[..start]).find(usable)?;
        Some((Choice { node: *node, reason: request.reason_or(Reason::Random) }, None))
    }

    fn members(&self, nodes: ClusterView<'_>) -> impl core::ops::Deref<Target = Vec<NodeId>> {
        self.members.get_or_build(nodes, |members| members.into_iter().map(|member| member.node).collect())
    }

    /// Returns random number `index` of a decision.
    fn random(&self, decision: u64, index: u64) -> u64 {
        mix(self.seed ^ mix(decision << 3 | index))
    }

    /// Sends the probes of a decision: reads the values of different nodes at random into the pool.
    fn probe(&self, state: &mut ProbeState, now: Time, nodes: ClusterView<'_>) {
        let members = self.members(nodes);
        let uses = Self::uses(members.len(), self.random(state.decisions, 1));
        let mut drawn = [usize::MAX; PROBES];
        for index in 0..PROBES.min(members.len()) {
            // The draw is among the members that are left: each drawn one at or before it moves it on.
            let mut at = scale(self.random(state.decisions, 2 + index as u64), (members.len() - index) as u64)
                as usize;
            for earlier in &drawn[..index] {
                at += usize::from(*earlier <= at);
            }
            drawn[index] = at;
            drawn[..=index].sort_unstable();
            let node = members[at];
            if nodes.is_open(node) {
                let load = nodes.load(node);
                let probe = Probe {
                    node,
                    rif: nodes.key(node).get(),
                    latency_us: nodes.learned(|| self.latency_us(now, node, load, nodes)),
                    uses,
                    at: now,
                    epoch: nodes.epoch(),
                };
                state.add(probe, POOL_MAX.min(members.len()));
            }
        }
    }

    /// Returns b, the number of uses of a probe.
    fn uses(nodes: usize, random: u64) -> u32 {
        let (pool, nodes) = (POOL_MAX.min(nodes) as u64, nodes.max(1) as u64);
        // 2 / ((1 - m/n) 3 - 1), where both sides are multiplied by n.
        let gained = (nodes - pool) * PROBES as u64;
        let Some(surplus) = gained.checked_sub(nodes).filter(|surplus| *surplus > 0) else {
            return u32::MAX;
        };
        let (whole, rest) = (2 * nodes / surplus, 2 * nodes % surplus);
        (whole + u64::from(scale(random, surplus) < rest)).max(1) as u32
    }

    /// Returns the median of the latencies whose requests met the most similar load; 0 if none is known.
    fn latency_us(&self, now: Time, node: NodeId, load: u32, nodes: ClusterView<'_>) -> u64 {
        let Some(latencies) = self.latencies.get(node.index()) else { return 0 };
        let latencies = latencies.lock();
        if nodes.lost_since(node, latencies.epoch) {
            return 0;
        }
        let (mut near, mut count) = ([(u32::MAX, u32::MAX); NEAREST], 0);
        for sample in latencies.samples.iter().filter(|sample| now.since(sample.at) <= AGE_MAX) {
            let entry = (sample.load.abs_diff(load), sample.us);
            let at = near[..count].partition_point(|other| *other <= entry);
            if at < NEAREST {
                near.copy_within(at..count.min(NEAREST - 1), at + 1);
                near[at] = entry;
                count = (count + 1).min(NEAREST);
            }
        }
        let near = &mut near[..count];
        near.sort_unstable_by_key(|(_, us)| *us);
        near.get(near.len() / 2).map_or(0, |(_, us)| (*us).into())
    }

    fn learn(&self, now: Time, node: NodeId, latency: Duration, nodes: ClusterView<'_>) {
        let Some(latencies) = self.latencies.get(node.index()).filter(|_| nodes.is_open(node)) else {
            return;
        };
        let mut latencies = latencies.lock();
        if nodes.lost_since(node, latencies.epoch) {
            latencies.samples.clear();
        }
        latencies.epoch = nodes.epoch();
        if latencies.samples.len() >= SAMPLES {
            latencies.samples.pop_front();
        }
        let us = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX).max(1);
        latencies.samples.push_back(LatencySample { load: nodes.load(node), us, at: now });
    }
}

impl ProbeState {
    /// Returns the largest RIF of a cold probe.
    fn hot_limit(&self, settings: PrequalSettings) -> u64 {
        let last = self.sorted.len().saturating_sub(1);
        let at = last * usize::from(settings.rif_quantile_permille) / 1_000;
        self.sorted.get(at).copied().unwrap_or(u64::MAX)
    }

    fn add(&mut self, probe: Probe, most: usize) {
        if self.rifs.len() >= RIFS
            && let Some(oldest) = self.rifs.pop_front()
        {
            let at = self.sorted.partition_point(|rif| *rif < oldest);
            self.sorted.remove(at);
        }
        self.rifs.push_back(probe.rif);
        let at = self.sorted.partition_point(|rif| *rif < probe.rif);
        self.sorted.insert(at, probe.rif);
        self.pool.retain(|other| other.node != probe.node);
        if self.pool.len() >= most {
            self.pool.remove(0);
        }
        self.pool.push(probe);
    }

    /// Counts a use of the probe at this place, by a request that adds `one` to the RIF.
    fn use_probe(&mut self, at: usize, one: u64) {
        let probe = &mut self.pool[at];
        probe.rif += one;
        probe.uses = probe.uses.saturating_sub(1);
        if probe.uses == 0 {
            self.pool.remove(at);
        }
    }

    /// Removes old probes, and then in turn the oldest and the worst one.
    fn remove_surplus(&mut self, now: Time, settings: PrequalSettings) {
        self.pool.retain(|probe| now.since(probe.at) <= AGE_MAX);
        let limit = self.hot_limit(settings);
        let worst = || {
            let worst = self.pool.iter().enumerate().max_by_key(|(_, probe)| probe.badness(limit));
            worst.map_or(0, |(at, _)| at)
        };
        let at = if self.decisions.is_multiple_of(2) { 0 } else { worst() };
        if at < self.pool.len() {
            self.pool.remove(at);
        }
    }
}

impl Probe {
    /// Returns the rank of the probe: cold probes by latency, then hot ones by RIF.
    fn badness(&self, limit: u64) -> (bool, u64, u64) {
        if self.rif <= limit { (false, self.latency_us, self.rif) } else { (true, self.rif, self.latency_us) }
    }

    const NUMBERS: usize = 5;

    fn numbers(&self, order: usize) -> [u64; Self::NUMBERS] {
        [order as u64 + 1, self.rif, self.latency_us, self.uses.into(), self.at.as_nanos()]
    }
}

impl Policy for Prequal {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let (choice, used) = self.choose(&state, now, request, nodes)?;
        nodes.start(choice.node);
        if let Some(at) = used {
            let weight = u64::from(nodes.weight(choice.node).milli().max(1));
            state.use_probe(at, Key::of(1).get() * 1_000 / weight);
        }
        state.remove_surplus(now, self.settings);
        self.probe(&mut state, now, nodes);
        state.decisions += 1;
        Some(choice)
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(&self.state.lock(), now, request, nodes).map(|(choice, _)| choice)
    }

    /// Returns the number of decisions and the RIFs; for each node its probe, or zeros, and its latencies.
    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let state = self.state.lock();
        let mut saved = LearnedState {
            numbers: core::iter::once(state.decisions).chain(state.rifs.iter().copied()).collect(),
            ..LearnedState::default()
        };
        for index in 0..nodes.slots().min(self.latencies.len()) {
            let Ok(node) = u16::try_from(index).map(NodeId) else { break };
            let probe = state
                .pool
                .iter()
                .enumerate()
                .find(|(_, probe)| probe.node == node && !nodes.lost_since(node, probe.epoch));
            let probe = probe.map_or([0; Probe::NUMBERS], |(order, probe)| probe.numbers(order));
            let latencies = self.latencies[index].lock();
            let known = if nodes.lost_since(node, latencies.epoch) { 0 } else { latencies.samples.len() };
            let samples = latencies.samples.iter().take(known);
            let samples = samples.flat_map(|sample| sample.numbers());
            let of: Vec<u64> = probe.into_iter().chain(samples).collect();
            if of.iter().any(|number| *number > 0) {
                saved.per_node.push((node, of));
            }
        }
        saved
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        let mut state = self.state.lock();
        let Some((decisions, rifs)) = saved.numbers.split_first() else { return };
        state.decisions = *decisions;
        state.rifs = rifs.iter().copied().take(RIFS).collect();
        state.sorted = state.rifs.iter().copied().collect();
        state.sorted.sort_unstable();
        let mut probes = Vec::new();
        for (node, of) in saved.per_node.iter().filter(|(node, _)| node.index() < nodes.slots()) {
            let Some((&[order, rif, latency_us, uses, at], samples)) =
                of.split_first_chunk::<{ Probe::NUMBERS }>()
            else {
                continue;
            };
            if order > 0 {
                let (uses, at) = (u32::try_from(uses).unwrap_or(u32::MAX), Time::from_nanos(at));
                probes.push((order, Probe { node: *node, rif, latency_us, uses, at, epoch: nodes.epoch() }));
            }
            if let Some(latencies) = self.latencies.get(node.index()) {
                let mut latencies = latencies.lock();
                latencies.epoch = nodes.epoch();
                let samples = samples.as_chunks::<2>().0.iter().take(SAMPLES);
                latencies.samples = samples.map(|numbers| LatencySample::of(*numbers)).collect();
            }
        }
        probes.sort_unstable_by_key(|(order, probe)| (*order, probe.node));
        state.pool = probes.into_iter().map(|(_, probe)| probe).take(POOL_MAX).collect();
    }

    fn on_failure(
        &self,
        now: Time,
        _request: &Request,
        node: NodeId,
        waited: Duration,
        nodes: ClusterView<'_>,
    ) {
        let expected = self.latency_us(now, node, nodes.load(node), nodes);
        if waited.as_micros() > expected.into() {
            self.learn(now, node, waited, nodes);
        }
    }

    fn on_reply(
        &self,
        now: Time,
        _request: &Request,
        node: NodeId,
        served: &ReplyFeedback,
        nodes: ClusterView<'_>,
    ) {
        self.learn(now, node, served.first_byte.unwrap_or(served.elapsed), nodes);
    }
}

impl LatencySample {
    fn numbers(self) -> [u64; 2] {
        [u64::from(self.load) << 32 | u64::from(self.us), self.at.as_nanos()]
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    const fn of([word, at]: [u64; 2]) -> Self {
        Self { load: (word >> 32) as u32, us: word as u32, at: Time::from_nanos(at) }
    }
}

#[cfg(test)]
mod tests;
