//! `peak-ewma`: the one of two nodes drawn at random that has the shorter expected wait, by observed latencies
//! (Finagle's and
//! linkerd's "Peak EWMA").
//!
//! ```text
//! a request took l at n:   e = e(n), as of its last observation, dt ago;  f = e^(-dt / tau)
//!                          e(n) = l                     if l > e: a peak counts at once
//!                          e(n) = f e + (1 - f) l       else: recovery is slow
//! on request:              a, b = two different random nodes
//!                          cost(n) = e(n) e^(-t / tau) (load(n) + 1) / weight(n),  t since n's last observation
//!                          send to the one with less cost; of equals to a
//! ```
//!
//! l is the time to the first byte of the reply, or to its last byte if the first is not known. The speed at which a
//! client reads does not depend on the node. The estimate of an unused node decays, so that the node is tried again.
//!
//! *Without a reply*: an attempt that failed, timed out or was cancelled has waited w, and a reply would have taken longer. If
//! w > e(n) e^(-t / tau), it counts as a peak, e(n) = w, else it does not count: it raises the estimate and never lowers it. The
//! estimate of a node that hangs therefore does not decay while requests are sent there. For an unknown node w counts from one
//! time step on, since a client that leaves at once has observed nothing.
//!
//! *Unknown*: a node without an observed latency since it joined or was last closed. It costs nothing while it has no
//! request, and more than every known node while it has one. It gets one request, and more when that is answered. Among
//! unknown nodes the load decides. Finagle does the same; linkerd assumes a second.
//!
//! Differences: time has steps of 2^20 ns, about a millisecond; of the observations within one step only peaks count. As in
//! [`super::p2c`] nodes are drawn by weight, and a weight of 2 halves the cost.
//!
//! The estimates are not recorded. A decision reads them through [`ClusterView::learned`], so that it can be replayed.
//!
//! Parameters: `ewma_decay` tau (10 s, the default of both), `seed`. State: 16 bytes per node, one counter, the list of nodes.
//! Cost: O(1), two exponentials; O(log n) with unequal weights.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::membership_cache::MembershipCache;
use super::sampling::{DrawnNode, RandomSequence, WeightedSampler};
use super::{Choice, LearnedState, Policy, Reason, ReplyFeedback, Request};
use crate::curve::exp_minus;
use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::range::{SettingsError, in_range};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// The description of `peak-ewma`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request(
    "peak-ewma",
    "of two nodes drawn at random the one that promises the shorter wait, by latencies",
);

/// The latency of a busy unknown node, in nanoseconds: longer than any real latency, and finite.
const UNKNOWN_NS: f64 = 1e18;

/// The time step is 2^20 ns.
const STEP_BITS: u32 = 20;

/// The parameters of `peak-ewma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakEwmaSettings {
    /// The time after which a latency counts 1/e. 100 ms to 1 h; default 10 s (Finagle, linkerd).
    pub decay: Duration,
}

impl PeakEwmaSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let ok = (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&self.decay);
        in_range("ewma_decay", u64::try_from(self.decay.as_millis()).unwrap_or(u64::MAX), ok, "100 ms to 1 h")
    }
}

impl Default for PeakEwmaSettings {
    fn default() -> Self {
        Self { decay: Duration::from_secs(10) }
    }
}

#[derive(Debug)]
pub(super) struct PeakEwma {
    random: RandomSequence,
    sampler: MembershipCache<WeightedSampler>,
    learned: Box<[LatencyEstimate]>,
    /// tau in time steps.
    decay_steps: f64,
}

impl PeakEwma {
    pub(super) fn new(common: &CommonSettings, settings: PeakEwmaSettings) -> Self {
        Self {
            random: RandomSequence::new(common.seed),
            sampler: MembershipCache::default(),
            learned: (0..common.nodes_max).map(|_| LatencyEstimate::default()).collect(),
            decay_steps: settings.decay.as_nanos() as f64 / f64::from(1_u32 << STEP_BITS),
        }
    }

    fn choose(&self, now: Time, number: u64, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let sampler = self.sampler.get_or_build(nodes, |members| WeightedSampler::new(&members));
        let usable = |node| nodes.is_open(node) && !request.exclude.contains(node);
        let (first, second) = sampler.draw_two(number, usable)?;
        let node = match second {
            Some(second) if self.cost(now, second, nodes) < self.cost(now, first, nodes) => second.node,
            _ => first.node,
        };
        Some(Choice { node, reason: request.reason_or(Reason::Quickest) })
    }

