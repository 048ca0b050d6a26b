//! A simulated cluster: one policy's dispatcher, and a cache model for each node.
//!
//! It runs the code of the live switch and of the live nodes' caches, without its own time. A request lasts as long as it
//! lasted live, unless exactly one of the live node and the simulated node has the target in memory. Then the duration is
//! scaled by the mean ratio of misses to hits. A node that a policy would overload does not become slower.
//!
//! If one request in `q` is sampled, each lasts `q` times as long. As many requests are then in flight as live, and
//! the policies' thresholds keep their meaning.

use super::observed::{LiveNode, ObservedRequest};
use super::settings::ShadowSettings;
use super::tally::{Figures, Tallies};
use crate::cache::{ByteCache, InsertOutcome};
use crate::dispatch::{
    Arrival, CacheEvent, CacheResult, DequeuedRequest, Dispatcher, ReplyFeedback, Request, RouteSpec,
    Settings, SettingsError,
};
use crate::id::{NodeId, TargetId};
use crate::nodes::{NodeSpec, NodeState, Weight};
use crate::policy::PolicyKind;
use crate::time::Time;
use crate::unit::Bytes;
use alloc::collections::BinaryHeap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::BuildHasherDefault;
use core::time::Duration;
use hashbrown::HashSet;

/// The largest number of requests in flight; above it, the one that would end first ends at once.
const RUNNING_MAX: usize = 1 << 16;

/// The properties of a sampled request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledEntry {
    /// The weight of the request, and the factor by which it lasts longer: `q`.
    pub(super) weight: u32,
    /// Whether the request was sampled at random, so that its target takes a `q`-th of its size in a memory of which
    /// a `q`-th is left.
    pub(super) thinned: bool,
    /// The size of the object in a memory; `None` if it is not kept.
    pub(super) charge: Option<Bytes>,
    /// The ratio of the duration of a miss to that of a hit.
    pub(super) miss_hit_ratio: f64,
}

/// The simulated cluster of one policy.
#[derive(Debug)]
pub(super) struct ShadowCluster {
    pub(super) policy: PolicyKind,
    dispatcher: Dispatcher,
    mirrors: bool,
    /// The nodes by the slots of the dispatcher.
    members: Vec<Option<ShadowNode>>,
    running: BinaryHeap<Reverse<RunningRequest>>,
    sequence: u64,
    tallies: Tallies,
    /// The randomly sampled targets that some node has had. A first read of a node counts once, not `q` times.
    introduced: HashSet<(TargetId, NodeId), BuildHasherDefault<xxhash_rust::xxh3::Xxh3Default>>,
    evicted: Vec<(TargetId, Bytes)>,
    ended: Vec<DequeuedRequest>,
}

