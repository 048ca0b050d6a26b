//! The thresholds T_low and T_high of `lard` and `lard-r`: fixed, or derived while serving (Pai et al., ASPLOS'98,
//! section 2.4).
//!
//! ```text
//! T_high = (T_low + D / R) / 2, above T_low            D: how much longer a request may take at one node than at another
//!                                                      R: mean service time
//! T_low:  the load from which on a node's busiest device is kept busy
//! ```
//!
//! The first rule is the paper's: loads differ by at most 2 T_high - T_low, and each request ahead costs R. The paper mentions
//! the second ("learned in a training phase from load reports") and does not specify it.
//!
//! *R, measured.* A request that took `elapsed` and found `load` requests at its node, including itself and by the node's
//! weight, is one sample `elapsed / load`. If requests queue, this is the cost of each of them; for a request alone it is the
//! service time. R is the mean of the samples, over all of them up to 1,024, and with weight 1/1024 each after that. A sample
//! counts with at most eight times the mean, so that a client that reads for an hour does not dominate. If slow clients take
//! most of the time, R is too large and T_high too low, which is the safe side. Before 64 samples T_high has its given value.
//!
//! *T_low, learned.* The training phase begins at the first report. Each report of a node is one sample: the load that
//! the dispatcher counts there, by the node's weight, and whether its busiest device was busy
//! ([`TrainingSettings::busy_permille`]). T_low is the load that separates busy from idle samples best, with the fewest
//! busy samples below it and idle samples at or above it; of equal loads the lowest. Loads are distinguished one by one
//! up to 31, and by eighths above. If there are fewer than 32 samples of either kind at the end of the phase, the phase
//! continues. The given value stays in force until then. The result is limited to [`TrainingSettings::min`] and
//! [`TrainingSettings::max`]. T_low is learned once.
//!
//! Learned values are not an input: decisions read them as one value through `ClusterView::learned`, so that a decision can be
//! replayed. With both thresholds fixed nothing is read. If another thread is taking a sample, the sample is dropped.

use super::{Choice, Reason};
use crate::id::NodeId;
use crate::nodes::load::Key;
use crate::nodes::{ClusterView, LoadReport};
use crate::range::{SettingsError, in_range, period};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// The largest possible threshold, in connections.
pub(crate) const THRESHOLD_MAX: u32 = 100_000;

/// The rules for T_low and T_high. Default: both are fixed by `t_low` and `t_high`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThresholdSettings {
    /// The rule for T_low.
    pub low: LowRule,
    /// The rule for T_high.
    pub high: HighRule,
}

/// The rule for T_low.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LowRule {
    /// T_low is `t_low`.
    #[default]
    Fixed,
    /// T_low is learned from the nodes' reports, and is `t_low` until then. Without reports it stays `t_low`.
    Learned(TrainingSettings),
}

/// The settings of the training phase that learns T_low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingSettings {
    /// The length of the training phase, from the first report. 1 ms to 1 h; default 10 min.
    pub length: Duration,
    /// The utilisation at which a device counts as busy, in 1/1000. 1 to 1000; default 900.
    pub busy_permille: u16,
    /// The lowest T_low that may be learned, in connections. 1 to `max`; default 4.
    pub min: u32,
    /// The highest T_low that may be learned, in connections. `min` to 99,999; default 1,000.
    pub max: u32,
}

impl Default for TrainingSettings {
    fn default() -> Self {
        Self { length: Duration::from_secs(600), busy_permille: 900, min: 4, max: 1_000 }
    }
}

/// The rule for T_high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HighRule {
    /// T_high is `t_high`, but at least T_low + 1.
    #[default]
    Fixed,
    /// T_high follows the delay rule.
    ByDelay {
        /// D: the additional time that a request may take at one node compared with another. 1 ms to 1 h.
        delay: Duration,
        /// R: the mean service time, above 0 and up to 1 h; `None` measures it.
        service: Option<Duration>,
    },
}