    fn cost(&self, now: Time, drawn: DrawnNode, nodes: ClusterView<'_>) -> f64 {
        let DrawnNode { node, weight_milli } = drawn;
        let load = nodes.load(node);
        let word = nodes.learned(|| self.estimate(now, node, nodes).map_or(0, f64::to_bits));
        let latency = match word {
            0 if load == 0 => 0.0,
            0 => UNKNOWN_NS,
            bits => f64::from_bits(bits),
        };
        latency * (f64::from(load) + 1.0) / f64::from(weight_milli)
    }

    /// Returns the expected latency of a node in nanoseconds, at least 1; `None` if it is unknown.
    fn estimate(&self, now: Time, node: NodeId, nodes: ClusterView<'_>) -> Option<f64> {
        let learned = self.learned.get(node.index())?;
        let known = Estimate::of(learned.word.load(Ordering::Acquire))?;
        if nodes.lost_since(node, learned.epoch.load(Ordering::Acquire)) {
            return None;
        }
        Some(known.expected(now, self.decay_steps))
    }

    fn observe(&self, now: Time, node: NodeId, latency: Duration, nodes: ClusterView<'_>) {
        self.learn(now, node, latency, nodes, |before, fresh| {
            let lower = before.filter(|before| fresh.latency_ns <= before.latency_ns);
            lower.map_or(fresh, |before| before.followed_by(fresh, now, self.decay_steps))
        });
    }

    /// Records that a reply would have taken at least `waited`.
    fn peak(&self, now: Time, node: NodeId, waited: Duration, nodes: ClusterView<'_>) {
        self.learn(now, node, waited, nodes, |before, fresh| {
            // Another thread may have raised the estimate since it was read.
            let expected = before.map_or(0.0, |before| before.expected(now, self.decay_steps));
            before.filter(|_| f64::from(fresh.latency_ns) <= expected).unwrap_or(fresh)
        });
    }

    /// Replaces the estimate by `next`, a function of the old estimate and a latency observed now. The old estimate
    /// is discarded if the node was closed since.
    fn learn(
        &self,
        now: Time,
        node: NodeId,
        latency: Duration,
        nodes: ClusterView<'_>,
        next: impl Fn(Option<Estimate>, Estimate) -> Estimate,
    ) {
        let Some(learned) = self.learned.get(node.index()).filter(|_| nodes.is_open(node)) else { return };
        let latency_ns = (latency.as_nanos() as f32).max(1.0);
        let fresh = Estimate { latency_ns, step: step(now) };
        let lost = nodes.lost_since(node, learned.epoch.swap(nodes.epoch(), Ordering::AcqRel));
        let follow = |word| Some(next(Estimate::of(word).filter(|_| !lost), fresh).word());
        // The closure always returns a word, so the update succeeds.
        let _ = learned.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, follow);
    }
}

impl Policy for PeakEwma {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(now, self.random.draw(nodes), request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.choose(now, self.random.peek(), request, nodes)
    }

    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let word = |(index, learned): (usize, &LatencyEstimate)| {
            let node = u16::try_from(index).ok().map(NodeId)?;
            let word = learned.word.load(Ordering::Acquire);
            let lost = nodes.lost_since(node, learned.epoch.load(Ordering::Acquire));
            (word != 0 && !lost).then(|| (node, vec![word]))
        };
        let per_node = self.learned.iter().enumerate().take(nodes.slots()).filter_map(word).collect();
        LearnedState { numbers: vec![self.random.count()], per_node, ..LearnedState::default() }
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        saved.numbers.iter().take(1).for_each(|drawn| self.random.resume(*drawn));
        for (node, of) in &saved.per_node {
            let known = of.first().copied().and_then(Estimate::of);
            let sane = known.filter(|known| known.latency_ns.is_finite() && known.latency_ns >= 1.0);
            if let (Some(estimate), Some(learned)) = (sane, self.learned.get(node.index())) {
                learned.epoch.store(nodes.epoch(), Ordering::Release);
                learned.word.store(estimate.word(), Ordering::Release);
            }
        }
    }

    fn on_failure(
        &self,
        now: Time,
        _request: &Request,
        node: NodeId,
        waited: Duration,
        nodes: ClusterView<'_>,
    ) {
        let expected = self.estimate(now, node, nodes);
        let least = expected.unwrap_or(f64::from(1_u32 << STEP_BITS));
        if waited.as_nanos() as f64 > least {
            self.peak(now, node, waited, nodes);
        }
    }

    fn on_reply(
        &self,
        now: Time,
        _request: &Request,
        node: NodeId,
        served: &ReplyFeedback,
        nodes: ClusterView<'_>,
    ) {
        self.observe(now, node, served.first_byte.unwrap_or(served.elapsed), nodes);
    }
}

