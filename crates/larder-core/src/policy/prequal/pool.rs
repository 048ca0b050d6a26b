//! The pool of probes of Prequal and its hot-cold rule, as [`super`] describes them. `prequal` of chains uses it too.

use crate::id::NodeId;
use crate::nodes::mix;
use crate::policy::membership_cache::scale;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The largest number of probes in the pool.
pub(super) const POOL_MAX: usize = 16;
/// The number of probes for each request.
const PROBES: usize = 3;
/// The number of probes below which a node is drawn at random.
const POOL_MIN: usize = 2;
/// The number of probes whose RIFs give the limit of hot ones.
pub(super) const RIFS: usize = 128;
/// The default of Q_RIF in 1/1000 (section 5 of the paper: 2^-0.25).
pub(crate) const RIF_QUANTILE_PERMILLE: u16 = 841;

/// A pool of probes. `A` is the age of a probe, as the caller counts it.
#[derive(Debug)]
pub(crate) struct ProbePool<A> {
    seed: u64,
    rif_quantile_permille: u16,
    /// The probes, the oldest first; at most one of each node.
    pub(super) probes: Vec<Probe<A>>,
    /// The RIFs of the last probes in their order, and sorted.
    pub(super) rifs: VecDeque<u64>,
    pub(super) sorted: Vec<u64>,
    /// The number of decisions, which numbers random draws and the turns of removals.
    pub(super) decisions: u64,
}

/// The load of a node at an earlier decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe<A> {
    pub(crate) node: NodeId,
    /// The requests in flight.
    pub(crate) rif: u64,
    pub(crate) latency: u64,
    /// The number of further uses.
    pub(crate) uses: u32,
    pub(crate) age: A,
}

impl<A> ProbePool<A> {
    pub(crate) const fn new(seed: u64, rif_quantile_permille: u16) -> Self {
        Self {
            seed,
            rif_quantile_permille,
            probes: Vec::new(),
            rifs: VecDeque::new(),
            sorted: Vec::new(),
            decisions: 0,
        }
    }

    /// Replaces the state by a saved one, with the probes in their order.
    pub(super) fn restore(&mut self, decisions: u64, rifs: &[u64], probes: impl Iterator<Item = Probe<A>>) {
        self.decisions = decisions;
        self.rifs = rifs.iter().copied().take(RIFS).collect();
        self.sorted = self.rifs.iter().copied().collect();
        self.sorted.sort_unstable();
        self.probes = probes.take(POOL_MAX).collect();
    }

    /// Returns the place and the node of the best probe that may be used. `None` with fewer than two valid probes.
    pub(crate) fn best(
        &self,
        is_valid: impl Fn(&Probe<A>) -> bool,
        may_use: impl Fn(NodeId) -> bool,
    ) -> Option<(usize, NodeId)> {
        let valid = || self.probes.iter().enumerate().filter(|(_, probe)| is_valid(probe));
        valid().nth(POOL_MIN - 1)?;
        let limit = self.hot_limit();
        let usable = valid().filter(|(_, probe)| may_use(probe.node));
        let (at, probe) = usable.min_by_key(|(at, probe)| (probe.badness(limit), *at))?;
        Some((at, probe.node))
    }

    /// Returns the place of the member from which a request without a probe looks for a node.
    pub(crate) fn draw_one(&self, members: usize) -> usize {
        scale(self.random(0), members as u64) as usize
    }

    /// Returns the places of up to three different members to probe, drawn at random.
    pub(crate) fn draw(&self, members: usize) -> core::iter::Take<core::array::IntoIter<usize, PROBES>> {
        let (mut drawn, mut sorted) = ([0; PROBES], [usize::MAX; PROBES]);
        let count = PROBES.min(members);
        for index in 0..count {
            // The draw is among the members that are left: each drawn one at or before it moves it on.
            let mut at = scale(self.random(2 + index as u64), (members - index) as u64) as usize;
            for earlier in &sorted[..index] {
                at += usize::from(*earlier <= at);
            }
            (drawn[index], sorted[index]) = (at, at);
            sorted[..=index].sort_unstable();
        }
        drawn.into_iter().take(count)
    }

    /// Returns b, the number of uses of the probes of this decision.
    pub(crate) fn uses(&self, members: usize) -> u32 {
        uses(members, self.random(1))
    }

    /// Adds a probe of one of this many members. It replaces the node's older probe.
    pub(crate) fn add(&mut self, probe: Probe<A>, members: usize) {
        if self.rifs.len() >= RIFS
            && let Some(oldest) = self.rifs.pop_front()
        {
            let at = self.sorted.partition_point(|rif| *rif < oldest);
            self.sorted.remove(at);
        }
        self.rifs.push_back(probe.rif);
        let at = self.sorted.partition_point(|rif| *rif < probe.rif);
        self.sorted.insert(at, probe.rif);
        self.probes.retain(|other| other.node != probe.node);
        if self.probes.len() >= POOL_MAX.min(members) {
            self.probes.remove(0);
        }
        self.probes.push(probe);
    }

    /// Counts a use of the probe at this place, by a request that adds `one` to the RIF.
    pub(crate) fn use_probe(&mut self, at: usize, one: u64) {
        let probe = &mut self.probes[at];
        probe.rif += one;
        probe.uses = probe.uses.saturating_sub(1);
        if probe.uses == 0 {
            self.probes.remove(at);
        }
    }

    /// Removes the probes that are not current, and then in turn the oldest and the worst one.
    pub(crate) fn remove_surplus(&mut self, is_current: impl Fn(&Probe<A>) -> bool) {
        self.probes.retain(is_current);
        let limit = self.hot_limit();
        let worst = || {
            let worst = self.probes.iter().enumerate().max_by_key(|(_, probe)| probe.badness(limit));
            worst.map_or(0, |(at, _)| at)
        };
        let at = if self.decisions.is_multiple_of(2) { 0 } else { worst() };
        if at < self.probes.len() {
            self.probes.remove(at);
        }
    }

    /// Ends a decision. The next one draws other random numbers.
    pub(crate) const fn end_decision(&mut self) {
        self.decisions += 1;
    }

    /// Returns the largest RIF of a cold probe.
    fn hot_limit(&self) -> u64 {
        let last = self.sorted.len().saturating_sub(1);
        let at = last * usize::from(self.rif_quantile_permille) / 1_000;
        self.sorted.get(at).copied().unwrap_or(u64::MAX)
    }

    /// Returns random number `index` of the current decision.
    const fn random(&self, index: u64) -> u64 {
        mix(self.seed ^ mix(self.decisions << 3 | index))
    }
}

impl<A> Probe<A> {
    /// Returns the rank of the probe: cold probes by latency, then hot ones by RIF.
    const fn badness(&self, limit: u64) -> (bool, u64, u64) {
        if self.rif <= limit { (false, self.latency, self.rif) } else { (true, self.rif, self.latency) }
    }
}

/// Returns b, the number of uses of a probe, for this number of nodes.
pub(super) fn uses(nodes: usize, random: u64) -> u32 {
    let (pool, nodes) = (POOL_MAX.min(nodes) as u64, nodes.max(1) as u64);
    // 2 / ((1 - m/n) 3 - 1), where both sides are multiplied by n.
    let gained = (nodes - pool) * PROBES as u64;
    let Some(surplus) = gained.checked_sub(nodes).filter(|surplus| *surplus > 0) else {
        return u32::MAX;
    };
    let (whole, rest) = (2 * nodes / surplus, 2 * nodes % surplus);
    (whole + u64::from(scale(random, surplus) < rest)).max(1) as u32
}
