//! The load that each node last reported, as one number per node that decisions read without a lock.
//!
//! A policy computes a load from each report ([`Policy::on_report`](super::Policy::on_report)) and stores it here.
//! The load is *missing* if the node has lost its targets since (it failed, drained or left), or the report is too
//! old. Loads change only with reports, so they are the same for all decisions between two changes and are read
//! directly.
//!
//! Some nodes report only in the headers of replies. Such a node reports nothing until it gets a request. So that it
//! is not skipped forever, a search may treat it as the least loaded node while it is idle
//! ([`MissingLoadRule::Probe`]).
//!
//! The minimum of each block of 64 slots is stored, so that the search skips blocks that cannot contain the least
//! loaded node. Missing loads are marked in a bit set, which is rebuilt when the membership changes or a load may
//! have become too old. A minimum may belong to a load that has become missing since; this costs time but does not
//! change the result.

use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::sync::Mutex;
use crate::time::Time;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// The number of slots in a block that has a stored minimum.
const BLOCK: usize = 64;

/// The value of a missing load.
const MISSING: u32 = u32::MAX;

/// The rule for a node whose load is missing, in the search for the least loaded node.
#[derive(Clone, Copy, Debug)]
pub(super) enum MissingLoadRule {
    /// The node counts with this load.
    At(u32),
    /// The node counts as the least loaded of all if it has nothing in flight and its probe is not
    /// [deferred](Gauge::defer_probe). Otherwise it counts as the mean of the known loads: it is considered only if
    /// all of them are equal.
    Probe,
}

/// The loads by slot. Their unit is defined by the policy.
#[derive(Debug)]
pub(super) struct Gauge {
    slots: Box<[GaugeSlot]>,
    minima: Box<[AtomicU32]>,
    /// The missing loads, as bits by block. While `validity` holds, every missing load has its bit; a load that is
    /// known may have a bit too.
    missing: Box<[AtomicU64]>,
    validity: MissingValidity,
    age_max: Duration,
    writing: Mutex<()>,
}

/// The conditions under which the bits of missing loads are valid.
#[derive(Debug)]
struct MissingValidity {
    /// The membership epoch for which the bits were built.
    members: AtomicU64,
    /// The time at which the first load becomes too old.
    until: AtomicU64,
}

#[derive(Debug)]
struct GaugeSlot {
    /// The membership epoch at which the load was stored, in the upper half; the load in the lower half.
    word: AtomicU64,
    at: AtomicU64,
    /// The time before which the node is not probed again.
    no_probe_before: AtomicU64,
}

impl Gauge {
    /// Creates a gauge for `nodes_max` nodes, all of them missing. A load older than `age_max` is missing too.
    pub(super) fn new(nodes_max: u16, age_max: Duration) -> Self {
        let slot = |_| GaugeSlot {
            word: AtomicU64::new(MISSING.into()),
            at: AtomicU64::new(0),
            no_probe_before: AtomicU64::new(0),
        };
        let blocks = usize::from(nodes_max).div_ceil(BLOCK);
        Self {
            slots: (0..nodes_max).map(slot).collect(),
            minima: (0..blocks).map(|_| AtomicU32::new(MISSING)).collect(),
            missing: (0..blocks).map(|_| AtomicU64::new(u64::MAX)).collect(),
            validity: MissingValidity { members: AtomicU64::new(u64::MAX), until: AtomicU64::new(0) },
            age_max,
            writing: Mutex::new(()),
        }
    }

