//! The nodes of a cluster: who they are, whether they take requests, how loaded they are.
//!
//! A node is known by its name. A name takes a slot ([`NodeId`]) when it joins and keeps it until it is removed;
//! a node that restarts or moves keeps its slot, and so its targets. What changes with every request (the load) is
//! atomic; what changes with membership is a snapshot that is replaced as a whole.

mod agreed;
mod elsewhere;
mod group;
pub mod load;
pub mod outstanding;
mod report;
mod search;
mod sight;
mod view;
mod visits;

pub use elsewhere::{Demand, Elsewhere, fair_share};
pub use group::{GroupId, Groups};
pub use report::{LoadReport, Reported, Signal, UnknownSignal};
pub use sight::Sight;
pub use view::{NodeRow, NodeSpec, NodeState, Weight};
pub(crate) use visits::Visits;

use crate::id::NodeId;
use crate::source::Source;
use crate::time::Time;
use arc_swap::ArcSwap;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use elsewhere::Shared;
use load::{Key, Loads, Standing, node_at as slot};
use outstanding::{Outstanding, Total};
use report::Reports;
use search::{Taped, Words};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use view::{Entry, View};

/// The largest number of nodes a cluster can have: slot numbers are 16 bits and two are reserved.
pub const NODES_LIMIT: u16 = u16::MAX - 1;

/// How fast a joining node may be given new targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinPace {
    /// New targets per second, with a burst of one second's worth. Range: 1 and up.
    pub targets_per_s: u32,
    /// New targets after which the node counts as warm. 0: no limit from the start.
    pub warm_targets: u32,
}

/// Why a node cannot join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The table is full.
    #[error("the node table is full at {0} nodes: raise nodes_max")]
    Full(u16),
    /// The name is in use by a node that has not been removed.
    #[error("a node named '{0}' is already in the cluster")]
    NameTaken(String),
    /// The name is empty.
    #[error("a node needs a name")]
    NoName,
}

/// What a placement is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placing {
    /// How much more loaded than the least loaded a node may be and still count as equal, where cache sizes differ.
    even: Key,
    /// Some nodes are to be skipped.
    skips: bool,
    /// It counts against a joining node's share of new targets.
    take: bool,
}

impl Placing {
    /// A target that has no server.
    pub(crate) const fn first(even: Key, take: bool) -> Self {
        Self { even, skips: false, take }
    }

    /// A target whose servers are overloaded.
    pub(crate) const fn relief(take: bool) -> Self {
        Self { even: Key::of(0), skips: false, take }
    }

    /// A request that failed elsewhere.
    pub(crate) const fn retry() -> Self {
        Self { even: Key::of(0), skips: true, take: false }
    }
}

/// The node table.
#[derive(Debug)]
pub struct Nodes {
    /// Requests in flight at each node that are not long-lived.
    loads: Loads,
    /// Long-lived requests at each node.
    long_lived: Box<[AtomicU32]>,
    /// Their sum.
    long_lived_total: AtomicU32,
    view: ArcSwap<View>,
    /// Nodes that take requests; the view's count, where reading it costs least.
    open: AtomicUsize,
    /// Counts the moments at which nodes lost their targets; see [`Nodes::lost_since`].
    epoch: AtomicU32,
    lost: Box<[AtomicU32]>,
    pace: JoinPace,
    joiners: Mutex<Joiners>,
    reports: Mutex<Reports>,
    nodes_max: u16,
    /// The groups in which each slot can take requests, as bits; bit 0 is the group of all.
    eligible: Box<[AtomicU64]>,
    /// Requests admitted and not ended, by the group of their route.
    outstanding: Box<[Outstanding]>,
    /// All of them together.
    total: Arc<Total>,
    /// Changes of reports, membership and weights so far; see [`Sight::reports_epoch`].
    reports_epoch: AtomicU64,
    /// Changes of membership and weights so far; see [`Sight::members_epoch`].
    members_epoch: AtomicU64,
    shared: Shared,
}

/// The joining nodes.
#[derive(Debug)]
struct Joiners {
    each: Vec<Joiner>,
    visits: Visits,
}

impl Default for Joiners {
    fn default() -> Self {
        Self { each: Vec::new(), visits: Visits::to_joiners() }
    }
}

