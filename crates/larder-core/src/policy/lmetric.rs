//! `lmetric`: the product of locality and load (LMetric; Zhang et al., "Simple is Better: Multiplication May Be All You
//! Need for LLM Request Scheduling", arXiv:2603.15202, 2026).
//!
//! ```text
//! on request t:      work(t, n)  = 1 if n caches t, else M
//!                    score(t, n) = work(t, n) (load(n) + 1) / weight(n)
//!                    send to the node with the lowest score
//! ```
//!
//! The paper routes prompts of language models: new tokens to compute times (batch size + 1). Scaling one of the factors
//! changes no order, so there is nothing to tune. Only the abstract, summaries and ports of the paper (sglang pull request
//! 29574, dynamo pull request 11028) were available to us, not its full text.
//!
//! *Work.* A policy does not know sizes. As a prompt that is cached still costs a token, a cached target costs 1, the
//! delay of a hit. A target that is not cached costs M, measured as in [`super::lard_cost`]; a request then leaves its
//! node when that node has M times as many requests as the least loaded one. Work that other requests have left at a
//! node is not counted, because a policy does not learn which request ends.
//!
//! *Contents.* The mirror follows [cache events](crate::dispatch::CacheEvent). A target counts as cached from the decision
//! on, as the ports do with prefixes, so that the requests during a read do not read again elsewhere. Without cache
//! events a copy stays until the mirror is full.
//!
//! *Only some nodes are compared*: the nodes with a copy, and the least loaded node, whose score is the lowest of the
//! others if weights are equal. Ties go to a copy, of several to the lowest slot. A retry goes to the least loaded node
//! that was not tried.
//!
//! Parameters: `targets_max`, the largest number of mirrored copies. State: the mirror behind one lock, 29 bytes a copy
//! and more, and two histograms. Cost: O(copies of the target), and the search for the least loaded node.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::lard::retry;
use super::lard_cost::{CostSettings, MissCost, MissCostEstimator, UNLOADED};
use super::mirror::{CachedCopy, Mirror};
use super::{
    CacheEvent, CacheResult, Choice, LearnedState, Policy, Reason, ReplyFeedback, Request, TargetServers,
};
use crate::id::{NodeId, TargetId};
use crate::nodes::load::Key;
use crate::nodes::{ClusterView, PlacementOptions, VisitCounter};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::vec::Vec;

/// The description of `lmetric`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lmetric",
    "the node with the lowest product of the work that its cache leaves and of its load",
)
.mirroring();

/// The work of a cached target, in 1/1000.
const HIT_MILLI: u64 = 1_000;

/// The marker of a learned state that tells confirmed copies from expected ones.
const SIZED: u64 = 1;

#[derive(Debug)]
pub(super) struct LMetric {
    state: Mutex<LMetricState>,
    misses: MissCostEstimator,
    /// M until it is measured, in 1/1000.
    miss_milli: u64,
    /// The load from which a miss is not measured, because it has waited.
    idle: Key,
}

#[derive(Debug)]
struct LMetricState {
    mirror: Mirror,
    visits: VisitCounter,
}

impl LMetric {
    pub(super) fn new(common: &CommonSettings) -> Self {
        let CostSettings { idle, miss, .. } = CostSettings::default();
        let (MissCost::Fixed(units) | MissCost::Measured { default: units }) = miss;
        let state = LMetricState { mirror: Mirror::new(common.targets_max), visits: VisitCounter::default() };
        Self {
            state: Mutex::new(state),
            misses: MissCostEstimator::default(),
            miss_milli: u64::from(units) * 1_000,
            idle: Key::of(idle),
        }
    }