impl ThresholdSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        if let LowRule::Learned(training) = self.low {
            period("thresholds.training.length", training.length)?;
            let TrainingSettings { busy_permille: busy, min, max, .. } = training;
            let name = "thresholds.training.busy_permille";
            in_range(name, busy.into(), (1..=1000).contains(&busy), "1 to 1000")?;
            let ok = (1..=max).contains(&min);
            in_range("thresholds.training.min", min.into(), ok, "1 to thresholds.training.max")?;
            in_range("thresholds.training.max", max.into(), max < THRESHOLD_MAX, "at most 99999")?;
        }
        if let HighRule::ByDelay { delay, service } = self.high {
            period("thresholds.delay", delay)?;
            let service = service.unwrap_or(Duration::from_millis(1));
            let ns = u64::try_from(service.as_nanos()).unwrap_or(u64::MAX);
            let ok = (1..=3_600_000_000_000).contains(&ns);
            in_range("thresholds.service_ns", ns, ok, "above 0 ns, at most 1 h")?;
        }
        Ok(())
    }

    /// Returns whether a threshold is derived while serving.
    const fn learns(&self) -> bool {
        matches!(self.low, LowRule::Learned(_))
            || matches!(self.high, HighRule::ByDelay { service: None, .. })
    }

    /// Returns T_high by the rule, from T_low and R; `given` if R is unknown. Connections.
    fn high(&self, low: u32, service: Option<Duration>, given: u32) -> u32 {
        let HighRule::ByDelay { delay, service: fixed } = self.high else { return given.max(low + 1) };
        let Some(service) = fixed.or(service) else { return given.max(low + 1) };
        let ratio = delay.as_nanos() / service.as_nanos().max(1);
        let high = (u128::from(low) + ratio) / 2;
        u32::try_from(high).unwrap_or(u32::MAX).clamp(low + 1, THRESHOLD_MAX)
    }
}

/// T_low and T_high as load keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThresholdKeys {
    pub(super) low: Key,
    high: Key,
    high_twice: Key,
}

impl ThresholdKeys {
    const fn new(low: u32, high: u32) -> Self {
        Self { low: Key::of(low), high: Key::of(high), high_twice: Key::of(high.saturating_mul(2)) }
    }

    /// Counts a request at the node and returns the choice. Returns `None` and counts nothing if the node is
    /// overloaded.
    #[inline]
    pub(super) fn count_unless_overloaded(&self, node: NodeId, nodes: ClusterView<'_>) -> Option<Choice> {
        if self.overloaded(nodes.start(node), nodes) {
            let counted = nodes.end(node);
            debug_assert!(counted, "it was counted a moment ago");
            return None;
        }
        Some(Choice { node, reason: Reason::Local })
    }

    /// Returns whether a node with this key is overloaded.
    #[inline]
    pub(super) fn overloaded(&self, key: Key, nodes: ClusterView<'_>) -> bool {
        key > self.high && (key >= self.high_twice || nodes.any_below(self.low))
    }
}

/// The thresholds in force, and the learner that derives them.
#[derive(Debug)]
pub(super) struct Thresholds {
    given: ThresholdKeys,
    /// The initial thresholds in connections.
    start: (u32, u32),
    learner: Option<Box<ThresholdLearner>>,
}

impl Thresholds {
    /// Creates the thresholds from `t_low`, `t_high` and the rules.
    pub(super) fn new(low: u32, high: u32, rules: ThresholdSettings) -> Self {
        let start = rules.high(low, None, high);
        let learner = rules.learns().then(|| Box::new(ThresholdLearner::new(low, high, rules)));
        Self { given: ThresholdKeys::new(low, start), start: (low, start), learner }
    }

    /// Returns the thresholds for a decision.
    #[inline]
    pub(super) fn levels(&self, nodes: ClusterView<'_>) -> ThresholdKeys {
        match &self.learner {
            None => self.given,
            Some(learner) => learner.levels(nodes),
        }
    }

    /// Returns the current T_low and T_high in connections; not for decisions.
    pub(super) fn in_force(&self) -> (u32, u32) {
        self.learner.as_ref().map_or(self.start, |learner| unpack(learner.in_force.load(Ordering::Relaxed)))
    }

