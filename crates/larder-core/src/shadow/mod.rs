//! Shadow mode: the results that other policies would have for the requests that a live switch serves.
//!
//! Each policy has its own simulated cluster ([`cluster`]) of the same nodes. The live dispatcher's code decides,
//! and the live nodes' cache code determines the contents of memory. The live policy is one of them: the difference
//! between its shadow and the nodes' reports shows how accurate the other shadows are.
//!
//! *State is bounded* by sampling ([`sampler`]): one target in `q` is used, and memories are smaller by `q` (Waldspurger
//! et al., SHARDS, FAST 2015). `q` doubles whenever some cluster has more than [`ShadowSettings::objects_max`] objects,
//! so the state has the same size for any log length and any memory. A cluster cannot leave popular targets to chance, as
//! that paper does. A target with many requests would weigh `q` times too much or be absent. Hot targets, and objects
//! that are large compared with a memory of a `q`-th, are therefore sampled by request. This means a `q`-th of their
//! requests, each with a `q`-th of the size. `larder plan`, which knows all requests beforehand, does the same.
//!
//! Requests are observed when they end, but were decided when they arrived. They are therefore delayed by
//! [`HOLD_TIME`] and processed in order of arrival ([`reorder`]). There is no admission queue.

mod cluster;
mod observed;
mod reorder;
mod sampler;
mod settings;
mod tally;

pub use observed::{HOLD_TIME, LiveNode, ObservedRequest};
pub use sampler::Sampler;
pub use settings::ShadowSettings;
pub use tally::Figures;

use crate::dispatch::{Admission, CacheResult, RouteSpec, Settings, SettingsError};
use crate::id::{NodeId, TargetId};
use crate::nodes::NodeState;
use crate::policy::PolicyKind;
use crate::policy::thresholds::ThresholdSettings;
use crate::time::Time;
use crate::top_targets::TopTargets;
use crate::unit::Bytes;
use alloc::sync::Arc;
use alloc::vec::Vec;
use cluster::{SampledEntry, ShadowCluster};
use core::time::Duration;
use reorder::ReorderBuffer;
use sampler::{is_drawn_by_target, is_drawn_randomly};
use tally::{PARTS, Tallies};

/// The number of randomly sampled requests in two windows from which a target is hot.
const HOT: u64 = 32;
/// The number of such requests in the current and the previous window below which a hot target is no longer hot.
const COOL: u64 = 8;
/// The number of randomly sampled requests in a window, times `q`. A target with a share of 1 / (32 q) is found in
/// one window.
const WINDOW: u64 = 1_024;
/// The largest number of targets whose randomly sampled requests are counted.
const COUNTED_MAX: usize = 4_096;
/// An object is large if it takes more than one part in this number of a node's memory.
const LARGE: u64 = 8;
/// The number of sampled requests between two checks of the bound.
const CHECK_EVERY: u64 = 256;
/// The duration of one part of the recent window, which has 30 parts.
const PART: Duration = Duration::from_secs(10);
/// The weight of one more request in the average durations of hits and misses.
const PACE: f64 = 1.0 / 64.0;

/// The results of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyReport {
    /// The policy.
    pub policy: PolicyKind,
    /// The results since the start, when memories were empty.
    pub all: Figures,
    /// The results of the last five minutes.
    pub lately: Figures,
    /// The share of the memories in use; `None` if no node's memory is known.
    pub memory_used: Option<f64>,
}

/// The results of all policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// `q`: one target in this number is sampled.
    pub one_in: u32,
    /// The number of sampled requests.
    pub sampled: u64,
    /// The approximate size of the shadow's state in bytes.
    pub state_bytes: u64,
    /// The number of targets that are sampled by request.
    pub hot: usize,
    /// The results of the live nodes, by the same samples: since the start, and in the last five minutes.
    pub live: (Figures, Figures),
    /// The results of each policy, in the order of the settings.
    pub policies: Vec<PolicyReport>,
}

/// The shadow clusters of all policies.
#[derive(Debug)]
pub struct Shadow {
    settings: ShadowSettings,
    sampler: Arc<Sampler>,
    clusters: Vec<ShadowCluster>,
    /// The live results of the randomly sampled requests.
    live: Tallies,
    random_counts: TopTargets<()>,
    /// The hot targets in the order of their ids.
    hot: Vec<TargetId>,
    nodes: Vec<LiveNode>,
    /// The smallest known memory of a node.
    least_memory: u64,
    reorder: ReorderBuffer,
    now: Time,
    part_ends: Time,
    sampled: u64,
    hit_s: Option<f64>,
    miss_s: Option<f64>,
}

