//! What a policy sees of the nodes, and through what: every value that other threads change passes the tape, if one
//! runs.
//!
//! Membership (states, weights, cache sizes, losses) and what nodes report is the same for all decisions between two
//! changes, and is read as it stands. Loads, counts and turns change at any moment; they are read through the [`Tape`].

use super::load::Key;
use super::search::{Taped, Words};
use super::{LoadReport, Nodes, Placing, Reported, Weight, lock, mix, slot};
use crate::id::{NodeId, TargetId};
use crate::tape::{Lane, Read, Tape};
use crate::time::Time;
use core::time::Duration;

/// The nodes as one decision sees them.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    nodes: &'a Nodes,
    tape: Option<&'a Tape>,
}

impl<'a> Sight<'a> {
    /// The nodes, read live.
    pub fn live(nodes: &'a Nodes) -> Self {
        Self { nodes, tape: None }
    }

    /// The nodes, read through a tape if there is one.
    pub fn new(nodes: &'a Nodes, tape: Option<&'a Tape>) -> Self {
        Self { nodes, tape }
    }

    /// Whether no tape runs.
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.tape.is_none()
    }

    fn taped(self, tape: &'a Tape) -> Taped<'a> {
        Taped { loads: &self.nodes.loads, tape }
    }

    /// `load / weight` of `node`, comparable between nodes.
    #[inline]
    pub fn key(self, node: NodeId) -> Key {
        match self.tape {
            None => self.nodes.loads.key(node),
            Some(tape) => Words::key(&self.taped(tape), node.index()),
        }
    }

    /// Requests in flight at `node`.
    pub fn load(self, node: NodeId) -> u32 {
        match self.tape {
            None => self.nodes.loads.load(node),
            Some(tape) => self.taped(tape).word(node.index()).load(),
        }
    }

    /// Whether `node` takes requests.
    #[inline]
    pub fn is_open(self, node: NodeId) -> bool {
        self.nodes.is_open(node)
    }

    /// Number of slots in use, removed nodes included: an upper bound of the slot numbers.
    #[inline]
    pub fn slots(self) -> usize {
        self.nodes.slots()
    }

    /// Number of nodes that take requests.
    #[inline]
    pub fn open_count(self) -> usize {
        self.nodes.open_count()
    }

    /// The weight of `node`; 1 for a slot never used.
    pub fn weight(self, node: NodeId) -> Weight {
        self.nodes.weight(node)
    }

    /// Sum of the weights of the nodes that take requests, 1000 = 1.0.
    pub fn weight_sum(self) -> u64 {
        self.nodes.weight_sum()
    }

    /// Requests admitted and not ended.
    pub fn outstanding_count(self) -> u32 {
        let live = || self.nodes.outstanding.count();
        match self.tape {
            None => live(),
            Some(tape) => u32::try_from(tape.read(Read::Outstanding, || live().into())).unwrap_or(u32::MAX),
        }
    }

    /// Whether some open node has a key below `bound`.
    #[inline]
    pub fn any_below(self, bound: Key) -> bool {
        match self.tape {
            None => self.nodes.loads.any_below(bound),
            Some(tape) => self.taped(tape).any_below(bound),
        }
    }

    /// The least loaded open node; ties go to the first at or after `start`.
    #[inline]
    pub fn least(self, start: usize) -> Option<NodeId> {
        match self.tape {
            None => self.nodes.loads.least(start),
            Some(tape) => self.taped(tape).least(start),
        }
    }

    /// The least loaded open node for which `skip` is false.
    #[inline]
    pub fn least_without(self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        match self.tape {
            None => self.nodes.loads.least_without(start, skip),
            Some(tape) => self.taped(tape).least_without(start, skip),
        }
    }

    /// The slot at which `hash` falls; see [`Nodes::position`].
    pub fn position(self, hash: u64) -> usize {
        self.nodes.position(hash)
    }

    /// The open node of a hash that does not look at load: the one at [`Nodes::position`]; if that is closed, the
    /// hash is stepped on, so that only a closed node's targets move.
    pub fn hashed(self, hash: u64, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let view = self.nodes.view.load();
        let usable = |node: &NodeId| self.is_open(*node) && !skip(*node);
        let mut step = hash;
        for _ in 0..16 {
            let node = slot(view.position(step));
            if usable(&node) {
                return Some(node);
            }
            step = mix(step);
        }
        let used = self.slots();
        let start = view.position(hash);
        (start..used).chain(0..start).map(slot).find(usable)
    }

    /// Where a target goes: to the least loaded node; among equally loaded ones to the first at or after the
    /// target's [`Nodes::position`], so that an idle cluster spreads by cache size and two front-ends agree without
    /// talking. If cache sizes differ, nodes within [`Placing::even`] of the least loaded count as equally loaded. A
    /// joining node that has had its share of new targets for now is passed over, unless all are.
    pub(crate) fn place(
        self,
        now: Time,
        target: TargetId,
        skip: impl Fn(NodeId) -> bool,
        placing: Placing,
    ) -> Option<NodeId> {
        let view = self.nodes.view.load();
        let start = view.position(target.0);
        let least = if placing.skips { self.least_without(start, &skip) } else { self.least(start) }?;
        let home = slot(start);
        let preferred = view.has_widths() && self.is_open(home) && !skip(home);
        let within = || self.key(home) <= self.key(least).plus(placing.even);
        let first = if preferred && within() { home } else { least };
        if !self.is_joining(first) {
            return Some(first);
        }
        let mut joiners = lock(&self.nodes.joiners);
        self.visit(Lane::Joiners, &mut joiners.visits);
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
        match self.tape {
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
        match self.tape {
            None => self.nodes.loads.add(node),
            Some(tape) => self.taped(tape).add(node),
        }
    }

    /// Takes back what [`Sight::start`] has counted. False if nothing was.
    #[must_use]
    pub(crate) fn end(self, node: NodeId) -> bool {
        match self.tape {
            None => self.nodes.loads.sub(node),
            Some(tape) => self.taped(tape).sub(node),
        }
    }

    /// An admitted request has found no node: gives its place back, unless a tape is played.
    pub(crate) fn leave(self) {
        if self.tape.is_none_or(|tape| !tape.is_playing()) {
            self.nodes.outstanding.leave();
        }
    }

    /// Any other value that other threads change without a lock: all of a policy's own go through here.
    #[inline]
    pub(crate) fn read(self, kind: Read, live: impl FnOnce() -> u64) -> u64 {
        match self.tape {
            None => live(),
            Some(tape) => tape.read(kind, live),
        }
    }

    /// Notes a visit to state behind a lock, which is held; `visits` lies behind the same lock and is for this alone.
    #[inline]
    pub(crate) fn visit(self, lane: Lane, visits: &mut u64) {
        if let Some(tape) = self.tape {
            tape.visit(lane, *visits, *visits + 1);
            *visits += 1;
        }
    }

    /// Notes that an atomic counter went from `before` to `after` in one step.
    #[inline]
    pub(crate) fn counted(self, lane: Lane, before: u64, after: u64) {
        if let Some(tape) = self.tape {
            tape.visit(lane, before, after);
        }
    }
}