/// The estimate of a node, and its epoch.
#[derive(Debug, Default)]
struct LatencyEstimate {
    /// An [`Estimate`] as bits; 0 if there is none.
    word: AtomicU64,
    /// The membership epoch of the last observation.
    epoch: AtomicU32,
}

/// A latency and the time of its last update, in one word, so that both change together.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// The latency in nanoseconds, at least 1.
    latency_ns: f32,
    step: u32,
}

impl Estimate {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    fn of(word: u64) -> Option<Self> {
        let latency_ns = f32::from_bits((word >> 32) as u32);
        (latency_ns > 0.0).then_some(Self { latency_ns, step: word as u32 })
    }

    fn word(self) -> u64 {
        u64::from(self.latency_ns.to_bits()) << 32 | u64::from(self.step)
    }

    /// Returns the number of steps since the last update. The step counter wraps around every 52 days: an older
    /// estimate may then count as a newer one, until the node serves a request.
    fn age(self, now: Time) -> f64 {
        let steps = step(now).wrapping_sub(self.step);
        // The clocks of threads may differ slightly.
        if steps > u32::MAX / 2 { 0.0 } else { f64::from(steps) }
    }

    /// Returns the decayed latency, at least 1.
    fn expected(self, now: Time, decay_steps: f64) -> f64 {
        (f64::from(self.latency_ns) * exp_minus(self.age(now) / decay_steps)).max(1.0)
    }

