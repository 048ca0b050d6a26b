//! The stability of a log from day to day: new targets of each day, and the change of the core (WARD, section
//! 3.4).
//!
//! A target is new on the first day with a request for it. The table of the day before does not contain it.
//! Therefore the receiving node serves it, like a target of the core. The cost depends on two shares of the
//! day's requests: those to new targets, and those to targets new in the core-90 % (see [`Core90`]). At the
//! site of the paper the second share was below 3 %.
//!
//! The paper omits its first week as warm-up. Here every day except the first has an entry. Therefore a short
//! log has many new targets.

use serde::Serialize;

use crate::stats::{Core90, Stats};
use crate::trace::Trace;

/// Maximum number of days with an entry. Later days are omitted.
const DAYS_MAX: usize = 1_000;

/// The requests and new targets of a day.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DailyNewTargets {
    /// Number of the day, from 0 at the first request.
    pub day: u64,
    /// Requests of the day.
    pub requests: u64,
    /// Targets with requests on this day.
    pub targets: u64,
    /// Targets among them without requests on earlier days.
    pub new_targets: u64,
    /// Share of the new targets among the day's targets, 0 to 1.
    pub new_targets_share: f64,
    /// Share of the day's requests that go to new targets, 0 to 1.
    pub new_requests_share: f64,
}

/// The change of a log from day to day.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stability {
    /// Whole days from the second, at most 1,000. The list is empty for logs of less than two days.
    pub days: Vec<DailyNewTargets>,
    /// Mean of [`DailyNewTargets::new_requests_share`] over the days, or `None` without days.
    pub new_requests_share_mean: Option<f64>,
    /// The core-90 % and its daily change, or `None` for a log without requests.
    pub core90: Option<Core90>,
}

impl Stability {
    /// Computes the stability of a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut known = vec![false; trace.targets.len()];
        let mut days = Vec::new();
        for day in trace.days().iter().filter(|day| day.is_whole).take(DAYS_MAX + 1) {
            let mut counts = vec![0_u64; trace.targets.len()];
            for request in &trace.requests[day.requests.clone()] {
                counts[request.target as usize] += 1;
            }
            let (mut targets, mut new_targets, mut new_requests) = (0_u64, 0_u64, 0_u64);
            for (count, known) in counts.iter().zip(&mut known).filter(|(count, _)| **count > 0) {
                targets += 1;
                if !std::mem::replace(known, true) {
                    new_targets += 1;
                    new_requests += count;
                }
            }
            let requests = day.requests.len() as u64;
            let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
            days.push(DailyNewTargets {
                day: day.number,
                requests,
                targets,
                new_targets,
                new_targets_share: share(new_targets, targets),
                new_requests_share: share(new_requests, requests),
            });
        }
        // All targets are new on the first day.
        days.drain(..days.len().min(1));
        let sum: f64 = days.iter().map(|day| day.new_requests_share).sum();
        let new_requests_share_mean = (!days.is_empty()).then(|| sum / days.len() as f64);
        Self { days, new_requests_share_mean, core90: Stats::of_trace(trace).core90 }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Bytes, Time};

    use super::*;
    use crate::{Request, SizeUnit, Target};

    #[test]
    fn a_target_is_new_once() {
        let hours = [(0, 0), (1, 1), (25, 0), (26, 2), (27, 2), (49, 2), (50, 1), (71, 0), (80, 3)];
        let requests = hours
            .iter()
            .map(|&(hour, target)| Request {
                time: Time::from_secs(hour * 3_600),
                target,
                client: 0,
                size: Bytes(1),
            })
            .collect();
        let targets = (0..4).map(|n| Target { name: format!("/{n}"), size: Bytes(1) }).collect();
        let trace = Trace { targets, requests, size_unit: SizeUnit::Bytes, origin_ns: Some(0) };
        let found = Stability::of(&trace);
        // The fourth day is not whole and has no entry.
        let days: Vec<_> = found.days.iter().map(|d| (d.day, d.requests, d.targets, d.new_targets)).collect();
        assert_eq!(days, [(1, 3, 2, 1), (2, 3, 3, 0)]);
        assert_eq!(found.days[0].new_requests_share, 2.0 / 3.0);
        assert_eq!(found.new_requests_share_mean, Some(1.0 / 3.0));
        assert_eq!(found.core90.map(|core| core.days.len()), Some(2));
    }

    #[test]
    fn a_log_of_one_day_has_no_days_to_compare() {
        let recipe = crate::synth::Recipe::zipf(50, 500, 0.8);
        let trace = crate::synth::generate(&recipe, 1, 1.0).expect("possible");
        let found = Stability::of(&trace);
        assert!(found.days.is_empty() && found.new_requests_share_mean.is_none());
    }
}