impl Joiners {
    /// The nodes that have had their share of new targets for now.
    fn resting(&self, now: Time) -> Vec<NodeId> {
        self.each.iter().filter(|joiner| joiner.ready > now).map(|joiner| joiner.node).collect()
    }

    fn contains(&self, node: NodeId) -> bool {
        self.each.iter().any(|joiner| joiner.node == node)
    }
}

#[derive(Clone, Copy, Debug)]
struct Joiner {
    node: NodeId,
    /// When the next new target may be placed; the bucket's level as a time.
    ready: Time,
    left: u32,
}

impl Nodes {
    /// An empty table with room for `nodes_max` nodes (at most [`NODES_LIMIT`]).
    pub fn new(nodes_max: u16, pace: JoinPace) -> Self {
        Self::with_groups(nodes_max, pace, GroupId::ALL)
    }

    /// The same, where requests are counted apart for each group up to `last`.
    pub fn with_groups(nodes_max: u16, pace: JoinPace, last: GroupId) -> Self {
        let nodes_max = nodes_max.min(NODES_LIMIT);
        let total = Arc::new(Total::default());
        Self {
            loads: Loads::new(nodes_max as usize),
            long_lived: (0..nodes_max).map(|_| AtomicU32::new(0)).collect(),
            long_lived_total: AtomicU32::new(0),
            view: ArcSwap::from_pointee(View::default()),
            open: AtomicUsize::new(0),
            epoch: AtomicU32::new(1),
            lost: (0..nodes_max).map(|_| AtomicU32::new(0)).collect(),
            pace,
            joiners: Mutex::default(),
            reports: Mutex::default(),
            nodes_max,
            eligible: (0..nodes_max).map(|_| AtomicU64::new(0)).collect(),
            outstanding: match last {
                GroupId::ALL => Box::new([Outstanding::new()]),
                last => (0..=last.index()).map(|_| Outstanding::part_of(total.clone())).collect(),
            },
            total,
            reports_epoch: AtomicU64::new(0),
            members_epoch: AtomicU64::new(0),
            shared: Shared::default(),
        }
    }

    /// The count of requests of a group's routes that are admitted and not ended, and its limit. A group that no route
    /// uses counts with that of all.
    pub fn outstanding(&self, group: GroupId) -> &Outstanding {
        self.outstanding.get(group.index()).unwrap_or(&self.outstanding[0])
    }

    /// Requests admitted and not ended, in whatever group. O(1).
    pub(crate) fn outstanding_total(&self) -> u32 {
        if let [only] = &*self.outstanding { only.count() } else { self.total.count() }
    }

    /// Requests in flight at all nodes. O(n).
    pub fn in_flight(&self) -> u32 {
        (0..self.loads.slots()).map(|index| self.load(slot(index))).sum()
    }

    /// Requests in flight at `node`, long-lived ones included.
    pub fn load(&self, node: NodeId) -> u32 {
        self.loads.load(node).saturating_add(self.long_lived(node))
    }

