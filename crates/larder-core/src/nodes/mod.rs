//! The nodes of a cluster: their identity, whether they take requests, and their load.
//!
//! A node is identified by its name. A name takes a slot ([`NodeId`]) when it joins and keeps the slot until it is
//! removed. A node that restarts or moves keeps its slot, and so its targets. The load, which changes with every
//! request, is atomic. The membership is a snapshot that is replaced as a whole.
//! [`NodeSpec`] has an example.

pub(crate) mod admission_counter;
mod cluster_view;
mod group;
pub(crate) mod load;
mod membership;
mod peer_switches;
mod report;
mod search;
mod tie_break;
mod visits;

pub(crate) use cluster_view::ClusterView;
pub use group::{GroupId, Groups};
pub use membership::{NodeRow, NodeSpec, NodeState, Weight};
pub(crate) use peer_switches::fair_share;
pub use peer_switches::{Demand, PeerSwitchState};
pub use report::{LoadReport, ReceivedReport, Signal, UnknownSignal};
pub(crate) use visits::VisitCounter;

use crate::id::NodeId;
use crate::read_source::ReadSource;
use crate::sync::Mutex;
use crate::sync::Swap;
use crate::time::Time;
use admission_counter::{AdmissionCounter, StripedCounter};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use load::{Key, Loads, NodeStatus, node_at as slot};
use membership::{Membership, MembershipEntry};
use peer_switches::PeerSwitchLoads;
use report::Reports;
use search::{LoadReader, RecordedLoads};

/// The largest number of nodes in a cluster: slot numbers have 16 bits, and two are reserved.
pub const NODES_LIMIT: u16 = u16::MAX - 1;

/// The rate at which a joining node receives new targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinPace {
    /// New targets per second, with a burst of one second's worth. Range: 1 and up.
    pub(crate) targets_per_s: u32,
    /// The number of new targets after which the node is warm. 0: no limit from the start.
    pub(crate) warm_targets: u32,
}

/// The reason why a node cannot join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The table is full.
    #[error("the node table is full at {0} nodes: raise limits.nodes_max")]
    Full(u16),
    /// The name is in use by a node that has not been removed.
    #[error("a node named '{0}' is already in the cluster")]
    NameTaken(String),
    /// The name is empty.
    #[error("a node needs a name")]
    NoName,
}

/// The conditions of a placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementOptions {
    /// The key difference to the least loaded node at which a node still counts as equally loaded, where cache sizes
    /// differ.
    even: Key,
    /// Whether some nodes are skipped.
    skips: bool,
    /// Whether the placement counts against a joining node's share of new targets.
    take: bool,
}

impl PlacementOptions {
    /// Returns the options for a target that has no server.
    pub(crate) const fn first(even: Key, take: bool) -> Self {
        Self { even, skips: false, take }
    }

    /// Returns the options for a target whose servers are overloaded.
    pub(crate) const fn relief(take: bool) -> Self {
        Self { even: Key::of(0), skips: false, take }
    }

    /// Returns the options for a request that failed at another node.
    pub(crate) const fn retry() -> Self {
        Self { even: Key::of(0), skips: true, take: false }
    }
}

/// The node table: membership, loads and reports of all nodes.
#[derive(Debug)]
pub struct Nodes {
    /// The requests in flight at each node that are not long-lived.
    loads: Loads,
    /// The long-lived requests at each node.
    long_lived: Box<[AtomicU32]>,
    /// The sum of `long_lived`.
    long_lived_total: AtomicU32,
    membership: Swap<Membership>,
    /// The number of nodes that take requests. It repeats the membership's count, because reading it here is cheap.
    open: AtomicUsize,
    /// The number of times that a node lost its targets; see [`Nodes::lost_since`].
    epoch: AtomicU32,
    lost: Box<[AtomicU32]>,
    pace: JoinPace,
    joiners: Mutex<JoiningNodes>,
    reports: Mutex<Reports>,
    nodes_max: u16,
    /// The groups in which each slot can take requests, as bits; bit 0 is the group of all nodes.
    eligible: Box<[AtomicU64]>,
    /// The requests admitted and not ended, by the group of their route.
    outstanding: Box<[AdmissionCounter]>,
    /// The requests admitted and not ended in all groups together.
    total: Arc<StripedCounter>,
    /// The number of changes of membership and weights so far; see [`ClusterView::members_epoch`].
    members_epoch: AtomicU64,
    peer_loads: PeerSwitchLoads,
}

