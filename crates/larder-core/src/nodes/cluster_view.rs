//! The nodes as a policy sees them. Every value that other threads change is read through the decision's
//! [`ReadSource`].
//!
//! Membership (states, weights, cache sizes, losses) and reports are the same for all decisions between two changes,
//! and are read directly. Loads, counts and turns change at any moment and are read through the source. The same
//! holds for the state of policies: they read turns and learned values through [`ClusterView::turn`] and
//! [`ClusterView::learned`], and record each access to their state.

use super::load::Key;
use super::search::{LoadReader, RecordedLoads};
use super::visits::VisitCounter;
use super::{GroupId, LoadReport, NodeState, Nodes, PlacementOptions, ReceivedReport, Weight, mix, slot};
use crate::id::{NodeId, RouteId, TargetId};
use crate::read_log::{ReadKind, ReadLog, RouteSequence, Sequence};
use crate::read_source::ReadSource;
use crate::time::Time;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// The nodes of a route's group as one decision sees them. A node outside the group, and a backup that stands by,
/// look like nodes that take no requests. A node's load counts the requests of all routes. [`ClusterView::counting`]
/// sets whether it includes long-lived requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterView<'a> {
    pub(super) nodes: &'a Nodes,
    source: ReadSource<'a>,
    route: RouteId,
    pub(super) group: GroupId,
    long_lived: bool,
}

impl<'a> ClusterView<'a> {
    /// Creates a view of a route's group that reads through `source`.
    pub(crate) fn of(nodes: &'a Nodes, source: ReadSource<'a>, route: RouteId, group: GroupId) -> Self {
        Self { nodes, source, route, group, long_lived: false }
    }

    /// Returns this view with long-lived requests counted in loads or not. The number of long-lived requests is part
    /// of the membership: while a run is recorded, it is the same for all decisions between two changes.
    #[inline]
    pub(crate) fn counting(self, long_lived: bool) -> Self {
        // If there are no long-lived requests, the faster searches give the same result.
        Self { long_lived: long_lived && self.nodes.long_lived_total() > 0, ..self }
    }

    /// Creates a view of all nodes that reads live values.
    #[cfg(test)]
    pub(crate) fn live(nodes: &'a Nodes) -> Self {
        Self::of(nodes, ReadSource::LIVE, RouteId::DEFAULT, GroupId::ALL)
    }

    /// Returns whether the view covers all nodes.
    #[inline]
    pub(crate) fn sees_all(self) -> bool {
        self.group == GroupId::ALL
    }