impl Shadow {
    /// Returns whether a policy can run in a shadow. A policy that uses the nodes' reports cannot, because no node
    /// reports a load that it does not have.
    pub const fn can_run(policy: PolicyKind) -> bool {
        !matches!(policy, PolicyKind::WrrNum | PolicyKind::WrrTime | PolicyKind::LardUtil | PolicyKind::Hacc)
    }

    /// Creates clusters without nodes. `live` and `routes` are the live dispatcher's settings. Routes beside the
    /// default one keep their policies, since their requests take memory too.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        settings: ShadowSettings,
        sampler: Arc<Sampler>,
        live: &Settings,
        routes: &[RouteSpec],
    ) -> Result<Self, SettingsError> {
        let limited = |route: &Settings| Settings {
            targets_max: route.targets_max.min(settings.objects_max),
            shards: 1,
            admission: Admission::Unlimited,
            thresholds: ThresholdSettings::default(),
            // A node that joins a shadow has been in the live cluster.
            join_warm_targets: 0,
            ..route.clone()
        };
        let routes: Vec<RouteSpec> = routes
            .iter()
            .map(|route| RouteSpec { settings: limited(&route.settings), group: route.group })
            .collect();
        let mut policies = settings.policies.clone();
        if !policies.contains(&live.policy) && Self::can_run(live.policy) {
            policies.insert(0, live.policy);
        }
        let cluster = |policy: &PolicyKind| ShadowCluster::new(*policy, limited(live), routes.clone());
        Ok(Self {
            clusters: policies.iter().map(cluster).collect::<Result<_, _>>()?,
            settings,
            sampler,
            live: Tallies::default(),
            random_counts: TopTargets::new(COUNTED_MAX),
            hot: Vec::new(),
            nodes: Vec::new(),
            least_memory: u64::MAX,
            reorder: ReorderBuffer::default(),
            now: Time::ZERO,
            part_ends: Time::ZERO + PART,
            sampled: 0,
            hit_s: None,
            miss_s: None,
        })
    }

    /// Updates the nodes from the live cluster: their members, states, weights and memories.
    pub fn update_nodes(&mut self, now: Time, nodes: Vec<LiveNode>) {
        self.advance_time(now);
        if self.nodes == nodes {
            return;
        }
        let level = self.sampler.level();
        for cluster in &mut self.clusters {
            cluster.update_nodes(self.now, &nodes, &self.settings, level);
        }
        let unknown = |node: &&LiveNode| node.memory == Bytes::ZERO;
        let told =
            |node: &LiveNode| nodes.iter().any(|now| now.name == node.name && now.memory > Bytes::ZERO);
        if self.nodes.iter().filter(unknown).any(told) {
            // The earlier counts are of a node without memory.
            self.live = Tallies::default();
            self.clusters.iter_mut().for_each(ShadowCluster::reset_counts);
        }
        let memories = nodes.iter().map(|node| node.memory.get()).filter(|memory| *memory > 0);
        self.least_memory = memories.min().unwrap_or(u64::MAX);
        self.nodes = nodes;
    }

    /// Observes a request that has ended live. Requests that the sampler does not draw are ignored.
    pub fn observe(&mut self, observed: &ObservedRequest) {
        let (target, level) = (observed.request.target, self.sampler.level());
        if is_drawn_by_target(target, level) || is_drawn_randomly(target, observed.at, level) {
            self.reorder.push(*observed);
        }
        self.advance_time(observed.at);
    }

    /// Advances the time to `now`. All requests that have ended before must have been observed.
    pub fn advance_time(&mut self, now: Time) {
        while let Some((came, observed)) = self.reorder.pop(now) {
            self.process(came, &observed);
        }
        self.advance(Time::from_nanos(now.as_nanos().saturating_sub(HOLD_TIME.as_nanos() as u64)));
    }

    /// Processes a request in order of arrival.
    fn process(&mut self, came: Time, observed: &ObservedRequest) {
        let (target, level) = (observed.request.target, self.sampler.level());
        // The observed may have been sampled at a higher rate.
        let (drawn, random) =
            (is_drawn_by_target(target, level), is_drawn_randomly(target, observed.at, level));
        if !(drawn || random) {
            return;
        }
        self.advance(came);
        self.sampled += 1;
        if random {
            self.count_live(observed, 1 << level);
            self.update_hot(target, level);
        }
        let thinned = level > 0 && (self.is_hot(target) || self.is_large(observed, level));
        if if thinned { random } else { drawn } {
            let size =
                observed.bytes.filter(|_| observed.keeps).map(|bytes| bytes.max(self.settings.charge_min));
            let entry = SampledEntry {
                weight: 1 << level,
                thinned,
                charge: size.map(|size| if thinned { Bytes((size.get() >> level).max(1)) } else { size }),
                miss_hit_ratio: self.miss_hit_ratio(),
            };
            self.clusters.iter_mut().for_each(|cluster| cluster.start(self.now, observed, entry));
            if self.sampled.is_multiple_of(CHECK_EVERY) {
                self.bound();
            }
        }
    }

    /// Advances the time of the clusters.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        for _ in 0..PARTS {
            if self.part_ends > self.now {
                return;
            }
            self.part_ends += PART;
            self.live.rotate();
            self.clusters.iter_mut().for_each(ShadowCluster::rotate);
        }
        self.part_ends = self.now + PART;
    }

    /// Returns the results.
    pub fn report(&self) -> Report {
        let up = self.nodes.iter().filter(|node| node.state == NodeState::Up);
        let members: Vec<NodeId> = up.map(|node| node.id).collect();
        let policies = self.clusters.iter().map(|cluster| {
            let (all, lately) = cluster.figures(&self.live);
            PolicyReport { policy: cluster.policy, all, lately, memory_used: cluster.memory_used() }
        });
        Report {
            one_in: self.sampler.one_in(),
            sampled: self.sampled,
            state_bytes: self.reorder.state_bytes()
                + self.clusters.iter().map(ShadowCluster::state_bytes).sum::<u64>(),
            hot: self.hot.len(),
            live: self.live.reported(&members),
            policies: policies.collect(),
        }
    }

    fn count_live(&mut self, observed: &ObservedRequest, weight: u64) {
        let missed = if observed.found == Some(CacheResult::Miss) { weight } else { 0 };
        let bytes = missed.saturating_mul(observed.bytes.map_or(0, Bytes::get));
        self.live.count(|tally| {
            tally.asked += if observed.is_informative() { weight } else { 0 };
            tally.reported += if observed.found.is_some() { weight } else { 0 };
            tally.missed += missed;
            tally.missed_bytes = tally.missed_bytes.saturating_add(bytes);
            tally.served(observed.node, weight, observed.elapsed);
        });
        let mean = match observed.found {
            Some(CacheResult::Hit) => &mut self.hit_s,
            Some(CacheResult::Miss) => &mut self.miss_s,
            None => return,
        };
        let took = observed.elapsed.as_secs_f64();
        *mean = Some(mean.map_or(took, |mean| mean + (took - mean) * PACE));
    }

    fn miss_hit_ratio(&self) -> f64 {
        match (self.hit_s, self.miss_s) {
            (Some(hit), Some(miss)) if hit > 0.0 && miss > 0.0 => (miss / hit).clamp(0.001, 1_000.0),
            _ => 1.0,
        }
    }

    fn is_hot(&self, target: TargetId) -> bool {
        self.hot.binary_search(&target).is_ok()
    }

    fn is_large(&self, observed: &ObservedRequest, level: u32) -> bool {
        observed.bytes.is_some_and(|bytes| bytes.get().saturating_mul(LARGE) > self.least_memory >> level)
    }

    /// Counts a randomly sampled request. A target that becomes hot, or is no longer hot, starts without state.
    fn update_hot(&mut self, target: TargetId, level: u32) {
        self.random_counts.count(target, || ());
        if level > 0
            && self.hot.len() < COUNTED_MAX
            && self.random_counts.requests_of(target) >= HOT
            && let Err(place) = self.hot.binary_search(&target)
        {
            self.hot.insert(place, target);
            self.clusters.iter_mut().for_each(|cluster| cluster.remove_target(target));
        }
        if self.random_counts.window_requests() >= WINDOW << level {
            self.random_counts.rotate();
            let (random_counts, clusters) = (&self.random_counts, &mut self.clusters);
            self.hot.retain(|target| {
                let stays = random_counts.requests_of(*target) >= COOL;
                if !stays {
                    clusters.iter_mut().for_each(|cluster| cluster.remove_target(*target));
                }
                stays
            });
        }
    }

    /// Reduces the sampling rate until the clusters are within their bound.
    fn bound(&mut self) {
        let most =
            |clusters: &[ShadowCluster]| clusters.iter().map(ShadowCluster::objects).max().unwrap_or(0);
        while most(&self.clusters) > self.settings.objects_max && self.sampler.halve() {
            let (level, hot) = (self.sampler.level(), &self.hot);
            let stays = |target| is_drawn_by_target(target, level) && hot.binary_search(&target).is_err();
            self.clusters.iter_mut().for_each(|cluster| cluster.halve_sampling(level, stays));
        }
    }
}

#[cfg(test)]
mod tests;
