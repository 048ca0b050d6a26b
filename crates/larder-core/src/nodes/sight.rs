//! The nodes as a policy sees them: every value that other threads change passes the decision's [`Source`].
//!
//! Membership (states, weights, cache sizes, losses) and what nodes report is the same for all decisions between two
//! changes, and is read as it stands. Loads, counts and turns change at any moment; they are read through the source. So
//! is what policies keep: they read turns and what was learned by [`Sight::turn`] and [`Sight::learned`], and name each
//! visit to their state.

use super::load::Key;
use super::search::{Taped, Words};
use super::visits::Visits;
use super::{GroupId, LoadReport, NodeState, Nodes, Placing, Reported, Weight, lock, mix, slot};
use crate::id::{NodeId, RouteId, TargetId};
use crate::source::Source;
use crate::tape::{Lane, Read, Tape, Track};
use crate::time::Time;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;

/// The nodes as one decision sees them: those of its route's group. A node outside the group, and a backup that stands by,
/// look like nodes that take no requests. Loads count the requests at a node by whichever route they came. Whether they count long-lived ones is said
/// by [`Sight::counting`].
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    pub(super) nodes: &'a Nodes,
    source: Source<'a>,
    route: RouteId,
    pub(super) group: GroupId,
    long_lived: bool,
}

impl<'a> Sight<'a> {
    /// The nodes of a route's group, read through a source.
    pub(crate) fn of(nodes: &'a Nodes, source: Source<'a>, route: RouteId, group: GroupId) -> Self {
        Self { nodes, source, route, group, long_lived: false }
    }

    /// The same, where loads count long-lived requests too. The number of long-lived requests is a part of the membership:
    /// while a run is recorded it is the same for all decisions between two changes.
    #[inline]
    pub(crate) fn counting(self, long_lived: bool) -> Self {
        // Where there are none, the faster searches give the same.
        Self { long_lived: long_lived && self.nodes.long_lived_total() > 0, ..self }
    }

    /// All nodes, read live.
    #[cfg(test)]
    pub(crate) fn live(nodes: &'a Nodes) -> Self {
        Self::of(nodes, Source::LIVE, RouteId::DEFAULT, GroupId::ALL)
    }

    /// Whether the group is that of all nodes.
    #[inline]
    pub(crate) fn sees_all(self) -> bool {
        self.group == GroupId::ALL
    }

