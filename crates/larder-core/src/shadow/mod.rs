//! Shadow mode: what other policies would have made of the requests that a live switch serves.
//!
//! Each policy has a cluster of its own ([`cluster`]) of the same nodes: the live dispatcher's code decides, the live
//! nodes' cache code says what is in memory. The policy that runs live is one of them: how far its shadow is from what the
//! nodes say is how far the others are to be trusted.
//!
//! *State is bounded* by sampling ([`sampler`]): of all targets one in `q` is looked at, and memories are smaller by `q`
//! (Waldspurger et al., SHARDS, FAST 2015). `q` doubles whenever some cluster holds more than
//! [`ShadowSettings::objects_max`] objects, so any log length and any memory take the same room. What that paper leaves
//! to chance a cluster cannot: a target with many requests would weigh `q` times too much or be absent. Those that are
//! hot, and objects that are large beside a memory of a `q`-th, are drawn by lot instead: a `q`-th of their requests, each
//! taking a `q`-th of the size. So does `larder plan`, which knows all requests beforehand.
//!
//! Requests are told when they end and were decided on when they came, so they are held back for [`HELD`] and then taken in
//! the order in which they came ([`coming`]). A queue for admission there is not.

mod cluster;
mod coming;
mod sampler;
mod seen;
mod settings;
mod tally;

pub use sampler::Sampler;
pub use seen::{HELD, LiveNode, Seen};
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
use cluster::{Cluster, Entry};
use coming::Coming;
use core::time::Duration;
use sampler::{by_lot, by_target};
use std::sync::Arc;
use tally::{PARTS, Tallies};

/// A target with so many requests drawn by lot in two windows is hot.
const HOT: u64 = 32;
/// A hot target with fewer than that in the present window and the one before is hot no more.
const COOL: u64 = 8;
/// Requests drawn by lot in a window, times `q`: a target that has a share of 1 / (32 q) of them is found in one.
const WINDOW: u64 = 1_024;
/// Targets whose requests by lot are counted.
const COUNTED_MAX: usize = 4_096;
/// An object is large that takes more than this part of a node's memory.
const LARGE: u64 = 8;
/// Requests looked at from one look at the bound to the next.
const LOOK_EVERY: u64 = 256;
/// Time from one part of "lately" to the next; lately is 30 of them.
const PART: Duration = Duration::from_secs(10);
/// What one more request counts in the mean times of hits and misses.
const PACE: f64 = 1.0 / 64.0;

/// What a policy would have made of the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyReport {
    /// The policy.
    pub policy: PolicyKind,
    /// Since the start, when memories were empty.
    pub all: Figures,
    /// In the last five minutes.
    pub lately: Figures,
    /// Share of the memories in use; `None` if no node's memory is known.
    pub memory_used: Option<f64>,
}

/// What all policies would have made of the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// `q`: of so many targets one is looked at.
    pub one_in: u32,
    /// Requests looked at.
    pub looked_at: u64,
    /// Memory that the shadow takes, about.
    pub state_bytes: u64,
    /// Targets that are drawn by lot.
    pub hot: usize,
    /// What the live nodes made of them, by the same samples: since the start, and in the last five minutes.
    pub live: (Figures, Figures),
    /// In the order of the settings.
    pub policies: Vec<PolicyReport>,
}

/// All clusters.
#[derive(Debug)]
pub struct Shadow {
    settings: ShadowSettings,
    sampler: Arc<Sampler>,
    clusters: Vec<Cluster>,
    /// Live, by lot.
    live: Tallies,
    lots: TopTargets<()>,
    /// In order of their ids.
    hot: Vec<TargetId>,
    nodes: Vec<LiveNode>,
    /// Of those that are known.
    least_memory: u64,
    coming: Coming,
    now: Time,
    part_ends: Time,
    looked_at: u64,
    hit_s: Option<f64>,
    miss_s: Option<f64>,
}