    /// Returns the learned state as numbers; empty if nothing is learned.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.learner.as_ref().map_or_else(Vec::new, |learner| learner.numbers())
    }

    /// Restores state that was learned by the same rules.
    pub(super) fn resume(&self, numbers: &[u64]) {
        if let Some(learner) = &self.learner {
            learner.resume(numbers);
        }
    }

    /// Samples a request that has ended.
    #[inline]
    pub(super) fn on_reply(&self, node: NodeId, elapsed: Duration, nodes: ClusterView<'_>) {
        if let Some(learner) = &self.learner {
            learner.on_reply(elapsed, nodes.key(node));
        }
    }

    /// Samples a node's report.
    #[inline]
    pub(super) fn on_report(&self, now: Time, node: NodeId, report: &LoadReport, nodes: ClusterView<'_>) {
        if let (Some(learner), Some(busy)) = (&self.learner, report.utilisation()) {
            learner.on_report(now, nodes.key(node), busy);
        }
    }
}

/// The number of samples of R before it is used.
const SERVICE_SAMPLES: u32 = 64;
/// The largest divisor of a sample's weight: a sample of R has at least the weight 1/1024.
const SERVICE_WINDOW: u32 = 1_024;
/// The largest value of a sample of R, in multiples of the mean.
const SERVICE_CUT: f64 = 8.0;
/// The smallest number of samples of either kind from which T_low is learned.
const LOAD_SAMPLES: u32 = 32;
/// The number of load groups: one per load below 32, eight per doubling up to 2^17.
const LOADS: usize = 32 + 12 * 8;

/// Derives thresholds while serving.
#[derive(Debug)]
struct ThresholdLearner {
    rules: ThresholdSettings,
    given_high: u32,
    /// T_low in the upper half, T_high in the lower.
    in_force: AtomicU64,
    state: Mutex<TrainingState>,
}

#[derive(Debug)]
struct TrainingState {
    low: u32,
    /// The end of the training phase; `None` before the first report.
    ends: Option<Time>,
    trained: bool,
    /// The numbers of idle and busy samples by load group.
    seen: Box<[[u32; 2]; LOADS]>,
    service_ns: f64,
    services: u32,
}

impl ThresholdLearner {
    fn new(low: u32, high: u32, rules: ThresholdSettings) -> Self {
        let state = TrainingState {
            low,
            ends: None,
            trained: matches!(rules.low, LowRule::Fixed),
            seen: Box::new([[0; 2]; LOADS]),
            service_ns: 0.0,
            services: 0,
        };
        let in_force = AtomicU64::new(pack(low, rules.high(low, None, high)));
        Self { rules, given_high: high, in_force, state: Mutex::new(state) }
    }

    fn levels(&self, nodes: ClusterView<'_>) -> ThresholdKeys {
        let (low, high) = unpack(nodes.learned(|| self.in_force.load(Ordering::Relaxed)));
        ThresholdKeys::new(low, high)
    }

    fn on_reply(&self, elapsed: Duration, load: Key) {
        if !matches!(self.rules.high, HighRule::ByDelay { service: None, .. }) || load == Key::CLOSED {
            return;
        }
        let Some(mut state) = self.state.try_lock() else { return };
        let connections = load.get().max(1) as f64 / Key::of(1).get() as f64;
        state.service(elapsed.as_nanos() as f64 / connections);
        if state.services >= SERVICE_SAMPLES && state.services.is_multiple_of(SERVICE_SAMPLES) {
            self.publish(&state);
        }
    }

    fn on_report(&self, now: Time, load: Key, busy_permille: u16) {
        let LowRule::Learned(training) = self.rules.low else { return };
        let Some(mut state) = self.state.try_lock() else { return };
        if state.trained || load == Key::CLOSED {
            return;
        }
        let ends = *state.ends.get_or_insert(now + training.length);
        let connections = u32::try_from(load.get() / Key::of(1).get()).unwrap_or(u32::MAX);
        let kind = usize::from(busy_permille >= training.busy_permille);
        let count = &mut state.seen[group(connections)][kind];
        *count = count.saturating_add(1);
        if now < ends {
            return;
        }
        if let Some(low) = state.best_split() {
            state.low = low.clamp(training.min, training.max);
            state.trained = true;
            self.publish(&state);
        }
    }