    fn decide(
        &self,
        state: &LMetricState,
        now: Time,
        target: TargetId,
        nodes: ClusterView<'_>,
        take: bool,
    ) -> Option<Choice> {
        let holders = state.mirror.of(target).filter(|copy| is_valid(copy, nodes)).map(|copy| copy.node);
        let Some((held, node)) = holders.map(|node| (score(node, HIT_MILLI, nodes), node)).min() else {
            let node = nodes.place(now, target, |_| false, PlacementOptions::relief(take))?;
            let lost = state.mirror.of(target).next().is_some();
            return Some(Choice { node, reason: if lost { Reason::Lost } else { Reason::First } });
        };
        let miss_milli = match nodes.learned(|| self.misses.milli()) {
            0 => self.miss_milli,
            milli => milli,
        };
        let is_better = |other| score(other, miss_milli, nodes) < held;
        let mut better = None;
        // Only a placement counts for the pace of a node that joins.
        let other = nodes.place_when(
            now,
            target,
            |_| false,
            PlacementOptions::relief(take),
            |other| *better.insert(is_better(other)),
        )?;
        if better.unwrap_or_else(|| is_better(other)) {
            return Some(Choice { node: other, reason: Reason::Replicate });
        }
        Some(Choice { node, reason: Reason::Local })
    }
}

/// Returns the score of a node with this work.
fn score(node: NodeId, work_milli: u64, nodes: ClusterView<'_>) -> u128 {
    let one = Key::of(1).get() * 1_000 / u64::from(nodes.weight(node).milli().max(1));
    u128::from(work_milli) * u128::from(nodes.key(node).get() + one)
}

/// Returns whether the node still has the contents it had when the copy was recorded.
fn is_valid(copy: &CachedCopy, nodes: ClusterView<'_>) -> bool {
    nodes.is_open(copy.node) && !nodes.lost_since(copy.node, copy.epoch)
}