    /// Long-lived requests at `node`; see [`Dispatcher::become_long_lived`](crate::dispatch::Dispatcher::become_long_lived).
    pub fn long_lived(&self, node: NodeId) -> u32 {
        self.long_lived.get(node.index()).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Long-lived requests at all nodes. O(1).
    pub fn long_lived_total(&self) -> u32 {
        self.long_lived_total.load(Ordering::Relaxed)
    }

    /// Requests in flight at `node` that are not long-lived.
    pub fn short_lived(&self, node: NodeId) -> u32 {
        self.loads.load(node)
    }

    /// Counts a request in flight at `node` as long-lived from now on, or no longer. False, and nothing changes, if the node
    /// has `most` of them already, or none.
    pub(crate) fn shift(&self, node: NodeId, long_lived: bool, most: u32) -> bool {
        let shifted = match long_lived {
            true => self.count_long_lived(node, most) && self.loads.sub(node),
            false => self.uncount_long_lived(node),
        };
        if shifted && !long_lived {
            self.loads.add(node);
        }
        shifted
    }

    fn count_long_lived(&self, node: NodeId, most: u32) -> bool {
        let Some(count) = self.long_lived.get(node.index()) else { return false };
        let more = |before: u32| (before < most).then(|| before + 1);
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if counted {
            self.long_lived_total.fetch_add(1, Ordering::Relaxed);
        }
        counted
    }

    /// A long-lived request has ended at `node`. False if there was none.
    pub(crate) fn uncount_long_lived(&self, node: NodeId) -> bool {
        let Some(count) = self.long_lived.get(node.index()) else { return false };
        let fewer = |before: u32| before.checked_sub(1);
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        if counted {
            self.long_lived_total.fetch_sub(1, Ordering::Relaxed);
        }
        counted
    }

    /// So many requests at `node` are long-lived, says a record. False if there is no such node.
    pub(crate) fn set_long_lived(&self, node: NodeId, requests: u32) -> bool {
        let Some(count) = self.long_lived.get(node.index()).filter(|_| node.index() < self.slots()) else {
            return false;
        };
        let before = count.swap(requests, Ordering::Relaxed);
        self.long_lived_total.fetch_add(requests.wrapping_sub(before), Ordering::Relaxed);
        true
    }

    /// `load / weight` of `node` without its long-lived requests, comparable between nodes.
    pub fn key(&self, node: NodeId) -> Key {
        self.loads.key(node)
    }

    /// Whether `node` is up. It takes requests then, unless it stands by; see [`Nodes::takes`].
    pub fn is_open(&self, node: NodeId) -> bool {
        self.loads.is_open(node)
    }

    /// Whether `node` takes requests of the routes that use `group`.
    #[inline]
    pub fn takes(&self, node: NodeId, group: GroupId) -> bool {
        match group {
            GroupId::ALL => self.loads.is_eligible(node),
            group => self.loads.is_open(node) && self.is_eligible(node, group),
        }
    }

    /// Whether `node` can take requests of the routes that use `group`, if it is up.
    fn is_eligible(&self, node: NodeId, group: GroupId) -> bool {
        let bits = self.eligible.get(node.index()).map_or(0, |bits| bits.load(Ordering::Acquire));
        bits >> group.index() & 1 == 1
    }

    /// Whether the backups of `group` serve, because no ordinary node of the group is up.
    pub fn on_backups(&self, group: GroupId) -> bool {
        self.view.load().pool(group).on_backups
    }

    /// Number of slots in use, removed nodes included: an upper bound of the slot numbers.
    pub fn slots(&self) -> usize {
        self.loads.slots()
    }

    /// Number of nodes that take requests.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Number of nodes of a group that take requests.
    pub fn open_in(&self, group: GroupId) -> usize {
        if group == GroupId::ALL { self.open_count() } else { self.view.load().pool(group).open }
    }

    /// Number of a group's nodes, whether or not they are up: of the ordinary ones, or of the backups while these serve.
    pub fn members_in(&self, group: GroupId) -> usize {
        self.view.load().pool(group).present
    }

    /// Whether `node` is in `group`.
    pub fn is_in(&self, node: NodeId, group: GroupId) -> bool {
        self.view.load().rows.get(node.index()).map_or(Groups::NONE, |entry| entry.groups).contains(group)
    }

    /// Sum of the weights of a group's nodes that take requests, 1000 = 1.0.
    pub fn weight_sum(&self, group: GroupId) -> u64 {
        self.view.load().pool(group).weight_sum
    }

    /// The largest weight among a group's nodes that take requests, 1000 = 1.0.
    pub fn weight_max(&self, group: GroupId) -> u64 {
        self.view.load().pool(group).weight_max
    }

    /// The weight of `node`; 1 for a slot never used.
    pub fn weight(&self, node: NodeId) -> Weight {
        self.view.load().rows.get(node.index()).map_or(Weight::ONE, |entry| entry.weight)
    }

    /// The state of `node`; [`NodeState::Removed`] for a slot never used.
    pub fn state(&self, node: NodeId) -> NodeState {
        self.view.load().rows.get(node.index()).map_or(NodeState::Removed, |entry| entry.state)
    }

    /// The name of `node`; empty for a slot never used.
    pub fn name(&self, node: NodeId) -> Arc<str> {
        self.view.load().rows.get(node.index()).map_or_else(|| Arc::from(""), |entry| entry.name.clone())
    }

    /// The node of that name that has not been removed.
    pub fn id_of(&self, name: &str) -> Option<NodeId> {
        self.view.load().id_of(name)
    }

    /// One row per node that has not been removed, by slot.
    pub fn rows(&self) -> Vec<NodeRow> {
        let view = self.view.load();
        let reports = lock(&self.reports);
        let rows = view.rows.iter().enumerate().filter(|(_, entry)| entry.state != NodeState::Removed);
        rows.map(|(index, entry)| {
            let id = slot(index);
            NodeRow {
                id,
                name: entry.name.clone(),
                weight: entry.weight,
                cache: entry.cache,
                groups: entry.groups,
                backup: entry.backup,
                standby: entry.state == NodeState::Up && view.eligible(index) == 0,
                state: entry.state,
                load: self.load(id),
                long_lived: self.long_lived(id),
                joining: self.loads.is_joining(id),
                report: reports.of(id),
            }
        })
        .collect()
    }

    /// The node's last report; `None` if it has made none since it joined, failed or drained last.
    pub fn report(&self, node: NodeId) -> Option<Reported> {
        lock(&self.reports).of(node)
    }

    /// Keeps a node's report in place of the one before. False, and nothing is kept, if there is no such node or it
    /// does not take requests.
    pub(crate) fn take_report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        // Under the lock, so that a report cannot outlive a failure at the same moment.
        let mut reports = lock(&self.reports);
        let known = self.is_open(node);
        if known {
            reports.put(node, Reported { at: now, report });
            self.reports_epoch.fetch_add(1, Ordering::Release);
        }
        known
    }