/// A node.
#[derive(Debug)]
struct ShadowNode {
    name: Arc<str>,
    state: NodeState,
    weight: Weight,
    backup: bool,
    memory: Bytes,
    cache: ByteCache<TargetId>,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct RunningRequest {
    until: Time,
    sequence: u64,
    node: NodeId,
    request: Request,
    served: ReplyFeedback,
}

impl PartialEq for RunningRequest {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for RunningRequest {}

impl PartialOrd for RunningRequest {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RunningRequest {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.until, self.sequence).cmp(&(other.until, other.sequence))
    }
}

impl ShadowCluster {
    /// Creates a cluster without nodes.
    ///
    /// # Errors
    /// A setting is out of range.
    pub(super) fn new(
        policy: PolicyKind,
        settings: Settings,
        routes: Vec<RouteSpec>,
    ) -> Result<Self, SettingsError> {
        let dispatcher = Dispatcher::with_routes(Settings { policy, ..settings }, routes, &[])?;
        Ok(Self {
            policy,
            mirrors: dispatcher.mirrors_caches(),
            dispatcher,
            members: Vec::new(),
            running: BinaryHeap::new(),
            sequence: 0,
            tallies: Tallies::default(),
            introduced: Default::default(),
            evicted: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Processes a sampled request.
    pub(super) fn start(&mut self, now: Time, observed: &ObservedRequest, entry: SampledEntry) {
        self.end_until(now);
        let request =
            Request { exclude: Default::default(), affinity: Default::default(), ..observed.request };
        let Arrival::Start(decision) = self.dispatcher.arrive(now, request) else { return };
        let node = decision.node;
        let found = self.look_up(now, request.target, node, entry.charge);
        let elapsed = adapt(observed, found, entry.miss_hit_ratio);
        self.count(observed, node, found, elapsed, entry);
        self.sequence += 1;
        self.running.push(Reverse(RunningRequest {
            until: now + elapsed.saturating_mul(entry.weight),
            sequence: self.sequence,
            node,
            request,
            served: ReplyFeedback { elapsed, first_byte: observed.first_byte, found: Some(found) },
        }));
        if self.running.len() > RUNNING_MAX {
            self.end_next(now);
        }
    }

    /// Looks up a target in the node's memory, and stores it if the node keeps it.
    fn look_up(&mut self, now: Time, target: TargetId, node: NodeId, charge: Option<Bytes>) -> CacheResult {
        let Some(Some(member)) = self.members.get_mut(node.index()) else { return CacheResult::Miss };
        if member.cache.touch(&target) {
            return CacheResult::Hit;
        }
        let Some(charge) = charge else { return CacheResult::Miss };
        self.evicted.clear();
        let stored = member.cache.insert(target, charge, &mut self.evicted);
        if self.mirrors {
            for (target, _) in &self.evicted {
                self.dispatcher.cache_event(now, node, *target, CacheEvent::Evicted);
            }
            if stored != InsertOutcome::TooLarge {
                self.dispatcher.cache_event(now, node, target, CacheEvent::Stored);
            }
        }
        CacheResult::Miss
    }

    fn count(
        &mut self,
        observed: &ObservedRequest,
        node: NodeId,
        found: CacheResult,
        elapsed: Duration,
        entry: SampledEntry,
    ) {
        let weight = u64::from(entry.weight);
        let first = entry.thinned
            && found == CacheResult::Miss
            && self.introduced.insert((observed.request.target, node));
        let missed = match found {
            CacheResult::Miss if observed.is_informative() && first => 1,
            CacheResult::Miss if observed.is_informative() => weight,
            _ => 0,
        };
        let bytes = missed * observed.bytes.map_or(0, Bytes::get);
        self.tallies.count(|tally| {
            tally.missed += missed;
            tally.missed_bytes = tally.missed_bytes.saturating_add(bytes);
            tally.served(node, weight, elapsed);
        });
    }

    /// Ends the requests whose time is over.
    pub(super) fn end_until(&mut self, now: Time) {
        while self.running.peek().is_some_and(|next| next.0.until <= now) {
            self.end_next(now);
        }
    }

    fn end_next(&mut self, now: Time) {
        let Some(Reverse(ends)) = self.running.pop() else { return };
        self.dispatcher.observe_reply(now, &ends.request, ends.node, &ends.served);
        self.dispatcher.finish_on(now, ends.request.route, ends.node, &mut self.ended);
        // No request waits, because there is no limit.
        self.ended.clear();
    }

    /// Updates the nodes from the live cluster. One target in 2^`level` is sampled.
    pub(super) fn update_nodes(
        &mut self,
        now: Time,
        live: &[LiveNode],
        settings: &ShadowSettings,
        level: u32,
    ) {
        for node in live {
            let known =
                self.members.iter().position(|member| member.as_ref().is_some_and(|m| m.name == node.name));
            match known {
                None if node.state == NodeState::Removed => {}
                None => self.join(now, node, settings, level),
                Some(at) => self.adjust(now, at, node, level),
            }
        }
        let gone = |member: &ShadowNode| {
            !live.iter().any(|node| node.name == member.name && node.state != NodeState::Removed)
        };
        for at in 0..self.members.len() {
            if self.members[at].as_ref().is_some_and(gone) {
                self.members[at] = None;
                self.dispatcher.leave(now, slot(at), &mut self.ended);
            }
        }
        self.ended.clear();
    }

    fn join(&mut self, now: Time, node: &LiveNode, settings: &ShadowSettings, level: u32) {
        let spec = NodeSpec {
            weight: node.weight,
            cache: node.memory,
            groups: node.groups,
            backup: node.backup,
            ..NodeSpec::named(&*node.name)
        };
        let Ok(id) = self.dispatcher.join(now, spec, &mut self.ended) else { return };
        if self.members.len() <= id.index() {
            self.members.resize_with(id.index() + 1, || None);
        }
        let cache = ByteCache::new(settings.cache, Bytes(node.memory.get() >> level), settings.object_max);
        let (name, state) = (node.name.clone(), NodeState::Up);
        let LiveNode { weight, backup, memory, .. } = *node;
        self.members[id.index()] = Some(ShadowNode { name, state, weight, backup, memory, cache });
        self.adjust(now, id.index(), node, level);
    }

    fn adjust(&mut self, now: Time, at: usize, node: &LiveNode, level: u32) {
        let Some(member) = &mut self.members[at] else { return };
        if member.memory != node.memory {
            member.memory = node.memory;
            member.cache.resize(Bytes(node.memory.get() >> level), &mut self.evicted);
        }
        if member.weight != node.weight {
            member.weight = node.weight;
            self.dispatcher.reweigh(now, slot(at), node.weight, &mut self.ended);
        }
        if member.backup != node.backup {
            member.backup = node.backup;
            self.dispatcher.set_backup(now, slot(at), node.backup, &mut self.ended);
        }
        if member.state != node.state {
            if node.state == NodeState::Down {
                // A node that failed has usually been restarted, and returns with an empty memory.
                member.cache.retain(|_| false);
            }
            member.state = node.state;
            self.dispatcher.set_state(now, slot(at), node.state, &mut self.ended);
        }
    }

    /// Reduces the memories to the targets sampled at one in 2^`level`.
    pub(super) fn halve_sampling(&mut self, level: u32, stays: impl Fn(TargetId) -> bool) {
        for member in self.members.iter_mut().flatten() {
            member.cache.retain(|target| stays(*target));
            member.cache.resize(Bytes(member.memory.get() >> level), &mut self.evicted);
        }
        self.introduced.clear();
    }

    /// Removes a target, because its kind of sampling changes.
    pub(super) fn remove_target(&mut self, target: TargetId) {
        self.members.iter_mut().flatten().for_each(|member| {
            member.cache.remove(&target);
        });
        if !self.introduced.is_empty() {
            self.introduced.retain(|(known, _)| *known != target);
        }
    }

    /// Resets all counts.
    pub(super) fn reset_counts(&mut self) {
        self.tallies = Tallies::default();
    }

    pub(super) fn rotate(&mut self) {
        self.tallies.rotate();
    }

    pub(super) fn figures(&self, truth: &Tallies) -> (Figures, Figures) {
        let open = |(at, member): (usize, &Option<ShadowNode>)| {
            member.as_ref().filter(|member| member.state == NodeState::Up).map(|_| slot(at))
        };
        let members: Vec<NodeId> = self.members.iter().enumerate().filter_map(open).collect();
        self.tallies.figures(truth, &members)
    }

    /// Returns the number of objects in all memories.
    pub(super) fn objects(&self) -> usize {
        self.members.iter().flatten().map(|member| member.cache.len()).sum()
    }

    /// Returns the share of all memories that is in use.
    pub(super) fn memory_used(&self) -> Option<f64> {
        let sum = |part: fn(&ShadowNode) -> u64| self.members.iter().flatten().map(part).sum::<u64>();
        let all = sum(|member| member.cache.capacity().get());
        (all > 0).then(|| sum(|member| member.cache.used().get()) as f64 / all as f64)
    }

    /// Returns the approximate number of bytes that objects, targets and requests in flight take.
    pub(super) fn state_bytes(&self) -> u64 {
        const OBJECT: usize = 72;
        const TARGET: usize = 60;
        let flight = self.running.len() * size_of::<RunningRequest>();
        (self.objects() * OBJECT + self.dispatcher.targets_known() * TARGET + flight) as u64
    }
}

/// Returns the duration that the request would have had.
fn adapt(observed: &ObservedRequest, found: CacheResult, miss_hit_ratio: f64) -> Duration {
    let longest = Duration::from_secs(3_600);
    let factor = match (observed.found, found) {
        (Some(CacheResult::Hit), CacheResult::Miss) => miss_hit_ratio,
        (Some(CacheResult::Miss), CacheResult::Hit) => 1.0 / miss_hit_ratio,
        _ => 1.0,
    };
    Duration::try_from_secs_f64(observed.elapsed.as_secs_f64() * factor).unwrap_or(longest).min(longest)
}

fn slot(at: usize) -> NodeId {
    NodeId(u16::try_from(at).unwrap_or(u16::MAX))
}