    /// Whether nothing is recorded or played.
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.source.is_live()
    }

    fn taped(self, tape: &'a Tape) -> Taped<'a> {
        Taped { loads: &self.nodes.loads, tape }
    }

    /// `load / weight` of `node`, comparable between nodes.
    #[inline]
    pub fn key(self, node: NodeId) -> Key {
        let key = match self.source.tape() {
            None => self.key_of(&self.nodes.loads, node),
            Some(tape) => self.key_of(&self.taped(tape), node),
        };
        if self.long_lived { self.with_long_lived(key, node) } else { key }
    }

    #[inline]
    fn key_of(self, words: &impl Words, node: NodeId) -> Key {
        if self.sees_all() {
            return words.key(node.index());
        }
        let key = words.key_in_a_group(node.index());
        if self.nodes.is_eligible(node, self.group) { key } else { Key::CLOSED }
    }

    #[cold]
    fn with_long_lived(self, key: Key, node: NodeId) -> Key {
        self.nodes.loads.word(node.index()).more(key, self.nodes.long_lived(node))
    }

    /// The least loaded open node for which `skip` is false, long-lived requests counted; ties go to the first at or after
    /// `start`. O(n).
    #[cold]
    fn least_counting(self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let slots = self.slots();
        let start = start.min(slots);
        let nodes =
            (start..slots).chain(0..start).map(slot).filter(|node| self.is_open(*node) && !skip(*node));
        nodes.min_by_key(|node| self.key(*node))
    }

    /// Whether some open node has a key below `bound`, long-lived requests counted. O(n).
    #[cold]
    fn any_below_counting(self, bound: Key) -> bool {
        (0..self.slots()).map(slot).any(|node| self.is_open(node) && self.key(node) < bound)
    }

    /// Requests in flight at `node`, by whichever switch.
    pub fn load(self, node: NodeId) -> u32 {
        let long_lived = if self.long_lived { self.nodes.long_lived(node) } else { 0 };
        self.own_load(node).saturating_add(self.nodes.elsewhere(node)).saturating_add(long_lived)
    }

    /// Requests in flight at `node` that this dispatcher has sent there and that are not long-lived.
    pub(super) fn own_load(self, node: NodeId) -> u32 {
        match self.source.tape() {
            None => self.nodes.loads.load(node),
            Some(tape) => self.taped(tape).word(node.index()).load(),
        }
    }

    /// Whether `node` is of the group and takes its requests.
    #[inline]
    pub fn is_open(self, node: NodeId) -> bool {
        self.nodes.takes(node, self.group)
    }

    /// Whether `node` is of the group and is up or drains, so that it may keep the clients it has.
    pub(crate) fn keeps_clients(self, node: NodeId) -> bool {
        self.nodes.is_in(node, self.group)
            && matches!(self.nodes.state(node), NodeState::Draining | NodeState::Up)
    }

    /// Number of slots in use, removed nodes included: an upper bound of the slot numbers.
    #[inline]
    pub fn slots(self) -> usize {
        self.nodes.slots()
    }

    /// Number of the group's nodes that take requests.
    #[inline]
    pub fn open_count(self) -> usize {
        self.nodes.open_in(self.group)
    }

    /// Number of slots of the group, closed ones included and backups that stand by not.
    pub fn size(self) -> usize {
        self.nodes.view.load().pool(self.group).size()
    }

    /// Which of the group's slots, counted from 0, that of `node` is; `None` for a node outside the group.
    pub fn rank(self, node: NodeId) -> Option<usize> {
        self.nodes.view.load().pool(self.group).rank(node.index())
    }

    /// The name of `node`; empty for a slot never used.
    pub fn name(self, node: NodeId) -> Arc<str> {
        self.nodes.name(node)
    }

    /// What stands for `node` at every switch.
    pub(crate) fn identity(self, node: NodeId) -> u64 {
        self.nodes.identity(node)
    }

    /// The weight of `node`; 1 for a slot never used.
    pub fn weight(self, node: NodeId) -> Weight {
        self.nodes.weight(node)
    }

    /// Sum of the weights of the group's nodes that take requests, 1000 = 1.0.
    pub fn weight_sum(self) -> u64 {
        self.nodes.weight_sum(self.group)
    }

    /// Requests in flight at the group's nodes, by whichever switch. In the group of all: those admitted and not ended, O(1) however many groups
    /// there are; in another one the loads of its open nodes are added up, O(members), since they may serve other groups too.
    pub fn outstanding_count(self) -> u32 {
        if !self.sees_all() {
            let view = self.nodes.view.load();
            let open = view.pool(self.group).from(0).map(slot).filter(|node| self.nodes.is_open(*node));
            return open.map(|node| self.load(node)).sum();
        }
        let live = || self.nodes.outstanding_total();
        let own = match self.source.tape() {
            None => live(),
            Some(tape) => u32::try_from(tape.read(Read::Outstanding, || live().into())).unwrap_or(u32::MAX),
        };
        let long_lived = if self.long_lived { self.nodes.long_lived_total() } else { 0 };
        own.saturating_add(self.nodes.elsewhere_total()).saturating_add(long_lived)
    }

    /// Whether some open node has a key below `bound`. O(n/64) in the group of all, O(members) in another one.
    #[inline]
    pub fn any_below(self, bound: Key) -> bool {
        if self.long_lived {
            return self.any_below_counting(bound);
        }
        if !self.sees_all() {
            let view = self.nodes.view.load();
            return view.pool(self.group).from(0).any(|index| self.key(slot(index)) < bound);
        }
        match self.source.tape() {
            None => self.nodes.loads.any_below(bound),
            Some(tape) => self.taped(tape).any_below(bound),
        }
    }

    /// The least loaded open node; ties go to the first at or after `start`. O(n/64) in the group of all, O(members) in
    /// another one.
    #[inline]
    pub fn least(self, start: usize) -> Option<NodeId> {
        if !self.sees_all() || self.long_lived {
            return self.least_without(start, |_| false);
        }
        match self.source.tape() {
            None => self.nodes.loads.least(start),
            Some(tape) => self.taped(tape).least(start),
        }
    }

    /// The least loaded open node for which `skip` is false.
    #[inline]
    pub fn least_without(self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        if self.long_lived {
            return self.least_counting(start, skip);
        }
        if !self.sees_all() {
            let view = self.nodes.view.load();
            let members = view.pool(self.group).from(start);
            return match self.source.tape() {
                None => self.nodes.loads.least_of(members, Words::key_in_a_group, skip),
                Some(tape) => self.taped(tape).least_of(members, Words::key_in_a_group, skip),
            };
        }
        match self.source.tape() {
            None => self.nodes.loads.least_without(start, skip),
            Some(tape) => self.taped(tape).least_without(start, skip),
        }
    }

    /// The slot of the group at which `hash` falls; see [`Nodes::position`].
    pub fn position(self, hash: u64) -> usize {
        self.nodes.position(hash, self.group)
    }

    /// The open node of a hash that does not look at load: the one at [`Nodes::position`]; if that is closed, the
    /// hash is stepped on, so that only a closed node's targets move.
    pub fn hashed(self, hash: u64, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let view = self.nodes.view.load();
        let pool = view.pool(self.group);
        let usable = |node: &NodeId| self.is_open(*node) && !skip(*node);
        let mut step = hash;
        for _ in 0..16 {
            let node = slot(pool.position(step));
            if usable(&node) {
                return Some(node);
            }
            step = mix(step);
        }
        let used = self.slots();
        let start = pool.position(hash);
        (start..used).chain(0..start).map(slot).find(usable)
    }

    /// Where a target goes: to the least loaded node; among equally loaded ones to the first at or after the
    /// target's [`Nodes::position`], so that an idle cluster spreads by cache size and two front-ends agree without
    /// talking. If cache sizes differ, nodes within [`Placing::even`] of the least loaded count as equally loaded. Where
    /// there are other switches, loads are less certain, and [another rule](super::elsewhere) holds. A joining node that has had its share of new targets for now is passed over, unless all are.
    pub(crate) fn place(
        self,
        now: Time,
        target: TargetId,
        skip: impl Fn(NodeId) -> bool,
        placing: Placing,
    ) -> Option<NodeId> {
        let view = self.nodes.view.load();
        let pool = view.pool(self.group);
        let start = pool.position(target.0);
        let least = if placing.skips { self.least_without(start, &skip) } else { self.least(start) }?;
        let home = slot(start);
        let preferred = pool.has_widths() && self.is_open(home) && !skip(home);
        let within = || self.key(home) <= self.key(least).plus(placing.even);
        let first = match self.nodes.shared.apart() {
            Some(apart) => {
                let bound = self.key(least).plus_units(apart + 1).max(placing.even);
                self.agreed(target, bound, &view, &skip).unwrap_or(least)
            }
            None if preferred && within() => home,
            None => least,
        };
        if !self.is_joining(first) {
            return Some(first);
        }
        let mut joiners = lock(&self.nodes.joiners);
        // All routes share the joining nodes.
        Self { route: RouteId::DEFAULT, ..self }.visit(&mut joiners.visits);
        let resting = joiners.resting(now);
        let chosen = if resting.contains(&first) {
            let other = self.least_without(start, |node| skip(node) || resting.contains(&node));
            other.unwrap_or(first)
        } else {
            first
        };
        if placing.take {
            self.nodes.note_placement(&mut joiners, now, chosen);
        }
        Some(chosen)
    }

    fn is_joining(self, node: NodeId) -> bool {
        match self.source.tape() {
            None => self.nodes.loads.is_joining(node),
            Some(tape) => self.taped(tape).word(node.index()).is_joining(),
        }
    }

    /// The node's last report; `None` if it has made none since it joined, failed or drained last.
    pub fn report(self, node: NodeId) -> Option<Reported> {
        self.nodes.report(node)
    }

    /// The node's last report if it came within `age_max` of `now`.
    pub fn fresh_report(self, now: Time, node: NodeId, age_max: Duration) -> Option<LoadReport> {
        let reported = self.report(node)?;
        (reported.age(now) <= age_max).then_some(reported.report)
    }

    /// Changes whenever a report comes or goes, and whenever membership or a weight changes: what is derived from them
    /// and nothing else stays valid while this is the same.
    #[inline]
    pub fn reports_epoch(self) -> u64 {
        self.nodes.reports_epoch.load(Ordering::Acquire)
    }

    /// Changes whenever a node joins, leaves, opens or closes, or gets another weight, and after that is visible.
    #[inline]
    pub(crate) fn members_epoch(self) -> u64 {
        self.nodes.members_epoch.load(Ordering::Acquire)
    }

    /// The number of target losses so far; a server set made or checked at this epoch is valid as it stands.
    #[inline]
    pub fn epoch(self) -> u32 {
        self.nodes.epoch()
    }

    /// Whether `node` lost its targets after `epoch`; see [`Nodes::lost_since`].
    #[inline]
    pub fn lost_since(self, node: NodeId, epoch: u32) -> bool {
        self.nodes.lost_since(node, epoch)
    }

    /// Counts a request at `node`; gives the node's key before.
    #[inline]
    pub(crate) fn start(self, node: NodeId) -> Key {
        let word = match self.source.tape() {
            None => self.nodes.loads.count(node),
            Some(tape) => self.taped(tape).count(node),
        };
        let word = if self.sees_all() { word } else { word.in_a_group() };
        let key = word.key(self.nodes.elsewhere(node));
        if self.long_lived { self.with_long_lived(key, node) } else { key }
    }

    /// Takes back what [`Sight::start`] has counted. False if nothing was.
    #[must_use]
    pub(crate) fn end(self, node: NodeId) -> bool {
        match self.source.tape() {
            None => self.nodes.loads.sub(node),
            Some(tape) => self.taped(tape).sub(node),
        }
    }

    /// Counts a request among the admitted that nobody has asked about; not where a record is played, which counts none.
    pub(crate) fn enter_anyway(self) {
        if !self.source.is_played() {
            self.nodes.outstanding(self.group).enter_anyway();
        }
    }

    /// An admitted request has found no node: gives its place back, unless a record is played.
    pub(crate) fn leave(self) {
        if !self.source.is_played() {
            self.nodes.outstanding(self.group).leave();
        }
    }

    /// A value that requests or reports have taught a policy, as it is at the time of this decision.
    #[inline]
    pub(crate) fn learned(self, live: impl FnOnce() -> u64) -> u64 {
        self.read(Read::Learned, live)
    }

    /// A turn counter before it is passed on.
    #[inline]
    pub(crate) fn turn(self, live: impl FnOnce() -> u64) -> u64 {
        self.read(Read::Turn, live)
    }

    /// The answer of the admission gate: 0 enters, 1 full, 2 + ticket waits.
    #[inline]
    pub(crate) fn gate(self, live: impl FnOnce() -> u64) -> u64 {
        self.read(Read::Gate, live)
    }

    #[inline]
    fn read(self, kind: Read, live: impl FnOnce() -> u64) -> u64 {
        match self.source.tape() {
            None => live(),
            Some(tape) => tape.read(kind, live),
        }
    }

    /// Names a visit to state behind a lock, which is held; `visits` lies behind the same lock and is for this alone.
    #[inline]
    pub(crate) fn visit(self, visits: &mut Visits) {
        if let Some(tape) = self.source.tape() {
            tape.visit(Track { route: self.route, lane: visits.lane }, visits.count, visits.count + 1);
            visits.count += 1;
        }
    }

    /// Notes that lot number `number` was drawn.
    #[inline]
    pub(crate) fn drawn(self, number: u64) {
        self.counted(Lane::Lots, number, number + 1);
    }

    /// Notes that a policy's turn went from `before` to `after` in one step: its only turn, or the one of this number.
    #[inline]
    pub(crate) fn turned(self, turn: Option<u16>, before: u64, after: u64) {
        self.counted(turn.map_or(Lane::Turn, Lane::Own), before, after);
    }

    #[inline]
    fn counted(self, lane: Lane, before: u64, after: u64) {
        if let Some(tape) = self.source.tape() {
            tape.visit(Track { route: self.route, lane }, before, after);
        }
    }
}