    /// The slot of `group` at which `hash` falls when slots are as wide as their nodes' caches (all equal if any is
    /// unknown). The slot may be closed.
    pub fn position(&self, hash: u64, group: GroupId) -> usize {
        self.view.load().pool(group).position(hash)
    }

    fn forget_report(&self, node: NodeId) {
        lock(&self.reports).drop_of(node);
        self.reports_epoch.fetch_add(1, Ordering::Release);
    }

    /// Changes of membership and weights so far; see [`Sight::members_epoch`].
    pub(crate) fn members_epoch(&self) -> u64 {
        self.members_epoch.load(Ordering::Acquire)
    }

    /// The number of target losses so far; a server set made or checked at this epoch is valid as it stands.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether `node` lost its targets after `epoch`, or takes no requests now: a server set checked at `epoch`
    /// must drop it.
    pub fn lost_since(&self, node: NodeId, epoch: u32) -> bool {
        self.lost[node.index()].load(Ordering::Acquire) > epoch
    }

    fn note_placement(&self, joiners: &mut Joiners, now: Time, node: NodeId) {
        let Some(at) = joiners.each.iter().position(|joiner| joiner.node == node) else { return };
        let joiner = &mut joiners.each[at];
        let gap = core::time::Duration::from_nanos(1_000_000_000 / u64::from(self.pace.targets_per_s.max(1)));
        joiner.ready = joiner.ready.max(now) + gap;
        joiner.left = joiner.left.saturating_sub(1);
        if joiner.left == 0 {
            joiners.each.swap_remove(at);
            self.set_standing(node, &self.view.load(), false);
        }
    }

    #[must_use]
    pub(crate) fn end(&self, node: NodeId) -> bool {
        self.loads.sub(node)
    }

    /// Adds a node. One that joins a running cluster (`warm` false) is given new targets at the join pace.
    /// Whether a removed node's slot is free yet passes the source.
    pub(crate) fn join(
        &self,
        now: Time,
        spec: NodeSpec,
        warm: bool,
        source: Source<'_>,
        claim: impl FnOnce(NodeId),
    ) -> Result<NodeId, JoinError> {
        let mut joiners = lock(&self.joiners);
        let mut view = View::clone(&self.view.load());
        if spec.name.is_empty() {
            return Err(JoinError::NoName);
        }
        if view.id_of(&spec.name).is_some() {
            return Err(JoinError::NameTaken(spec.name));
        }
        let load = |index: usize| match source.tape() {
            None => self.loads.load(slot(index)),
            Some(tape) => Taped { loads: &self.loads, tape }.word(index).load(),
        };
        let free = |index: &usize| {
            view.rows.get(*index).is_none_or(|e| {
                e.state == NodeState::Removed && load(*index) == 0 && self.long_lived(slot(*index)) == 0
            })
        };
        let index = (0..self.nodes_max as usize).find(free).ok_or(JoinError::Full(self.nodes_max))?;
        let node = slot(index);
        claim(node);
        view.put(index, &spec);
        // Sets that still name the slot's former holder must not send its targets to the new one.
        self.lose_targets(node);
        self.forget_report(node);
        let joining = !warm && self.pace.warm_targets > 0;
        joiners.each.retain(|joiner| joiner.node != node);
        if joining {
            joiners.each.push(Joiner { node, ready: now, left: self.pace.warm_targets });
        }
        self.publish(view, node, joining);
        self.members_epoch.fetch_add(1, Ordering::Release);
        Ok(node)
    }

