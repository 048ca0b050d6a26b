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

pub(crate) mod pool;

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::membership_cache::MembershipCache;
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
use pool::{Probe, ProbePool, RIF_QUANTILE_PERMILLE};

/// The description of `prequal`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request(
    "prequal",
    "the quickest node of a pool of probes that has not too many requests in flight",
);

/// The age at which a probe is removed, and a latency no longer counts.
const AGE_MAX: Duration = Duration::from_secs(1);
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
        Self { rif_quantile_permille: RIF_QUANTILE_PERMILLE }
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
    members: MembershipCache<Vec<NodeId>>,
    state: Mutex<PoolState>,
    latencies: Box<[Mutex<NodeLatencies>]>,
}

#[derive(Debug)]
struct PoolState {
    /// RIF is requests in flight by weight, as [`Key::get`] gives them; latencies are in us.
    pool: ProbePool<ProbeAge>,
    visits: VisitCounter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProbeAge {
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
        let pool = ProbePool::new(mix(common.seed), settings.rif_quantile_permille);
        Self {
            members: MembershipCache::default(),
            state: Mutex::new(PoolState { pool, visits: VisitCounter::default() }),
            latencies: (0..common.nodes_max).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns the choice, and the place of its probe in the pool if there is one.
    fn choose(
        &self,
        pool: &ProbePool<ProbeAge>,
        now: Time,
        request: &Request,
        nodes: ClusterView<'_>,
    ) -> Option<(Choice, Option<usize>)> {
        let is_valid = |probe: &Probe<ProbeAge>| {
            nodes.is_open(probe.node)
                && is_current(probe, now)
                && !nodes.lost_since(probe.node, probe.age.epoch)
        };
        if let Some((at, node)) = pool.best(is_valid, |node| !request.exclude.contains(node)) {
            return Some((Choice { node, reason: request.reason_or(Reason::Quickest) }, Some(at)));
        }
        let members = self.members(nodes);
        let start = pool.draw_one(members.len());
        let usable = |node: &&NodeId| nodes.is_open(**node) && !request.exclude.contains(**node);
        let node = members[start..].iter().chain(&members[..start]).find(usable)?;
        Some((Choice { node: *node, reason: request.reason_or(Reason::Random) }, None))
    }

    fn members(&self, nodes: ClusterView<'_>) -> impl core::ops::Deref<Target = Vec<NodeId>> {
        self.members.get_or_build(nodes, |members| members.into_iter().map(|member| member.node).collect())
    }

    /// Sends the probes of a decision: reads the values of different nodes at random into the pool.
    fn probe(&self, pool: &mut ProbePool<ProbeAge>, now: Time, nodes: ClusterView<'_>) {
        let members = self.members(nodes);
        let uses = pool.uses(members.len());
        for at in pool.draw(members.len()) {
            let node = members[at];
            if nodes.is_open(node) {
                let load = nodes.load(node);
                let probe = Probe {
                    node,
                    rif: nodes.key(node).get(),
                    latency: nodes.learned(|| self.latency_us(now, node, load, nodes)),
                    uses,
                    age: ProbeAge { at: now, epoch: nodes.epoch() },
                };
                pool.add(probe, members.len());
            }
        }
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

/// Returns whether a probe is young enough.
fn is_current(probe: &Probe<ProbeAge>, now: Time) -> bool {
    now.since(probe.age.at) <= AGE_MAX
}

/// The number of numbers of a saved probe.
const PROBE_NUMBERS: usize = 5;

/// Returns the numbers of a probe to save.
fn probe_numbers(probe: &Probe<ProbeAge>, order: usize) -> [u64; PROBE_NUMBERS] {
    [order as u64 + 1, probe.rif, probe.latency, probe.uses.into(), probe.age.at.as_nanos()]
}

impl Policy for Prequal {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let pool = &mut state.pool;
        let (choice, used) = self.choose(pool, now, request, nodes)?;
        nodes.start(choice.node);
        if let Some(at) = used {
            let weight = u64::from(nodes.weight(choice.node).milli().max(1));
            pool.use_probe(at, Key::of(1).get() * 1_000 / weight);
        }
        pool.remove_surplus(|probe| is_current(probe, now));
        self.probe(pool, now, nodes);
        pool.end_decision();
        Some(choice)
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(&self.state.lock().pool, now, request, nodes).map(|(choice, _)| choice)
    }

    /// Returns the number of decisions and the RIFs; for each node its probe, or zeros, and its latencies.
    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let state = self.state.lock();
        let pool = &state.pool;
        let mut saved = LearnedState {
            numbers: core::iter::once(pool.decisions).chain(pool.rifs.iter().copied()).collect(),
            ..LearnedState::default()
        };
        for index in 0..nodes.slots().min(self.latencies.len()) {
            let Ok(node) = u16::try_from(index).map(NodeId) else { break };
            let probe = pool
                .probes
                .iter()
                .enumerate()
                .find(|(_, probe)| probe.node == node && !nodes.lost_since(node, probe.age.epoch));
            let probe = probe.map_or([0; PROBE_NUMBERS], |(order, probe)| probe_numbers(probe, order));
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
        let mut probes = Vec::new();
        for (node, of) in saved.per_node.iter().filter(|(node, _)| node.index() < nodes.slots()) {
            let Some((&[order, rif, latency, uses, at], samples)) = of.split_first_chunk::<PROBE_NUMBERS>()
            else {
                continue;
            };
            if order > 0 {
                let uses = u32::try_from(uses).unwrap_or(u32::MAX);
                let age = ProbeAge { at: Time::from_nanos(at), epoch: nodes.epoch() };
                probes.push((order, Probe { node: *node, rif, latency, uses, age }));
            }
            if let Some(latencies) = self.latencies.get(node.index()) {
                let mut latencies = latencies.lock();
                latencies.epoch = nodes.epoch();
                let samples = samples.as_chunks::<2>().0.iter().take(SAMPLES);
                latencies.samples = samples.map(|numbers| LatencySample::of(*numbers)).collect();
            }
        }
        probes.sort_unstable_by_key(|(order, probe)| (*order, probe.node));
        state.pool.restore(*decisions, rifs, probes.into_iter().map(|(_, probe)| probe));
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