    fn followed_by(self, next: Self, now: Time, decay_steps: f64) -> Self {
        let kept = exp_minus(self.age(now) / decay_steps);
        let latency = kept * f64::from(self.latency_ns) + (1.0 - kept) * f64::from(next.latency_ns);
        Self { latency_ns: (latency as f32).max(1.0), ..next }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the count of steps comes round")]
const fn step(now: Time) -> u32 {
    (now.as_nanos() >> STEP_BITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Dispatcher, Settings};
    use crate::id::TargetId;
    use crate::nodes::{NodeSpec, NodeState};
    use crate::policy::PolicyKind;
    use crate::policy::policy_tests::started;

    const REQUEST: Request = Request::new(TargetId(7));

    fn dispatcher(names: &[&str]) -> Dispatcher {
        let settings =
            Settings { policy: PolicyKind::PeakEwma, admission: Admission::Unlimited, ..Settings::default() };
        let specs: Vec<NodeSpec> = names.iter().map(|name| NodeSpec::named(*name)).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    /// Records a reply of `node` after `ms`.
    fn took(dispatcher: &Dispatcher, now: Time, node: u16, ms: u64) {
        let served = ReplyFeedback {
            elapsed: Duration::from_secs(9),
            first_byte: Some(Duration::from_millis(ms)),
            found: None,
        };
        dispatcher.observe_reply(now, &REQUEST, NodeId(node), &served);
    }

    /// Returns the nodes of the next `count` requests, each of which ends before the next arrives.
    fn next(dispatcher: &Dispatcher, now: Time, count: usize) -> Vec<u16> {
        let one = || {
            let node = started(dispatcher.arrive(now, REQUEST));
            dispatcher.finish(now, node, &mut Vec::new());
            node.0
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn quicker_of_two_nodes_serves() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 30);
        took(&dispatcher, Time::ZERO, 1, 10);
        assert_eq!(next(&dispatcher, Time::ZERO, 20), [1; 20]);
        // Three at 10 ms wait as long as one at 30: cost 10 (2 + 1) is not less than 30, and ties are random.
        let held: Vec<u16> = (0..8).map(|_| started(dispatcher.arrive(Time::ZERO, REQUEST)).0).collect();
        let quick = held.iter().filter(|node| **node == 1).count();
        assert!((5..=7).contains(&quick), "{held:?}");
    }

    #[test]
    fn peak_counts_at_once_and_decays_slowly() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 10);
        took(&dispatcher, Time::ZERO, 1, 20);
        assert_eq!(next(&dispatcher, Time::ZERO, 9), [0; 9]);
        took(&dispatcher, Time::ZERO, 0, 200);
        assert_eq!(next(&dispatcher, Time::ZERO, 9), [1; 9]);
        // a, unused: 200 e^(-t/10); b is used all the time and stays at 20. They meet at t = 10 ln 10 = 23 s.
        for second in 1..=22 {
            let now = Time::from_secs(second);
            took(&dispatcher, now, 1, 20);
            assert_eq!(next(&dispatcher, now, 3), [1; 3], "second {second}");
        }
        took(&dispatcher, Time::from_secs(24), 1, 20);
        assert_eq!(next(&dispatcher, Time::from_secs(24), 9), [0; 9]);
        // e = f e + (1 - f) l with f = e^(-1): (1 - 1/e) of the way from 200 to 10 in 10 s.
        let policy = PeakEwma::new(&Settings::default().common(), PeakEwmaSettings::default());
        let estimate = Estimate { latency_ns: 200.0, step: 0 };
        let later = Time::from_secs(10);
        let after = estimate.followed_by(Estimate { latency_ns: 10.0, step: 0 }, later, policy.decay_steps);
        assert!((f64::from(after.latency_ns) - (10.0 + 190.0 / core::f64::consts::E)).abs() < 0.02);
    }

    /// Records an attempt at `node` that waited `ms` without a reply.
    fn gave_up(dispatcher: &Dispatcher, now: Time, node: u16, ms: u64) {
        dispatcher.observe_failure(now, &REQUEST, NodeId(node), Duration::from_millis(ms));
    }

    #[test]
    fn estimate_of_a_hanging_node_stays_high() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 10);
        took(&dispatcher, Time::ZERO, 1, 20);
        let mut hung = 0;
        // a hangs: its clients wait for two seconds and get no reply. b continues as before.
        for tenth in 0..1_200 {
            let now = Time::from_millis(tenth * 100);
            let node = next(&dispatcher, now, 1)[0];
            if node == 0 {
                hung += 1;
                gave_up(&dispatcher, now, 0, 2_000);
            } else {
                took(&dispatcher, now, 1, 20);
            }
        }
        // 2,000 e^(-t/10) falls to 20 after 46 s: once at the start, and then after 46 and 92 s.
        assert_eq!(hung, 3);
    }

    #[test]
    fn failed_wait_raises_and_never_lowers_the_estimate() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 100);
        took(&dispatcher, Time::ZERO, 1, 50);
        (0..50).for_each(|_| gave_up(&dispatcher, Time::ZERO, 0, 1));
        assert_eq!(next(&dispatcher, Time::ZERO, 9), [1; 9], "a failed quickly, and is no quicker for that");
        // After 10 s without requests a is at 37 ms. A wait of 40 is longer than that, though shorter than the 100
        // it had shown.
        let later = Time::from_secs(10);
        took(&dispatcher, later, 1, 39);
        gave_up(&dispatcher, later, 0, 40);
        assert_eq!(next(&dispatcher, later, 9), [0; 9], "b is at 43");
        gave_up(&dispatcher, later, 0, 60);
        assert_eq!(next(&dispatcher, later, 9), [1; 9]);
    }

    #[test]
    fn failed_wait_gives_an_unknown_node_an_estimate_after_one_step() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 10);
        assert_eq!(next(&dispatcher, Time::ZERO, 3), [1; 3], "it is unknown and idle");
        dispatcher.observe_failure(Time::ZERO, &REQUEST, NodeId(1), Duration::from_micros(900));
        assert_eq!(next(&dispatcher, Time::ZERO, 3), [1; 3], "the client did not wait");
        gave_up(&dispatcher, Time::ZERO, 1, 500);
        assert_eq!(next(&dispatcher, Time::ZERO, 9), [0; 9]);
    }

    #[test]
    fn unknown_node_gets_one_request_at_a_time() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 1);
        let held: Vec<u16> = (0..5).map(|_| started(dispatcher.arrive(Time::ZERO, REQUEST)).0).collect();
        assert_eq!(held, [1, 0, 0, 0, 0]);
        took(&dispatcher, Time::ZERO, 1, 1);
        assert_eq!(started(dispatcher.arrive(Time::ZERO, REQUEST)).0, 1, "it is quick, and has but one");
    }

    #[test]
    fn closed_node_becomes_unknown() {
        let dispatcher = dispatcher(&["a", "b"]);
        took(&dispatcher, Time::ZERO, 0, 1);
        took(&dispatcher, Time::ZERO, 1, 500);
        assert_eq!(next(&dispatcher, Time::ZERO, 5), [0; 5]);
        dispatcher.set_state(Time::ZERO, NodeId(1), NodeState::Down, &mut Vec::new());
        took(&dispatcher, Time::ZERO, 1, 500);
        dispatcher.recover(Time::ZERO, NodeId(1), &mut Vec::new());
        assert_eq!(next(&dispatcher, Time::ZERO, 1), [1], "what it did before says nothing");
        took(&dispatcher, Time::ZERO, 1, 500);
        assert_eq!(next(&dispatcher, Time::ZERO, 5), [0; 5]);
    }
}