    /// Changes a node's state. A node that stops taking requests loses its targets. False if nothing changed, or if
    /// there is no such node.
    pub(crate) fn set_state(&self, node: NodeId, state: NodeState) -> bool {
        let joiners = lock(&self.joiners);
        let mut view = View::clone(&self.view.load());
        let Some(entry) = view.rows.get_mut(node.index()) else { return false };
        if entry.state == state || entry.state == NodeState::Removed {
            return false;
        }
        entry.state = state;
        self.publish(view, node, joiners.contains(node));
        if state != NodeState::Up {
            self.lose_targets(node);
            self.forget_report(node);
        }
        self.members_epoch.fetch_add(1, Ordering::Release);
        true
    }

    pub(crate) fn set_weight(&self, node: NodeId, weight: Weight) -> bool {
        self.amend(node, |entry| entry.weight = weight)
    }

    pub(crate) fn set_backup(&self, node: NodeId, backup: bool) -> bool {
        self.amend(node, |entry| entry.backup = backup)
    }

    /// Changes what is configured of a node. False if there is no such node.
    fn amend(&self, node: NodeId, change: impl FnOnce(&mut Entry)) -> bool {
        let joiners = lock(&self.joiners);
        let mut view = View::clone(&self.view.load());
        let Some(entry) = view.rows.get_mut(node.index()) else { return false };
        change(entry);
        self.publish(view, node, joiners.contains(node));
        self.members_epoch.fetch_add(1, Ordering::Release);
        true
    }

    /// Puts the new snapshot in force, in which `node` has changed, and with it which backups stand by. Backups that begin to
    /// serve are opened before the node closes, and backups that cease to serve are closed after the node opens, so that no
    /// request finds a group without a node. A backup that ceases to serve loses its targets, as a node that closes does.
    fn publish(&self, mut view: View, node: NodeId, joining: bool) {
        view.finish();
        let view = Arc::new(view);
        let eligible = || self.eligible.iter().enumerate().take(view.rows.len());
        let backups = || (0..view.rows.len()).filter(|index| view.rows[*index].backup);
        let stands_by = |index: usize| view.eligible(index) & 1 == 0;
        for (index, bits) in eligible() {
            bits.fetch_or(view.eligible(index), Ordering::AcqRel);
        }
        backups()
            .filter(|index| !stands_by(*index))
            .for_each(|index| self.loads.set_standby(slot(index), false));
        self.open.store(view.pool(GroupId::ALL).open, Ordering::Release);
        self.view.store(view.clone());
        self.set_standing(node, &view, joining);
        backups()
            .filter(|index| stands_by(*index))
            .for_each(|index| self.loads.set_standby(slot(index), true));
        for (index, bits) in eligible() {
            let now = view.eligible(index);
            if bits.swap(now, Ordering::AcqRel) & !now != 0 {
                self.lose_targets(slot(index));
            }
        }
        self.reports_epoch.fetch_add(1, Ordering::Release);
    }

    fn set_standing(&self, node: NodeId, view: &View, joining: bool) {
        let entry = &view.rows[node.index()];
        let (weight_milli, open) = (entry.weight.milli(), entry.state == NodeState::Up);
        let standby = view.eligible(node.index()) & 1 == 0;
        self.loads.set(node, Standing { weight_milli, open, joining, standby });
        self.reports_epoch.fetch_add(1, Ordering::Release);
    }

    fn lose_targets(&self, node: NodeId) {
        // The node's own mark comes first: a visitor that still reads the old epoch then sees the loss now or at its
        // next visit. Only holders of the membership lock come here.
        let epoch = self.epoch.load(Ordering::Acquire) + 1;
        self.lost[node.index()].store(epoch, Ordering::Release);
        self.epoch.store(epoch, Ordering::Release);
    }
}

/// A poisoned lock is taken over: the data is valid between any two statements that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