    /// Stores a node's load; `None` makes it missing.
    pub(super) fn put(&self, now: Time, node: NodeId, load: Option<u32>, nodes: ClusterView<'_>) {
        let Some(slot) = self.slots.get(node.index()) else { return };
        let _one = self.writing.lock();
        let load = load.map_or(MISSING, |load| load.min(MISSING - 1));
        slot.at.store(now.as_nanos(), Ordering::Relaxed);
        slot.word.store(u64::from(nodes.epoch()) << 32 | u64::from(load), Ordering::Release);
        let block = node.index() / BLOCK;
        let end = ((block + 1) * BLOCK).min(self.slots.len());
        let least = self.slots[block * BLOCK..end].iter().map(GaugeSlot::load).min();
        self.minima[block].store(least.unwrap_or(MISSING), Ordering::Release);
        let bit = 1 << (node.index() % BLOCK);
        if load == MISSING {
            self.missing[block].fetch_or(bit, Ordering::AcqRel);
        } else {
            self.validity.until.fetch_min((now + self.age_max).as_nanos(), Ordering::AcqRel);
            self.missing[block].fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Defers the next probe of a node until `until`, because the node was just chosen without a load.
    pub(super) fn defer_probe(&self, node: NodeId, until: Time) {
        if let Some(slot) = self.slots.get(node.index()) {
            slot.no_probe_before.store(until.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Returns the node's load; `None` if it is missing.
    #[inline]
    pub(super) fn get(&self, now: Time, node: NodeId, nodes: ClusterView<'_>) -> Option<u32> {
        let slot = self.slots.get(node.index())?;
        let word = slot.word.load(Ordering::Acquire);
        let (epoch, load) = ((word >> 32) as u32, word as u32);
        let at = Time::from_nanos(slot.at.load(Ordering::Relaxed));
        let holds = load != MISSING && now.since(at) <= self.age_max && !nodes.lost_since(node, epoch);
        holds.then_some(load)
    }

    /// Returns the time at which the node's load was last stored; `None` if it is missing.
    pub(super) fn put_at(&self, now: Time, node: NodeId, nodes: ClusterView<'_>) -> Option<Time> {
        self.get(now, node, nodes)?;
        self.slots.get(node.index()).map(|slot| Time::from_nanos(slot.at.load(Ordering::Relaxed)))
    }

    /// Returns whether some open node's load is known and below `bound`.
    pub(super) fn any_below(&self, now: Time, bound: u32, nodes: ClusterView<'_>) -> bool {
        let used = nodes.slots().min(self.slots.len());
        self.blocks_up_to(bound.saturating_sub(1)).any(|block| {
            let mut slots = (block * BLOCK..((block + 1) * BLOCK).min(used)).map(node_at);
            slots.any(|node| {
                self.get(now, node, nodes).is_some_and(|load| load < bound) && nodes.is_open(node)
            })
        })
    }

    /// Returns the open node with the lowest load for which `skip` is false. Among equal nodes it returns the one
    /// with the fewest requests in flight by its weight, then the first one at or after `start`. Reports are as old
    /// as their period, so many requests see the same loads; the second rule spreads requests that find equal loads.
    ///
    /// The search reads the blocks that can contain the node and the nodes whose load is missing; it reads all nodes
    /// if all known loads are equal. If no load is known, it returns the node with the fewest requests in flight.
    pub(super) fn least(
        &self,
        now: Time,
        start: usize,
        unknown: MissingLoadRule,
        nodes: ClusterView<'_>,
        skip: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let used = nodes.slots().min(self.slots.len());
        let start = if start < used { start } else { 0 };
        let usable = |node: NodeId| nodes.is_open(node) && !skip(node);
        let after = |node: NodeId| (node.index() + used - start) % used;
        if matches!(unknown, MissingLoadRule::Probe)
            && let Some(node) = self.probe_candidates(now, nodes, usable).min_by_key(|node| after(*node))
        {
            return Some(node);
        }
        let mut best: Option<(u32, _, usize, NodeId)> = None;
        for block in 0..self.minima.len().min(used.div_ceil(BLOCK)) {
            let least = self.minima[block].load(Ordering::Acquire);
            if least == MISSING || best.is_some_and(|best| least > best.0) {
                continue;
            }
            for node in (block * BLOCK..((block + 1) * BLOCK).min(used)).map(node_at) {
                let Some(load) = self.get(now, node, nodes) else { continue };
                if best.is_some_and(|best| load > best.0) || !usable(node) {
                    continue;
                }
                let found = (load, nodes.key(node), after(node), node);
                best = Some(best.map_or(found, |best| best.min(found)));
            }
        }
        let all = || (0..used).map(node_at);
        let Some((least, ..)) = best else {
            return nodes.least_without(start, skip);
        };
        let counts_as = match unknown {
            MissingLoadRule::At(load) => load,
            MissingLoadRule::Probe if all().any(|node| self.is_above(now, node, least, nodes)) => MISSING,
            MissingLoadRule::Probe => least,
        };
        if counts_as <= least {
            let missing = all().filter(|node| self.get(now, *node, nodes).is_none() && usable(*node));
            let found = missing.map(|node| (counts_as, nodes.key(node), after(node), node)).min();
            best = best.into_iter().chain(found).min();
        }
        best.map(|(.., node)| node)
    }

    /// Returns the usable nodes whose load is missing, that have nothing in flight, and whose probe is not deferred.
    fn probe_candidates(
        &self,
        now: Time,
        nodes: ClusterView<'_>,
        usable: impl Fn(NodeId) -> bool,
    ) -> impl Iterator<Item = NodeId> {
        let holds = self.validity.members.load(Ordering::Acquire) == nodes.members_epoch()
            && now.as_nanos() <= self.validity.until.load(Ordering::Acquire);
        if !holds {
            self.check(now, nodes);
        }
        let used = nodes.slots().min(self.slots.len());
        let blocks = self.missing.iter().take(used.div_ceil(BLOCK)).enumerate();
        let bits = blocks.flat_map(|(block, bits)| {
            let bits = bits.load(Ordering::Acquire);
            let next = |bits: &u64| Some(bits & (bits - 1)).filter(|rest| *rest > 0);
            core::iter::successors(Some(bits).filter(|bits| *bits > 0), next)
                .map(move |bits| block * BLOCK + bits.trailing_zeros() as usize)
        });
        let missing = bits.take_while(move |index| *index < used).map(node_at);
        let missing = missing.filter(move |node| usable(*node) && self.get(now, *node, nodes).is_none());
        missing.filter(move |node| {
            let no_probe_before =
                || self.slots[node.index()].no_probe_before.load(Ordering::Relaxed) > now.as_nanos();
            nodes.load(*node) == 0 && nodes.learned(|| no_probe_before().into()) == 0
        })
    }

    /// Rebuilds the bits of missing loads.
    #[cold]
    fn check(&self, now: Time, nodes: ClusterView<'_>) {
        let _one = self.writing.lock();
        let members = nodes.members_epoch();
        let mut until = u64::MAX;
        for (block, slots) in self.slots.chunks(BLOCK).enumerate() {
            let mut bits = 0;
            for (index, slot) in slots.iter().enumerate() {
                if self.get(now, node_at(block * BLOCK + index), nodes).is_some() {
                    let at = Time::from_nanos(slot.at.load(Ordering::Relaxed));
                    until = until.min((at + self.age_max).as_nanos());
                } else {
                    bits |= 1 << index;
                }
            }
            self.missing[block].store(bits, Ordering::Release);
        }
        self.validity.until.store(until, Ordering::Release);
        self.validity.members.store(members, Ordering::Release);
    }

    fn is_above(&self, now: Time, node: NodeId, bound: u32, nodes: ClusterView<'_>) -> bool {
        self.get(now, node, nodes).is_some_and(|load| load > bound) && nodes.is_open(node)
    }

    /// Returns the blocks that may contain a load of at most `bound`.
    fn blocks_up_to(&self, bound: u32) -> impl Iterator<Item = usize> {
        let minima = self.minima.iter().enumerate();
        minima.filter(move |(_, least)| least.load(Ordering::Acquire) <= bound).map(|(block, _)| block)
    }
}

impl GaugeSlot {
    fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire) as u32
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,534 slots")]
const fn node_at(index: usize) -> NodeId {
    NodeId(index as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RouteId;
    use crate::nodes::{GroupId, JoinPace, NodeSpec, NodeState, Nodes};
    use crate::read_source::ReadSource;
    use proptest::prelude::*;

    const AGE_MAX: Duration = Duration::from_secs(10);

    fn nodes(n: usize) -> Nodes {
        let nodes = Nodes::new(300, JoinPace { targets_per_s: 1, warm_targets: 0 });
        for i in 0..n {
            nodes
                .join(Time::ZERO, NodeSpec::named(format!("n{i}")), true, ReadSource::LIVE, |_| {})
                .expect("there is room");
        }
        nodes
    }

    fn view(nodes: &Nodes) -> ClusterView<'_> {
        ClusterView::of(nodes, ReadSource::LIVE, RouteId::DEFAULT, GroupId::ALL)
    }

    proptest! {
        /// The search agrees with a scan over all nodes that applies the rules literally.
        #[test]
        fn search_matches_scan(
            n in 1_usize..200,
            steps in prop::collection::vec((0_usize..200, 0_u8..9, 0_u32..6, 0_u64..20), 0..300),
            start in 0_usize..220,
            now in 0_u64..25,
            earlier in 0_u64..25,
            probes in any::<bool>(),
        ) {
            let nodes = nodes(n);
            let gauge = Gauge::new(300, AGE_MAX);
            let mut truth: Vec<Option<(u64, u32)>> = vec![None; n];
            for (node, what, load, at) in steps {
                let (index, node) = (node % n, node_at(node % n));
                match what {
                    0..=5 if nodes.is_open(node) => {
                        gauge.put(Time::from_secs(at), node, Some(load), view(&nodes));
                        truth[index] = Some((at, load));
                    }
                    6 => {
                        gauge.put(Time::from_secs(at), node, None, view(&nodes));
                        truth[index] = None;
                    }
                    7 => { view(&nodes).start(node); }
                    8 => {
                        let state = if nodes.is_open(node) { NodeState::Down } else { NodeState::Up };
                        nodes.set_state(node, state);
                        truth[index] = None;
                    }
                    _ => {}
                }
            }
            let (now, view) = (Time::from_secs(now), view(&nodes));
            let unknown = if probes { MissingLoadRule::Probe } else { MissingLoadRule::At(3) };
            // A search at another time leaves its bits behind.
            let _ = gauge.least(Time::from_secs(earlier), 0, unknown, view, |_| false);
            let known = |node: NodeId| {
                let fresh = |(at, _): &(u64, u32)| now.since(Time::from_secs(*at)) <= AGE_MAX;
                truth[node.index()].filter(fresh).map(|(_, load)| load)
            };
            let open: Vec<NodeId> = (0..n).map(node_at).filter(|node| nodes.is_open(*node)).collect();
            for node in &open {
                prop_assert_eq!(gauge.get(now, *node, view), known(*node));
            }
            let loads: Vec<u32> = open.iter().filter_map(|node| known(*node)).collect();
            let (least, most) = (loads.iter().min().copied(), loads.iter().max().copied());
            let stand_in = match (probes, least) {
                (true, Some(least)) if least == most.unwrap_or(least) => least,
                (true, Some(_)) => u32::MAX,
                (true, None) => 0,
                (false, _) => 3,
            };
            let from = if start < n { start } else { 0 };
            let probe = |node: NodeId| probes && known(node).is_none() && nodes.load(node) == 0;
            let rank = |node: &NodeId| {
                let after = (node.index() + n - from) % n;
                (!probe(*node), known(*node).unwrap_or(stand_in), nodes.key(*node), after)
            };
            let expected = open.iter().copied().min_by_key(rank);
            prop_assert_eq!(gauge.least(now, start, unknown, view, |_| false), expected);
            for bound in 0..7 {
                let below = loads.iter().any(|load| *load < bound);
                prop_assert_eq!(gauge.any_below(now, bound, view), below);
            }
        }
    }
}