impl Shadow {
    /// Whether a policy can be run in a shadow. Those that go by what nodes report of themselves cannot: no node reports
    /// of a load that it does not have.
    pub const fn can_run(policy: PolicyKind) -> bool {
        !matches!(policy, PolicyKind::WrrNum | PolicyKind::WrrTime | PolicyKind::LardUtil | PolicyKind::Hacc)
    }

    /// Clusters that know no nodes yet. `live` and `routes` are what the live dispatcher goes by; routes beside the default
    /// one keep their policies, since their requests take memory too.
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
            // Whoever joins a shadow has been there.
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
        let cluster = |policy: &PolicyKind| Cluster::new(*policy, limited(live), routes.clone());
        Ok(Self {
            clusters: policies.iter().map(cluster).collect::<Result<_, _>>()?,
            settings,
            sampler,
            live: Tallies::default(),
            lots: TopTargets::new(COUNTED_MAX),
            hot: Vec::new(),
            nodes: Vec::new(),
            least_memory: u64::MAX,
            coming: Coming::default(),
            now: Time::ZERO,
            part_ends: Time::ZERO + PART,
            looked_at: 0,
            hit_s: None,
            miss_s: None,
        })
    }

    /// Follows the nodes of the live cluster: those that join, leave, fail, drain, weigh otherwise.
    pub fn follow(&mut self, now: Time, nodes: Vec<LiveNode>) {
        self.pass(now);
        if self.nodes == nodes {
            return;
        }
        let level = self.sampler.level();
        for cluster in &mut self.clusters {
            cluster.follow(self.now, &nodes, &self.settings, level);
        }
        let unknown = |node: &&LiveNode| node.memory == Bytes::ZERO;
        let told =
            |node: &LiveNode| nodes.iter().any(|now| now.name == node.name && now.memory > Bytes::ZERO);
        if self.nodes.iter().filter(unknown).any(told) {
            // What was counted before was counted of a node that keeps nothing.
            self.live = Tallies::default();
            self.clusters.iter_mut().for_each(Cluster::count_anew);
        }
        let memories = nodes.iter().map(|node| node.memory.get()).filter(|memory| *memory > 0);
        self.least_memory = memories.min().unwrap_or(u64::MAX);
        self.nodes = nodes;
    }

    /// A request has ended live. Those that the sampler does not draw are passed over.
    pub fn see(&mut self, seen: &Seen) {
        let (target, level) = (seen.request.target, self.sampler.level());
        if by_target(target, level) || by_lot(target, seen.at, level) {
            self.coming.push(*seen);
        }
        self.pass(seen.at);
    }

    /// Time has passed, and nothing has ended that was not shown.
    pub fn pass(&mut self, now: Time) {
        while let Some((came, seen)) = self.coming.pop(now) {
            self.take(came, &seen);
        }
        self.advance(Time::from_nanos(now.as_nanos().saturating_sub(HELD.as_nanos() as u64)));
    }

    /// A request's turn.
    fn take(&mut self, came: Time, seen: &Seen) {
        let (target, level) = (seen.request.target, self.sampler.level());
        // It may have been drawn when more were.
        let (drawn, lot) = (by_target(target, level), by_lot(target, seen.at, level));
        if !(drawn || lot) {
            return;
        }
        self.advance(came);
        self.looked_at += 1;
        if lot {
            self.count_live(seen, 1 << level);
            self.watch_heat(target, level);
        }
        let thinned = level > 0 && (self.is_hot(target) || self.is_large(seen, level));
        if if thinned { lot } else { drawn } {
            let size = seen.bytes.filter(|_| seen.keeps).map(|bytes| bytes.max(self.settings.charge_min));
            let entry = Entry {
                weight: 1 << level,
                thinned,
                charge: size.map(|size| if thinned { Bytes((size.get() >> level).max(1)) } else { size }),
                miss_by_hit: self.miss_by_hit(),
            };
            self.clusters.iter_mut().for_each(|cluster| cluster.enter(self.now, seen, entry));
            if self.looked_at.is_multiple_of(LOOK_EVERY) {
                self.bound();
            }
        }
    }

    /// Time has passed for the clusters.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        for _ in 0..PARTS {
            if self.part_ends > self.now {
                return;
            }
            self.part_ends += PART;
            self.live.turn();
            self.clusters.iter_mut().for_each(Cluster::turn);
        }
        self.part_ends = self.now + PART;
    }

    /// What has come of it.
    pub fn report(&self) -> Report {
        let up = self.nodes.iter().filter(|node| node.state == NodeState::Up);
        let members: Vec<NodeId> = up.map(|node| node.id).collect();
        let policies = self.clusters.iter().map(|cluster| {
            let (all, lately) = cluster.figures(&self.live);
            PolicyReport { policy: cluster.policy, all, lately, memory_used: cluster.memory_used() }
        });
        Report {
            one_in: self.sampler.one_in(),
            looked_at: self.looked_at,
            state_bytes: self.coming.state_bytes()
                + self.clusters.iter().map(Cluster::state_bytes).sum::<u64>(),
            hot: self.hot.len(),
            live: self.live.told(&members),
            policies: policies.collect(),
        }
    }

    fn count_live(&mut self, seen: &Seen, weight: u64) {
        let missed = if seen.found == Some(CacheResult::Miss) { weight } else { 0 };
        let bytes = missed.saturating_mul(seen.bytes.map_or(0, Bytes::get));
        self.live.count(|tally| {
            tally.asked += if seen.tells() { weight } else { 0 };
            tally.told += if seen.found.is_some() { weight } else { 0 };
            tally.missed += missed;
            tally.missed_bytes = tally.missed_bytes.saturating_add(bytes);
            tally.served(seen.node, weight, seen.elapsed);
        });
        let mean = match seen.found {
            Some(CacheResult::Hit) => &mut self.hit_s,
            Some(CacheResult::Miss) => &mut self.miss_s,
            None => return,
        };
        let took = seen.elapsed.as_secs_f64();
        *mean = Some(mean.map_or(took, |mean| mean + (took - mean) * PACE));
    }

    fn miss_by_hit(&self) -> f64 {
        match (self.hit_s, self.miss_s) {
            (Some(hit), Some(miss)) if hit > 0.0 && miss > 0.0 => (miss / hit).clamp(0.001, 1_000.0),
            _ => 1.0,
        }
    }

    fn is_hot(&self, target: TargetId) -> bool {
        self.hot.binary_search(&target).is_ok()
    }

    fn is_large(&self, seen: &Seen, level: u32) -> bool {
        seen.bytes.is_some_and(|bytes| bytes.get().saturating_mul(LARGE) > self.least_memory >> level)
    }

    /// Notes a request drawn by lot. A target that becomes hot, or is no more, begins anew.
    fn watch_heat(&mut self, target: TargetId, level: u32) {
        self.lots.note(target, || ());
        if level > 0
            && self.hot.len() < COUNTED_MAX
            && self.lots.requests_of(target) >= HOT
            && let Err(place) = self.hot.binary_search(&target)
        {
            self.hot.insert(place, target);
            self.clusters.iter_mut().for_each(|cluster| cluster.forget(target));
        }
        if self.lots.window_requests() >= WINDOW << level {
            self.lots.turn();
            let (lots, clusters) = (&self.lots, &mut self.clusters);
            self.hot.retain(|target| {
                let stays = lots.requests_of(*target) >= COOL;
                if !stays {
                    clusters.iter_mut().for_each(|cluster| cluster.forget(*target));
                }
                stays
            });
        }
    }

    /// Holds the clusters to their bound.
    fn bound(&mut self) {
        let most = |clusters: &[Cluster]| clusters.iter().map(Cluster::objects).max().unwrap_or(0);
        while most(&self.clusters) > self.settings.objects_max && self.sampler.halve() {
            let (level, hot) = (self.sampler.level(), &self.hot);
            let stays = |target| by_target(target, level) && hot.binary_search(&target).is_err();
            self.clusters.iter_mut().for_each(|cluster| cluster.thin(level, stays));
        }
    }
}

#[cfg(test)]
mod tests;