    /// Returns whether values are neither recorded nor replayed.
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.source.is_live()
    }

    fn recorded_loads(self, read_log: &'a ReadLog) -> RecordedLoads<'a> {
        RecordedLoads { loads: &self.nodes.loads, read_log }
    }

    /// Returns `load / weight` of `node`, comparable between nodes.
    #[inline]
    pub(crate) fn key(self, node: NodeId) -> Key {
        let key = match self.source.read_log() {
            None => self.key_of(&self.nodes.loads, node),
            Some(read_log) => self.key_of(&self.recorded_loads(read_log), node),
        };
        if self.long_lived { self.with_long_lived(key, node) } else { key }
    }

    #[inline]
    fn key_of(self, words: &impl LoadReader, node: NodeId) -> Key {
        if self.sees_all() {
            return words.key(node.index());
        }
        let key = words.group_key(node.index());
        if self.nodes.is_eligible(node, self.group) { key } else { Key::CLOSED }
    }

    #[cold]
    fn with_long_lived(self, key: Key, node: NodeId) -> Key {
        self.nodes.loads.word(node.index()).more(key, self.nodes.long_lived(node))
    }

    /// Returns the least loaded open node for which `skip` is false, including long-lived requests. Among equal
    /// nodes it returns the first one at or after `start`. O(n).
    #[cold]
    fn least_counting(self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let slots = self.slots();
        let start = start.min(slots);
        let nodes =
            (start..slots).chain(0..start).map(slot).filter(|node| self.is_open(*node) && !skip(*node));
        nodes.min_by_key(|node| self.key(*node))
    }

    /// Returns whether some open node has a key below `bound`, including long-lived requests. O(n).
    #[cold]
    fn any_below_counting(self, bound: Key) -> bool {
        (0..self.slots()).map(slot).any(|node| self.is_open(node) && self.key(node) < bound)
    }

    /// Returns the number of requests in flight at `node`, from all switches.
    pub(crate) fn load(self, node: NodeId) -> u32 {
        let long_lived = if self.long_lived { self.nodes.long_lived(node) } else { 0 };
        self.own_load(node).saturating_add(self.nodes.peer_requests(node)).saturating_add(long_lived)
    }

    /// Returns the number of requests in flight at `node` that this dispatcher has sent there and that are not
    /// long-lived.
    pub(super) fn own_load(self, node: NodeId) -> u32 {
        match self.source.read_log() {
            None => self.nodes.loads.load(node),
            Some(read_log) => self.recorded_loads(read_log).word(node.index()).load(),
        }
    }

    /// Returns whether `node` is in the group and takes its requests.
    #[inline]
    pub(crate) fn is_open(self, node: NodeId) -> bool {
        self.nodes.takes(node, self.group)
    }

    /// Returns whether `node` is in the group and is up or draining, so that it may keep its clients.
    pub(crate) fn keeps_clients(self, node: NodeId) -> bool {
        self.nodes.is_in(node, self.group)
            && matches!(self.nodes.state(node), NodeState::Draining | NodeState::Up)
    }

    /// Returns the number of slots in use, including removed nodes: an upper bound of the slot numbers.
    #[inline]
    pub(crate) fn slots(self) -> usize {
        self.nodes.slots()
    }

    /// Returns the number of the group's nodes that take requests.
    #[inline]
    pub(crate) fn open_count(self) -> usize {
        self.nodes.open_in(self.group)
    }

    /// Returns the index of `node` among the group's slots, from 0; `None` for a node outside the group.
    pub(crate) fn rank(self, node: NodeId) -> Option<usize> {
        self.nodes.membership.load().summary(self.group).rank(node.index())
    }

    /// Returns the name of `node`; empty for a slot never used.
    pub(crate) fn name(self, node: NodeId) -> Arc<str> {
        self.nodes.name(node)
    }

    /// Returns the identity of `node`, which is the same at every switch.
    pub(crate) fn identity(self, node: NodeId) -> u64 {
        self.nodes.identity(node)
    }

    /// Returns the weight of `node`; 1 for a slot never used.
    pub(crate) fn weight(self, node: NodeId) -> Weight {
        self.nodes.weight(node)
    }

    /// Returns the sum of the weights of the group's nodes that take requests, 1000 = 1.0.
    pub(crate) fn weight_sum(self) -> u64 {
        self.nodes.weight_sum(self.group)
    }

    /// Returns the number of requests in flight at the group's nodes, from all switches.
    ///
    /// In the group of all nodes this is the number of admitted requests, in O(1) for any number of groups. In
    /// another group the loads of its open nodes are added up in O(members), since they may serve other groups too.
    pub(crate) fn outstanding_count(self) -> u32 {
        if !self.sees_all() {
            let membership = self.nodes.membership.load();
            let open =
                membership.summary(self.group).from(0).map(slot).filter(|node| self.nodes.is_open(*node));
            return open.map(|node| self.load(node)).sum();
        }
        let live = || self.nodes.outstanding_total();
        let own = match self.source.read_log() {
            None => live(),
            Some(read_log) => {
                u32::try_from(read_log.read(ReadKind::Outstanding, || live().into())).unwrap_or(u32::MAX)
            }
        };
        let long_lived = if self.long_lived { self.nodes.long_lived_total() } else { 0 };
        own.saturating_add(self.nodes.peer_requests_total()).saturating_add(long_lived)
    }

    /// Returns whether some open node has a key below `bound`. O(n/64) in the group of all nodes, O(members) in
    /// another group.
    #[inline]
    pub(crate) fn any_below(self, bound: Key) -> bool {
        if self.long_lived {
            return self.any_below_counting(bound);
        }
        if !self.sees_all() {
            let membership = self.nodes.membership.load();
            return membership.summary(self.group).from(0).any(|index| self.key(slot(index)) < bound);
        }
        match self.source.read_log() {
            None => self.nodes.loads.any_below(bound),
            Some(read_log) => self.recorded_loads(read_log).any_below(bound),
        }
    }

    /// Returns the least loaded open node. Among equal nodes it returns the first one at or after `start`. O(n/64)
    /// in the group of all nodes, O(members) in another group.
    #[inline]
    pub(crate) fn least(self, start: usize) -> Option<NodeId> {
        if !self.sees_all() || self.long_lived {
            return self.least_without(start, |_| false);
        }
        match self.source.read_log() {
            None => self.nodes.loads.least(start),
            Some(read_log) => self.recorded_loads(read_log).least(start),
        }
    }

    /// Returns the least loaded open node for which `skip` is false.
    #[inline]
    pub(crate) fn least_without(self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        if self.long_lived {
            return self.least_counting(start, skip);
        }
        if !self.sees_all() {
            let membership = self.nodes.membership.load();
            let members = membership.summary(self.group).from(start);
            return match self.source.read_log() {
                None => self.nodes.loads.least_of(members, LoadReader::group_key, skip),
                Some(read_log) => {
                    self.recorded_loads(read_log).least_of(members, LoadReader::group_key, skip)
                }
            };
        }
        match self.source.read_log() {
            None => self.nodes.loads.least_without(start, skip),
            Some(read_log) => self.recorded_loads(read_log).least_without(start, skip),
        }
    }

    /// Returns the slot of the group to which `hash` maps; see [`Nodes::position`].
    pub(crate) fn position(self, hash: u64) -> usize {
        self.nodes.position(hash, self.group)
    }

    /// Returns the open node for a hash, without regard to load: the node at [`Nodes::position`]. If that node is
    /// closed, the hash is rehashed, so that only the targets of a closed node move.
    pub(crate) fn hashed(self, hash: u64, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let membership = self.nodes.membership.load();
        let summary = membership.summary(self.group);
        let usable = |node: &NodeId| self.is_open(*node) && !skip(*node);
        let mut step = hash;
        for _ in 0..16 {
            let node = slot(summary.position(step));
            if usable(&node) {
                return Some(node);
            }
            step = mix(step);
        }
        let used = self.slots();
        let start = summary.position(hash);
        (start..used).chain(0..start).map(slot).find(usable)
    }

    /// Returns the node for a target: the least loaded node. Among equally loaded nodes it returns the first one at
    /// or after the target's [`Nodes::position`]. An idle cluster is thus shared out by cache size, and two
    /// front-ends agree without communication.
    ///
    /// If cache sizes differ, nodes within `PlacementOptions::even` of the least loaded node count as equally
    /// loaded. If there are other switches, loads are less certain, and [another rule](super::tie_break) applies. A
    /// joining node that has received its share of new targets for now is skipped, unless all nodes are.
    pub(crate) fn place(
        self,
        now: Time,
        target: TargetId,
        skip: impl Fn(NodeId) -> bool,
        options: PlacementOptions,
    ) -> Option<NodeId> {
        self.place_when(now, target, skip, options, |_| true)
    }

    /// Like [`ClusterView::place`], but counts the placement against a joining node's share only if `takes` says so
    /// of the node. A policy that compares the placed node with others must decide here, because a decision visits
    /// the joining nodes at most once; otherwise it could not be replayed.
    pub(crate) fn place_when(
        self,
        now: Time,
        target: TargetId,
        skip: impl Fn(NodeId) -> bool,
        options: PlacementOptions,
        takes: impl FnOnce(NodeId) -> bool,
    ) -> Option<NodeId> {
        let membership = self.nodes.membership.load();
        let summary = membership.summary(self.group);
        let start = summary.position(target.0);
        let least = if options.skips { self.least_without(start, &skip) } else { self.least(start) }?;
        let home = slot(start);
        let preferred = summary.has_widths() && self.is_open(home) && !skip(home);
        let within = || self.key(home) <= self.key(least).plus(options.even);
        let first = match self.nodes.peer_loads.equal_within() {
            Some(equal_within) => {
                let bound = self.key(least).plus_units(equal_within + 1).max(options.even);
                self.tie_break_node(target, bound, &membership, &skip).unwrap_or(least)
            }
            None if preferred && within() => home,
            None => least,
        };
        if !self.is_joining(first) {
            return Some(first);
        }
        let mut joiners = self.nodes.joiners.lock();
        // All routes share the joining nodes.
        Self { route: RouteId::DEFAULT, ..self }.record_visit(&mut joiners.visits);
        let chosen = if joiners.is_paused(now, first) {
            let other = self.least_without(start, |node| skip(node) || joiners.is_paused(now, node));
            other.unwrap_or(first)
        } else {
            first
        };
        if options.take && takes(chosen) {
            self.nodes.note_placement(&mut joiners, now, chosen);
        }
        Some(chosen)
    }

    fn is_joining(self, node: NodeId) -> bool {
        match self.source.read_log() {
            None => self.nodes.loads.is_joining(node),
            Some(read_log) => self.recorded_loads(read_log).word(node.index()).is_joining(),
        }
    }

    /// Returns the node's last report; `None` if it has sent none since it last joined, failed or drained.
    pub(crate) fn report(self, node: NodeId) -> Option<ReceivedReport> {
        self.nodes.report(node)
    }

    /// Returns the node's last report if it arrived within `age_max` of `now`.
    pub(crate) fn fresh_report(self, now: Time, node: NodeId, age_max: Duration) -> Option<LoadReport> {
        let reported = self.report(node)?;
        (reported.age(now) <= age_max).then_some(reported.report)
    }

    /// Returns a number that changes whenever a node joins, leaves, opens or closes, or its weight changes. The
    /// number changes after the change is visible.
    #[inline]
    pub(crate) fn members_epoch(self) -> u64 {
        self.nodes.members_epoch.load(Ordering::Acquire)
    }

    /// Returns the number of target losses so far. A server set created or checked at this epoch is valid.
    #[inline]
    pub(crate) fn epoch(self) -> u32 {
        self.nodes.epoch()
    }

    /// Returns whether `node` lost its targets after `epoch`; see [`Nodes::lost_since`].
    #[inline]
    pub(crate) fn lost_since(self, node: NodeId, epoch: u32) -> bool {
        self.nodes.lost_since(node, epoch)
    }

    /// Counts a request at `node`, and returns the node's key before.
    #[inline]
    pub(crate) fn start(self, node: NodeId) -> Key {
        let word = match self.source.read_log() {
            None => self.nodes.loads.count(node),
            Some(read_log) => self.recorded_loads(read_log).count(node),
        };
        let word = if self.sees_all() { word } else { word.without_standby() };
        let key = word.key(self.nodes.peer_requests(node));
        if self.long_lived { self.with_long_lived(key, node) } else { key }
    }

    /// Takes back one count of [`ClusterView::start`]. Returns false if there was none.
    #[must_use]
    pub(crate) fn end(self, node: NodeId) -> bool {
        match self.source.read_log() {
            None => self.nodes.loads.sub(node),
            Some(read_log) => self.recorded_loads(read_log).sub(node),
        }
    }

    /// Counts a request as admitted without asking the limit. Does nothing while a record is replayed, because a
    /// replay counts no admissions.
    pub(crate) fn force_admit(self) {
        if !self.source.is_replayed() {
            self.nodes.outstanding(self.group).force_acquire();
        }
    }

    /// Releases the admission of a request that has found no node. Does nothing while a record is replayed.
    pub(crate) fn release_admission(self) {
        if !self.source.is_replayed() {
            self.nodes.outstanding(self.group).release();
        }
    }

    /// Returns a value that a policy has learned from requests or reports, as of the time of this decision.
    #[inline]
    pub(crate) fn learned(self, live: impl FnOnce() -> u64) -> u64 {
        self.read(ReadKind::Learned, live)
    }

    /// Returns a turn counter before it advances.
    #[inline]
    pub(crate) fn turn(self, live: impl FnOnce() -> u64) -> u64 {
        self.read(ReadKind::Turn, live)
    }

    /// Returns the answer of the admission queue: 0 admitted, 1 full, 2 + ticket queued.
    #[inline]
    pub(crate) fn admission_answer(self, live: impl FnOnce() -> u64) -> u64 {
        self.read(ReadKind::Gate, live)
    }

    #[inline]
    fn read(self, kind: ReadKind, live: impl FnOnce() -> u64) -> u64 {
        match self.source.read_log() {
            None => live(),
            Some(read_log) => read_log.read(kind, live),
        }
    }

    /// Records an access to state behind a lock. The caller holds the lock, and `visits` is protected by it and
    /// counts only these accesses.
    #[inline]
    pub(crate) fn record_visit(self, visits: &mut VisitCounter) {
        if let Some(read_log) = self.source.read_log() {
            read_log.visit(
                RouteSequence { route: self.route, sequence: visits.sequence },
                visits.count,
                visits.count + 1,
            );
            visits.count += 1;
        }
    }

    /// Records that the random number with this index was drawn.
    #[inline]
    pub(crate) fn record_random_draw(self, number: u64) {
        self.record_step(Sequence::Lots, number, number + 1);
    }

    /// Records that a policy's turn counter went from `before` to `after` in one step. `turn` numbers the counter if
    /// the policy has several.
    #[inline]
    pub(crate) fn record_turn(self, turn: Option<u16>, before: u64, after: u64) {
        self.record_step(turn.map_or(Sequence::Turn, Sequence::Own), before, after);
    }

    #[inline]
    fn record_step(self, sequence: Sequence, before: u64, after: u64) {
        if let Some(read_log) = self.source.read_log() {
            read_log.visit(RouteSequence { route: self.route, sequence }, before, after);
        }
    }
}