    /// Returns the state as numbers: T_low, the phase of the training (0: not begun, 1: in progress, 2: over), its
    /// end in nanoseconds, R in nanoseconds as the bits of a float, the number of samples of R, and the samples of
    /// the training.
    fn numbers(&self) -> Vec<u64> {
        let state = self.state.lock();
        let phase = if state.trained { 2 } else { u64::from(state.ends.is_some()) };
        let ends = state.ends.map_or(0, Time::as_nanos);
        let head = [state.low.into(), phase, ends, state.service_ns.to_bits(), state.services.into()];
        head.into_iter().chain(state.seen.as_flattened().iter().map(|count| u64::from(*count))).collect()
    }

    fn resume(&self, numbers: &[u64]) {
        let Some((&[low, phase, ends, service, services], seen)) = numbers.split_first_chunk::<5>() else {
            return;
        };
        let mut state = self.state.lock();
        let service_ns = f64::from_bits(service);
        if let (true, Ok(services)) = (service_ns.is_finite() && service_ns >= 0.0, u32::try_from(services)) {
            (state.service_ns, state.services) = (service_ns, services);
        }
        if let (LowRule::Learned(training), true) = (self.rules.low, seen.len() == 2 * LOADS) {
            if let (2, Ok(low)) = (phase, u32::try_from(low)) {
                (state.low, state.trained) = (low.clamp(training.min, training.max), true);
            }
            state.ends = (phase > 0).then(|| Time::from_nanos(ends));
            for (count, from) in state.seen.as_flattened_mut().iter_mut().zip(seen) {
                *count = u32::try_from(*from).unwrap_or(u32::MAX);
            }
        }
        self.publish(&state);
    }

    fn publish(&self, state: &TrainingState) {
        let known = state.services >= SERVICE_SAMPLES;
        let service = known.then(|| Duration::from_nanos(state.service_ns as u64));
        let high = self.rules.high(state.low, service, self.given_high);
        self.in_force.store(pack(state.low, high), Ordering::Relaxed);
    }
}

impl TrainingState {
    /// Adds one sample of R.
    fn service(&mut self, sample_ns: f64) {
        // The count itself is not limited, because every 64th sample publishes the result. Only its effect on the
        // mean is limited.
        self.services = self.services.wrapping_add(1).max(1);
        let cut = if self.services > SERVICE_SAMPLES { self.service_ns * SERVICE_CUT } else { f64::MAX };
        let share = f64::from(self.services.min(SERVICE_WINDOW));
        self.service_ns += (sample_ns.min(cut) - self.service_ns) / share;
    }

    /// Returns the load that separates idle from busy samples best; `None` if there are too few samples of either
    /// kind.
    fn best_split(&self) -> Option<u32> {
        let totals = self
            .seen
            .iter()
            .fold([0_u64; 2], |sums, [idle, busy]| [sums[0] + u64::from(*idle), sums[1] + u64::from(*busy)]);
        if totals.iter().any(|total| *total < u64::from(LOAD_SAMPLES)) {
            return None;
        }
        // With everything classified as busy, the idle samples are wrong. Each group that moves below the threshold
        // makes its idle samples right.
        let mut wrong = totals[0];
        let mut best = (wrong, 0);
        for (index, [idle, busy]) in self.seen.iter().enumerate() {
            wrong = wrong + u64::from(*busy) - u64::from(*idle);
            if wrong < best.0 {
                best = (wrong, index + 1);
            }
        }
        Some(floor_of(best.1))
    }
}

/// Returns the group of a load.
const fn group(load: u32) -> usize {
    if load < 32 {
        return load as usize;
    }
    let octave = load.ilog2();
    let eighth = (load >> (octave - 3)) & 7;
    let index = 32 + (octave as usize - 5) * 8 + eighth as usize;
    if index < LOADS { index } else { LOADS - 1 }
}