/// The joining nodes.
#[derive(Debug)]
struct JoiningNodes {
    each: Vec<JoiningNode>,
    visits: VisitCounter,
}

impl Default for JoiningNodes {
    fn default() -> Self {
        Self { each: Vec::new(), visits: VisitCounter::to_joiners() }
    }
}

impl JoiningNodes {
    /// Returns whether the node joins and has received its share of new targets for now.
    fn is_paused(&self, now: Time, node: NodeId) -> bool {
        self.each.iter().any(|joiner| joiner.node == node && joiner.ready > now)
    }

    fn contains(&self, node: NodeId) -> bool {
        self.each.iter().any(|joiner| joiner.node == node)
    }
}

#[derive(Clone, Copy, Debug)]
struct JoiningNode {
    node: NodeId,
    /// The time at which the next new target may be placed: the level of the token bucket, expressed as a time.
    ready: Time,
    left: u32,
}

impl Nodes {
    /// Creates an empty table for `nodes_max` nodes (at most [`NODES_LIMIT`]).
    #[cfg(test)]
    pub(crate) fn new(nodes_max: u16, pace: JoinPace) -> Self {
        Self::with_groups(nodes_max, pace, GroupId::ALL)
    }

    /// Creates an empty table for `nodes_max` nodes (at most [`NODES_LIMIT`]), which counts requests separately for each
    /// group up to `last`.
    pub(crate) fn with_groups(nodes_max: u16, pace: JoinPace, last: GroupId) -> Self {
        let nodes_max = nodes_max.min(NODES_LIMIT);
        let total = Arc::new(StripedCounter::default());
        Self {
            loads: Loads::new(nodes_max as usize),
            long_lived: (0..nodes_max).map(|_| AtomicU32::new(0)).collect(),
            long_lived_total: AtomicU32::new(0),
            membership: Swap::from_pointee(Membership::default()),
            open: AtomicUsize::new(0),
            epoch: AtomicU32::new(1),
            lost: (0..nodes_max).map(|_| AtomicU32::new(0)).collect(),
            pace,
            joiners: Mutex::default(),
            reports: Mutex::default(),
            nodes_max,
            eligible: (0..nodes_max).map(|_| AtomicU64::new(0)).collect(),
            outstanding: match last {
                GroupId::ALL => Box::new([AdmissionCounter::new()]),
                last => (0..=last.index()).map(|_| AdmissionCounter::with_total(total.clone())).collect(),
            },
            total,
            members_epoch: AtomicU64::new(0),
            peer_loads: PeerSwitchLoads::default(),
        }
    }

    /// Returns the admission counter of a group's routes. A group that no route uses shares the counter of the group
    /// of all nodes.
    pub(crate) fn outstanding(&self, group: GroupId) -> &AdmissionCounter {
        self.outstanding.get(group.index()).unwrap_or(&self.outstanding[0])
    }

    /// Returns the number of requests admitted and not ended, in all groups. O(1).
    pub(crate) fn outstanding_total(&self) -> u32 {
        if let [only] = &*self.outstanding { only.count() } else { self.total.count() }
    }

    /// Returns the number of requests in flight at all nodes. O(n).
    pub fn in_flight(&self) -> u32 {
        (0..self.loads.slots()).map(|index| self.load(slot(index))).sum()
    }

    /// Returns the number of requests in flight at `node`, including long-lived requests.
    pub fn load(&self, node: NodeId) -> u32 {
        self.loads.load(node).saturating_add(self.long_lived(node))
    }

