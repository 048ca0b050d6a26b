//! How well yesterday's table serves today: new targets by the day, and how the core moves (WARD, section 3.4).
//!
//! A target is new on the first day of the log that asks for it. A table from the day before does not name it, so it is
//! served where it arrives, as a target of the core would be. What that costs hangs on the share of the day's requests
//! that go to new targets, and on the share that goes to targets new in the core-90 % (see [`Core90`]); at the paper's
//! site the latter was below 3 %. The paper leaves its first week out as warm-up; here every day but the first has an
//! entry, so on a short log many targets are new because the log is.

use serde::Serialize;

use crate::stats::{Core90, Stats};
use crate::trace::Trace;

/// Days with an entry at most; the figures of later ones are left out.
const DAYS_MAX: usize = 1_000;

/// A day's targets and how many of them are new.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DayNew {
    /// Number of the day, from 0 at the first request.
    pub day: u64,
    /// The day's requests.
    pub requests: u64,
    /// Targets they ask for.
    pub targets: u64,
    /// Those of them that no day before asked for.
    pub new_targets: u64,
    /// Their share of the day's targets, 0 to 1.
    pub new_targets_share: f64,
    /// Share of the day's requests that go to them, 0 to 1.
    pub new_requests_share: f64,
}

/// How much a log changes from day to day.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stability {
    /// Whole days from the second on, at most 1,000; empty for logs of less than two days.
    pub days: Vec<DayNew>,
    /// Mean of the days' [`DayNew::new_requests_share`]; `None` without days.
    pub new_requests_share_mean: Option<f64>,
    /// The core-90 % and its change by the day; `None` for a log without requests.
    pub core90: Option<Core90>,
}

impl Stability {
    /// Of a log.
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
            days.push(DayNew {
                day: day.number,
                requests,
                targets,
                new_targets,
                new_targets_share: share(new_targets, targets),
                new_requests_share: share(new_requests, requests),
            });
        }
        // On the first day every target is new.
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
        // The fourth day is a part and has no entry.
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