/// Returns the lowest load of a group.
const fn floor_of(index: usize) -> u32 {
    if index < 32 {
        return index as u32;
    }
    let (octave, eighth) = ((index - 32) / 8 + 5, (index - 32) % 8);
    (8 + eighth as u32) << (octave - 3)
}

const fn pack(low: u32, high: u32) -> u64 {
    (low as u64) << 32 | high as u64
}

const fn unpack(packed: u64) -> (u32, u32) {
    ((packed >> 32) as u32, packed as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Dispatcher, ReplyFeedback, Request, Settings};
    use crate::id::TargetId;
    use crate::nodes::NodeSpec;
    use crate::policy::PolicyKind;

    const BY_DELAY: HighRule = HighRule::ByDelay { delay: Duration::from_millis(525), service: None };

    fn learner(rules: ThresholdSettings) -> Thresholds {
        Thresholds::new(25, 65, rules)
    }

    #[test]
    fn delay_rule_matches_the_paper() {
        // D = R (2 T_high - T_low): 25 and 65 allow 105 requests of 5 ms each.
        let high =
            HighRule::ByDelay { delay: Duration::from_millis(525), service: Some(Duration::from_millis(5)) };
        let rules = ThresholdSettings { high, ..ThresholdSettings::default() };
        assert_eq!(rules.high(25, None, 1), 65);
        assert_eq!(rules.high(500, None, 1), 501, "never at or below T_low");
        assert!(!rules.learns(), "nothing is left to find out");
        let fixed = ThresholdSettings::default();
        assert_eq!((fixed.high(25, Some(Duration::from_nanos(1)), 65), fixed.high(80, None, 65)), (65, 81));
    }

    #[test]
    fn groups_of_loads_are_in_order_and_an_eighth_wide() {
        for load in 0..70_000 {
            let group = group(load);
            assert!(floor_of(group) <= load && (group + 1 == LOADS || load < floor_of(group + 1)), "{load}");
        }
        assert_eq!(group(u32::MAX), LOADS - 1);
    }

    #[test]
    fn r_is_the_cost_of_each_request_ahead() {
        let rules = ThresholdSettings { high: BY_DELAY, ..ThresholdSettings::default() };
        let thresholds = learner(rules);
        let learner = thresholds.learner.as_ref().expect("R is measured");
        assert_eq!(thresholds.in_force(), (25, 65), "as given until there are samples");
        for i in 0..1_280_u32 {
            let load = 1 + i % 40;
            learner.on_reply(Duration::from_millis(5) * load, Key::of(load));
        }
        assert_eq!(thresholds.in_force(), (25, 65), "(25 + 525 / 5) / 2");
        // A client that takes an hour counts as eight times the mean, once in a thousand.
        learner.on_reply(Duration::from_secs(3_600), Key::of(1));
        (0..63).for_each(|_| learner.on_reply(Duration::from_millis(5), Key::of(1)));
        let (_, high) = thresholds.in_force();
        assert!((64..=65).contains(&high), "{high}");
        // Twice as slow: half of D / R, once the old samples have faded.
        (0..64 * 160).for_each(|_| learner.on_reply(Duration::from_millis(10), Key::of(1)));
        assert_eq!(thresholds.in_force(), (25, (25 + 52) / 2));
    }

    #[test]
    fn t_low_separates_idle_from_busy() {
        let training = TrainingSettings { length: Duration::from_secs(60), ..TrainingSettings::default() };
        let rules = ThresholdSettings { low: LowRule::Learned(training), high: HighRule::Fixed };
        let thresholds = learner(rules);
        let learner = thresholds.learner.as_ref().expect("T_low is learned");
        let report = |second: u64, load: u32| {
            // Busy from 14 on, but for one sample in ten that is the opposite.
            let busy = (load >= 14) != second.is_multiple_of(10);
            learner.on_report(Time::from_secs(second), Key::of(load), if busy { 950 } else { 400 });
        };
        (5..65).for_each(|second| (0..30).for_each(|load| report(second, load)));
        assert_eq!(thresholds.in_force(), (25, 65), "the phase is not over");
        report(65, 3);
        assert_eq!(thresholds.in_force(), (14, 65));
        (0..500).for_each(|i| learner.on_report(Time::from_secs(70 + i), Key::of(3), 1000));
        assert_eq!(thresholds.in_force(), (14, 65), "it is learned once");
    }

    #[test]
    fn training_continues_until_both_kinds_were_sampled_and_bounds_hold() {
        let training =
            TrainingSettings { length: Duration::from_secs(1), min: 8, ..TrainingSettings::default() };
        let rules = ThresholdSettings { low: LowRule::Learned(training), high: HighRule::Fixed };
        let thresholds = learner(rules);
        let learner = thresholds.learner.as_ref().expect("T_low is learned");
        let report =
            |i: u64, load: u32, busy: u16| learner.on_report(Time::from_secs(i), Key::of(load), busy);
        (0..100).for_each(|i| report(i, 1, 100));
        assert_eq!(thresholds.in_force(), (25, 65), "no node was ever busy");
        (100..132).for_each(|i| report(i, 2, 1000));
        assert_eq!(thresholds.in_force(), (8, 65), "2, cut to the least allowed");
    }

    #[test]
    fn error_names_the_rule_out_of_range() {
        let low =
            |training| ThresholdSettings { low: LowRule::Learned(training), ..ThresholdSettings::default() };
        let high = |high| ThresholdSettings { high, ..ThresholdSettings::default() };
        let zero = Some(Duration::ZERO);
        for (rules, message) in [
            (low(TrainingSettings { min: 0, ..TrainingSettings::default() }), "thresholds.training.min = 0"),
            (
                low(TrainingSettings { max: 100_000, ..TrainingSettings::default() }),
                "thresholds.training.max = 100000",
            ),
            (
                low(TrainingSettings { busy_permille: 1001, ..TrainingSettings::default() }),
                "thresholds.training.busy_permille = 1001",
            ),
            (
                low(TrainingSettings { length: Duration::ZERO, ..TrainingSettings::default() }),
                "thresholds.training.length = 0",
            ),
            (high(HighRule::ByDelay { delay: Duration::ZERO, service: None }), "thresholds.delay = 0"),
            (
                high(HighRule::ByDelay { delay: Duration::from_secs(1), service: zero }),
                "thresholds.service_ns = 0",
            ),
        ] {
            let error = rules.validate().expect_err(message).to_string();
            assert!(error.starts_with(message), "{error}");
        }
        assert!(low(TrainingSettings::default()).validate().is_ok() && high(BY_DELAY).validate().is_ok());
    }

    #[test]
    fn lard_and_s_follow_learned_thresholds() {
        for policy in [PolicyKind::Lard, PolicyKind::LardR] {
            let settings = Settings {
                policy,
                admission: Admission::Derived,
                thresholds: ThresholdSettings { high: BY_DELAY, ..ThresholdSettings::default() },
                ..Settings::default()
            };
            let dispatcher = Dispatcher::new(settings, &["a", "b"].map(NodeSpec::named)).expect("in range");
            assert_eq!(dispatcher.admission_limit(), 65 + 25 - 1, "{policy}");
            let request = Request::new(TargetId(1));
            let elapsed = Duration::from_millis(15);
            for _ in 0..SERVICE_SAMPLES {
                let Arrival::Start(choice) = dispatcher.arrive(Time::ZERO, request) else {
                    panic!("there is room")
                };
                let served = ReplyFeedback { elapsed, first_byte: None, found: None };
                dispatcher.observe_reply(Time::ZERO, &request, choice.node, &served);
                dispatcher.finish(Time::ZERO, choice.node, &mut Vec::new());
            }
            // (25 + 525 / 15) / 2 = 30.
            assert_eq!(dispatcher.admission_limit(), 30 + 25 - 1, "{policy}");
            let nodes: Vec<u16> = (0..32)
                .map(|_| match dispatcher.arrive(Time::ZERO, request) {
                    Arrival::Start(choice) => choice.node.0,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert!(nodes[..31].iter().all(|node| *node == nodes[0]), "{policy}: up to T_high it stays");
            assert_ne!(nodes[31], nodes[0], "{policy}: 31 are above 30, and the other node is idle");
        }
    }
}