    /// Returns the number of long-lived requests at `node`; see
    /// [`Dispatcher::become_long_lived`](crate::dispatch::Dispatcher::become_long_lived).
    pub fn long_lived(&self, node: NodeId) -> u32 {
        self.long_lived.get(node.index()).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns the number of long-lived requests at all nodes. O(1).
    pub fn long_lived_total(&self) -> u32 {
        self.long_lived_total.load(Ordering::Relaxed)
    }

    /// Returns the number of requests in flight at `node` that are not long-lived.
    pub fn short_lived(&self, node: NodeId) -> u32 {
        self.loads.load(node)
    }

    /// Counts a request in flight at `node` as long-lived from now on, or as short-lived. Returns false and changes
    /// nothing if the node has `most` long-lived requests already, or none.
    pub(crate) fn reclassify_request(&self, node: NodeId, long_lived: bool, most: u32) -> bool {
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

    /// Ends a long-lived request at `node`. Returns false if there was none.
    pub(crate) fn uncount_long_lived(&self, node: NodeId) -> bool {
        let Some(count) = self.long_lived.get(node.index()) else { return false };
        let fewer = |before: u32| before.checked_sub(1);
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        if counted {
            self.long_lived_total.fetch_sub(1, Ordering::Relaxed);
        }
        counted
    }

    /// Sets the number of long-lived requests at `node` to a recorded value. Returns false if there is no such node.
    pub(crate) fn set_long_lived(&self, node: NodeId, requests: u32) -> bool {
        let Some(count) = self.long_lived.get(node.index()).filter(|_| node.index() < self.slots()) else {
            return false;
        };
        let before = count.swap(requests, Ordering::Relaxed);
        self.long_lived_total.fetch_add(requests.wrapping_sub(before), Ordering::Relaxed);
        true
    }

    /// Returns `load / weight` of `node` without its long-lived requests, comparable between nodes.
    #[cfg(test)]
    pub(crate) fn key(&self, node: NodeId) -> Key {
        self.loads.key(node)
    }

    /// Returns whether `node` is up. It then takes requests, unless it stands by; see [`Nodes::takes`].
    pub fn is_open(&self, node: NodeId) -> bool {
        self.loads.is_open(node)
    }

    /// Returns whether `node` takes requests of the routes that use `group`.
    #[inline]
    pub fn takes(&self, node: NodeId, group: GroupId) -> bool {
        match group {
            GroupId::ALL => self.loads.is_eligible(node),
            group => self.loads.is_open(node) && self.is_eligible(node, group),
        }
    }

    /// Returns whether `node` can take requests of the routes that use `group`, if it is up.
    fn is_eligible(&self, node: NodeId, group: GroupId) -> bool {
        let bits = self.eligible.get(node.index()).map_or(0, |bits| bits.load(Ordering::Acquire));
        bits >> group.index() & 1 == 1
    }

    /// Returns whether the backups of `group` serve, because no ordinary node of the group is up.
    pub fn on_backups(&self, group: GroupId) -> bool {
        self.membership.load().summary(group).on_backups
    }

    /// Returns the number of slots in use, including removed nodes: an upper bound of the slot numbers.
    pub fn slots(&self) -> usize {
        self.loads.slots()
    }

    /// Returns the number of nodes that take requests.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the number of nodes of a group that take requests.
    pub fn open_in(&self, group: GroupId) -> usize {
        if group == GroupId::ALL { self.open_count() } else { self.membership.load().summary(group).open }
    }

    /// Returns the number of a group's nodes, whether or not they are up. It counts the ordinary nodes, or the
    /// backups while these serve.
    pub(crate) fn members_in(&self, group: GroupId) -> usize {
        self.membership.load().summary(group).present
    }

    /// Returns whether `node` is in `group`.
    pub fn is_in(&self, node: NodeId, group: GroupId) -> bool {
        self.membership
            .load()
            .rows
            .get(node.index())
            .map_or(Groups::NONE, |entry| entry.groups)
            .contains(group)
    }

    /// Returns the sum of the weights of a group's nodes that take requests, 1000 = 1.0.
    pub(crate) fn weight_sum(&self, group: GroupId) -> u64 {
        self.membership.load().summary(group).weight_sum
    }

    /// Returns the largest weight among a group's nodes that take requests, 1000 = 1.0.
    pub(crate) fn weight_max(&self, group: GroupId) -> u64 {
        self.membership.load().summary(group).weight_max
    }

    /// Returns the weight of `node`; 1 for a slot never used.
    pub fn weight(&self, node: NodeId) -> Weight {
        self.membership.load().rows.get(node.index()).map_or(Weight::ONE, |entry| entry.weight)
    }

    /// Returns the state of `node`; [`NodeState::Removed`] for a slot never used.
    pub fn state(&self, node: NodeId) -> NodeState {
        self.membership.load().rows.get(node.index()).map_or(NodeState::Removed, |entry| entry.state)
    }

    /// Returns the name of `node`; empty for a slot never used.
    pub fn name(&self, node: NodeId) -> Arc<str> {
        self.membership
            .load()
            .rows
            .get(node.index())
            .map_or_else(|| Arc::from(""), |entry| entry.name.clone())
    }

    /// Returns the node of that name that has not been removed.
    pub fn id_of(&self, name: &str) -> Option<NodeId> {
        self.membership.load().id_of(name)
    }

    /// Returns one row per node that has not been removed, by slot.
    pub fn rows(&self) -> Vec<NodeRow> {
        let membership = self.membership.load();
        let reports = self.reports.lock();
        let rows = membership.rows.iter().enumerate().filter(|(_, entry)| entry.state != NodeState::Removed);
        rows.map(|(index, entry)| {
            let id = slot(index);
            NodeRow {
                id,
                name: entry.name.clone(),
                weight: entry.weight,
                cache: entry.cache,
                groups: entry.groups,
                backup: entry.backup,
                standby: entry.state == NodeState::Up && membership.eligible(index) == 0,
                state: entry.state,
                load: self.load(id),
                long_lived: self.long_lived(id),
                joining: self.loads.is_joining(id),
                report: reports.of(id),
            }
        })
        .collect()
    }

    /// Returns the node's last report; `None` if it has sent none since it last joined, failed or drained.
    pub fn report(&self, node: NodeId) -> Option<ReceivedReport> {
        self.reports.lock().of(node)
    }

    /// Stores a node's report in place of the previous report. Returns false and stores nothing if there is no such
    /// node or the node does not take requests.
    pub(crate) fn take_report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        // The lock is taken first, so that a report cannot outlive a concurrent failure of its node.
        let mut reports = self.reports.lock();
        let known = self.is_open(node);
        if known {
            reports.put(node, ReceivedReport { at: now, report });
        }
        known
    }

    /// Returns the slot of `group` to which `hash` maps, if each slot's share is its node's cache size. All shares
    /// are equal if any size is unknown. The slot may be closed.
    pub(crate) fn position(&self, hash: u64, group: GroupId) -> usize {
        self.membership.load().summary(group).position(hash)
    }

    fn forget_report(&self, node: NodeId) {
        self.reports.lock().remove(node);
    }

    /// Returns the number of changes of membership and weights so far; see [`ClusterView::members_epoch`].
    pub(crate) fn members_epoch(&self) -> u64 {
        self.members_epoch.load(Ordering::Acquire)
    }

    /// Returns the number of target losses so far. A server set created or checked at this epoch is valid.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns whether `node` lost its targets after `epoch`, or takes no requests now. A server set checked at
    /// `epoch` must then drop the node.
    pub fn lost_since(&self, node: NodeId, epoch: u32) -> bool {
        self.lost[node.index()].load(Ordering::Acquire) > epoch
    }

    fn note_placement(&self, joiners: &mut JoiningNodes, now: Time, node: NodeId) {
        let Some(at) = joiners.each.iter().position(|joiner| joiner.node == node) else { return };
        let joiner = &mut joiners.each[at];
        let gap = core::time::Duration::from_nanos(1_000_000_000 / u64::from(self.pace.targets_per_s.max(1)));
        joiner.ready = joiner.ready.max(now) + gap;
        joiner.left = joiner.left.saturating_sub(1);
        if joiner.left == 0 {
            joiners.each.swap_remove(at);
            self.set_status(node, &self.membership.load(), false);
        }
    }

    #[must_use]
    pub(crate) fn end(&self, node: NodeId) -> bool {
        self.loads.sub(node)
    }

    /// Adds a node. A node that joins a running cluster (`warm` is false) receives new targets at the join pace.
    /// Whether a removed node's slot is free is read through `source`.
    pub(crate) fn join(
        &self,
        now: Time,
        spec: NodeSpec,
        warm: bool,
        source: ReadSource<'_>,
        claim: impl FnOnce(NodeId),
    ) -> Result<NodeId, JoinError> {
        let mut joiners = self.joiners.lock();
        let mut membership = Membership::clone(&self.membership.load());
        if spec.name.is_empty() {
            return Err(JoinError::NoName);
        }
        if membership.id_of(&spec.name).is_some() {
            return Err(JoinError::NameTaken(spec.name));
        }
        let load = |index: usize| match source.read_log() {
            None => self.loads.load(slot(index)),
            Some(read_log) => RecordedLoads { loads: &self.loads, read_log }.word(index).load(),
        };
        let free = |index: &usize| {
            membership.rows.get(*index).is_none_or(|e| {
                e.state == NodeState::Removed && load(*index) == 0 && self.long_lived(slot(*index)) == 0
            })
        };
        let index = (0..self.nodes_max as usize).find(free).ok_or(JoinError::Full(self.nodes_max))?;
        let node = slot(index);
        claim(node);
        membership.put(index, &spec);
        // Server sets that still contain the slot's former node must not send its targets to the new node.
        self.lose_targets(node);
        self.forget_report(node);
        let joining = !warm && self.pace.warm_targets > 0;
        joiners.each.retain(|joiner| joiner.node != node);
        if joining {
            joiners.each.push(JoiningNode { node, ready: now, left: self.pace.warm_targets });
        }
        self.publish(membership, node, joining);
        self.members_epoch.fetch_add(1, Ordering::Release);
        Ok(node)
    }

    /// Changes a node's state. A node that stops taking requests loses its targets. Returns false if nothing changed
    /// or there is no such node.
    pub(crate) fn set_state(&self, node: NodeId, state: NodeState) -> bool {
        let joiners = self.joiners.lock();
        let mut membership = Membership::clone(&self.membership.load());
        let Some(entry) = membership.rows.get_mut(node.index()) else { return false };
        if entry.state == state || entry.state == NodeState::Removed {
            return false;
        }
        entry.state = state;
        self.publish(membership, node, joiners.contains(node));
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

    /// Changes a node's configuration. Returns false if there is no such node.
    fn amend(&self, node: NodeId, change: impl FnOnce(&mut MembershipEntry)) -> bool {
        let joiners = self.joiners.lock();
        let mut membership = Membership::clone(&self.membership.load());
        let Some(entry) = membership.rows.get_mut(node.index()) else { return false };
        change(entry);
        self.publish(membership, node, joiners.contains(node));
        self.members_epoch.fetch_add(1, Ordering::Release);
        true
    }

    /// Publishes a new membership snapshot in which `node` has changed, and updates the backups that stand by.
    ///
    /// Backups that begin to serve are opened before the node closes. Backups that cease to serve are closed after
    /// the node opens. A request therefore always finds an open node in the group. A backup that ceases to serve
    /// loses its targets, like a node that closes.
    fn publish(&self, mut membership: Membership, node: NodeId, joining: bool) {
        membership.derive_summaries();
        let membership = Arc::new(membership);
        let eligible = || self.eligible.iter().enumerate().take(membership.rows.len());
        let backups = || (0..membership.rows.len()).filter(|index| membership.rows[*index].backup);
        let stands_by = |index: usize| membership.eligible(index) & 1 == 0;
        for (index, bits) in eligible() {
            bits.fetch_or(membership.eligible(index), Ordering::AcqRel);
        }
        backups()
            .filter(|index| !stands_by(*index))
            .for_each(|index| self.loads.set_standby(slot(index), false));
        self.open.store(membership.summary(GroupId::ALL).open, Ordering::Release);
        self.membership.store(membership.clone());
        self.set_status(node, &membership, joining);
        backups()
            .filter(|index| stands_by(*index))
            .for_each(|index| self.loads.set_standby(slot(index), true));
        for (index, bits) in eligible() {
            let now = membership.eligible(index);
            if bits.swap(now, Ordering::AcqRel) & !now != 0 {
                self.lose_targets(slot(index));
            }
        }
    }

    fn set_status(&self, node: NodeId, membership: &Membership, joining: bool) {
        let entry = &membership.rows[node.index()];
        let (weight_milli, open) = (entry.weight.milli(), entry.state == NodeState::Up);
        let standby = membership.eligible(node.index()) & 1 == 0;
        self.loads.set(node, NodeStatus { weight_milli, open, joining, standby });
    }

    fn lose_targets(&self, node: NodeId) {
        // The node's own epoch is stored first. A reader that still sees the old global epoch sees the loss now or
        // at its next access. Only holders of the membership lock call this function.
        let epoch = self.epoch.load(Ordering::Acquire) + 1;
        self.lost[node.index()].store(epoch, Ordering::Release);
        self.epoch.store(epoch, Ordering::Release);
    }
}

/// Mixes the bits of a number: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