impl Policy for LMetric {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let epoch = nodes.epoch();
        let choice = self.decide(&state, now, request.target, nodes, true)?;
        state.mirror.record_use(request.target, choice.node, epoch);
        Some(choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes);
        }
        self.decide(&self.state.lock(), now, request.target, nodes, false)
    }

    fn known(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<TargetServers> {
        let state = self.state.lock();
        let valid = state.mirror.of(target).filter(|copy| is_valid(copy, nodes));
        let mut servers: Vec<NodeId> = valid.map(|copy| copy.node).collect();
        servers.sort_unstable();
        (!servers.is_empty()).then_some(TargetServers { servers, changed: None })
    }

    fn cache_event(
        &self,
        _now: Time,
        node: NodeId,
        target: TargetId,
        event: CacheEvent,
        nodes: ClusterView<'_>,
    ) -> bool {
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let epoch = nodes.epoch();
        match event {
            CacheEvent::Stored => state.mirror.record_store(CachedCopy { target, node, epoch, size: 1 }),
            CacheEvent::Evicted => {
                state.mirror.remove(target, node);
            }
            // A copy that is only expected stays, because its miss is what stores it.
            CacheEvent::Gone if state.mirror.at(target, node).is_some_and(|copy| copy.size > 0) => {
                state.mirror.remove(target, node);
            }
            CacheEvent::Gone => {}
        }
        true
    }

    fn targets(&self) -> usize {
        self.state.lock().mirror.len()
    }

    /// Returns the copies as sets with one server, in the order of use; the time of a confirmed copy is 1 ns. The
    /// numbers are [`SIZED`] and the measurements of M.
    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let state = self.state.lock();
        let numbers = core::iter::once(SIZED).chain(self.misses.numbers()).collect();
        let mut saved = LearnedState { numbers, ..LearnedState::default() };
        for copy in state.mirror.oldest_first().filter(|copy| is_valid(copy, nodes)) {
            let size = Time::from_nanos(copy.size.into());
            saved.push((copy.target, size, true), core::iter::once(copy.node));
        }
        saved
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        let mut state = self.state.lock();
        let epoch = nodes.epoch();
        // Sets of another policy contain the nodes at which targets are expected.
        let sized = saved.numbers.first() == Some(&SIZED);
        for set in saved.sets() {
            let size = u32::from(sized && set.changed > Time::ZERO);
            for node in set.servers {
                state.mirror.record_store(CachedCopy { target: set.target, node: *node, epoch, size });
            }
        }
        if let Some((&SIZED, misses)) = saved.numbers.split_first() {
            self.misses.resume(misses);
        }
    }

    fn on_reply(
        &self,
        _now: Time,
        _request: &Request,
        node: NodeId,
        served: &ReplyFeedback,
        nodes: ClusterView<'_>,
    ) {
        let Some(found) = served.found else { return };
        let load = nodes.key(node);
        let counts = match found {
            CacheResult::Hit => load <= Key::of(UNLOADED),
            CacheResult::Miss => load < self.idle,
        };
        if counts {
            self.misses.sample(found, served.elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Decision, Dispatcher, Settings};
    use crate::nodes::{NodeSpec, Weight};
    use crate::policy::PolicyKind;
    use CacheEvent::{Evicted, Gone, Stored};
    use core::time::Duration;
    use proptest::prelude::*;

    fn dispatcher(weights: &[u32]) -> Dispatcher {
        let settings =
            Settings { policy: PolicyKind::Lmetric, admission: Admission::Unlimited, ..Settings::default() };
        let spec = |(i, weight): (usize, &u32)| NodeSpec {
            weight: Weight::from_milli(*weight).expect("in range"),
            ..NodeSpec::named(format!("n{i}"))
        };
        let specs: Vec<NodeSpec> = weights.iter().enumerate().map(spec).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    fn send(dispatcher: &Dispatcher, target: u64) -> Decision {
        match dispatcher.arrive(Time::ZERO, Request::new(TargetId(target))) {
            Arrival::Start(decision) => decision,
            other => panic!("expected a start, got {other:?}"),
        }
    }

    fn event(dispatcher: &Dispatcher, node: NodeId, target: u64, event: CacheEvent) {
        assert!(dispatcher.cache_event(Time::ZERO, node, TargetId(target), event));
    }

    /// Measures M as `miss`.
    fn measure(dispatcher: &Dispatcher, miss: u64) {
        for _ in 0..512 {
            for (found, us) in [(CacheResult::Hit, 1_000), (CacheResult::Miss, 1_000 * miss)] {
                let served = ReplyFeedback {
                    elapsed: Duration::from_micros(us),
                    first_byte: None,
                    found: Some(found),
                };
                dispatcher.observe_reply(Time::ZERO, &Request::new(TargetId(1)), NodeId(0), &served);
            }
        }
    }

    #[test]
    fn the_product_decides() {
        let dispatcher = dispatcher(&[1_000; 2]);
        measure(&dispatcher, 4);
        let first = send(&dispatcher, 7);
        assert_eq!(first.reason, Reason::First);
        event(&dispatcher, first.node, 7, Stored);
        // At the holder: 1 (load + 1). At the idle node: M (0 + 1), where M is 4 within a class of the histogram.
        let decisions: Vec<Decision> = (0..6).map(|_| send(&dispatcher, 7)).collect();
        let local = decisions.iter().take_while(|decision| decision.reason == Reason::Local).count();
        assert!((2..=4).contains(&local), "{decisions:?}");
        assert_eq!(decisions[local].reason, Reason::Replicate);
        assert_ne!(decisions[local].node, first.node);
        // Both have a copy now, and the less loaded one serves.
        assert!(decisions[local + 1].reason == Reason::Local && decisions[local + 1].node != first.node);
    }

    /// Hits say nothing about the contents of a node that joins.
    #[test]
    fn hits_do_not_warm_a_node_that_joins() {
        let settings = Settings {
            policy: PolicyKind::Lmetric,
            admission: Admission::Unlimited,
            join_targets_per_s: 1,
            join_warm_targets: 2,
            ..Settings::default()
        };
        let dispatcher =
            Dispatcher::new(settings, &[NodeSpec::named("n0")]).expect("the settings are in range");
        let start = |seconds: u64, target: u64| match dispatcher
            .arrive(Time::from_secs(seconds), Request::new(TargetId(target)))
        {
            Arrival::Start(decision) => decision.node,
            other => panic!("expected a start, got {other:?}"),
        };
        let arrive = |seconds: u64, target: u64| {
            dispatcher.finish(Time::from_secs(seconds), start(seconds, target), &mut Vec::new());
        };
        // A request in progress makes n1 the least loaded node.
        start(0, 7);
        event(&dispatcher, NodeId(0), 7, Stored);
        dispatcher.join(Time::ZERO, NodeSpec::named("n1"), &mut Vec::new()).expect("there is room");
        (0..10).for_each(|seconds| arrive(seconds, 7));
        assert!(dispatcher.nodes().rows()[1].joining);
        (10..20).for_each(|seconds| arrive(seconds, 100 + seconds));
        assert!(!dispatcher.nodes().rows()[1].joining);
    }

    #[test]
    fn the_mirror_follows_the_caches() {
        let dispatcher = dispatcher(&[1_000; 3]);
        let known = || {
            let known = dispatcher.explain(Time::ZERO, TargetId(7)).known;
            known.map_or_else(Vec::new, |known| known.servers)
        };
        let first = send(&dispatcher, 7).node;
        event(&dispatcher, first, 7, Gone);
        assert_eq!(known(), [first], "it is being read");
        event(&dispatcher, first, 7, Stored);
        event(&dispatcher, NodeId(2), 7, Stored);
        event(&dispatcher, first, 7, Gone);
        event(&dispatcher, NodeId(2), 7, Evicted);
        assert_eq!(known(), []);
        dispatcher.finish(Time::ZERO, first, &mut Vec::new());
        let second = send(&dispatcher, 7).node;
        dispatcher.fail(Time::ZERO, second, &mut Vec::new());
        assert_eq!(known(), [], "its copies are lost");
    }

    proptest! {
        /// The decision is the minimum of the score over all nodes, if weights are equal.
        #[test]
        fn no_node_has_a_lower_score(
            steps in prop::collection::vec((0_u64..8, 0_u16..5, 0_u8..6), 1..200),
            miss in 2_u64..60,
        ) {
            let dispatcher = dispatcher(&[1_000; 5]);
            measure(&dispatcher, miss);
            let (mut held, mut copies) = (Vec::new(), std::collections::BTreeSet::new());
            for (target, node, what) in steps {
                match what {
                    0 => {
                        event(&dispatcher, NodeId(node), target, Stored);
                        copies.insert((target, node));
                    }
                    1 => {
                        event(&dispatcher, NodeId(node), target, Evicted);
                        copies.remove(&(target, node));
                    }
                    2 if !held.is_empty() => {
                        dispatcher.finish(Time::ZERO, held.swap_remove(node as usize % held.len()), &mut Vec::new());
                    }
                    _ => {
                        let loads: Vec<u32> = (0..5).map(|n| dispatcher.nodes().load(NodeId(n))).collect();
                        let decision = send(&dispatcher, target);
                        let cached = |n: u16| copies.contains(&(target, n));
                        // The measured ratio is that of two classes, each of which is an eighth of a doubling.
                        let score = |n: u16, error: f64| {
                            let work = if cached(n) { 1.0 } else { miss as f64 * error };
                            work * f64::from(loads[usize::from(n)] + 1)
                        };
                        let chosen = score(decision.node.0, 0.85);
                        prop_assert!((0..5).all(|n| chosen <= score(n, 1.15) + 1e-9), "{decision:?} {loads:?}");
                        copies.insert((target, decision.node.0));
                        held.push(decision.node);
                    }
                }
            }
        }
    }
}
