//! The core-90 % set and its change from day to day. The set is the smallest set of most requested targets
//! with at least 90 % of the requests.
//!
//! WARD (section 3.4) places files by the log of the previous day. The cost depends on the share of requests
//! for targets of today's core that were not in yesterday's core. At the site of the paper this share is
//! below 3 % per day. A day has 24 hours and is counted from the first request. A last day that ends before
//! its 24th hour is left out. If times decrease, the requests count for the current day.

use serde::Serialize;

use super::locality::RankedTargets;

/// Length of a day in nanoseconds.
const DAY_NS: i64 = 86_400_000_000_000;
/// The last day is whole if its last request is in its 24th hour. In nanoseconds.
const LAST_DAY_MIN_NS: i64 = DAY_NS / 24 * 23;
/// Largest number of days that are compared. Later days are left out of the daily figures.
const DAYS_MAX: usize = 1_000;

/// The core-90 % set of the whole trace, and its change from day to day.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Core90 {
    /// Number of targets in the set.
    pub targets: u64,
    /// Their share of all targets, 0 to 1.
    pub targets_share: f64,
    /// Total size of these targets; `None` if the file has no sizes.
    pub bytes: Option<u64>,
    /// Their share of the working set, 0 to 1.
    pub working_set_share: Option<f64>,
    /// One entry per day from the second day on. Empty for traces of less than two days.
    pub days: Vec<DayChange>,
    /// Mean of [`DayChange::new_share`] over the days; `None` without days.
    pub new_share_mean: Option<f64>,
    /// Maximum of [`DayChange::new_share`] over the days; `None` without days.
    pub new_share_max: Option<f64>,
}

/// The difference between the core of a day and that of the day before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DayChange {
    /// Number of the day, from 0 at the first request. Days without requests are skipped.
    pub day: u64,
    /// Number of requests of the day.
    pub requests: u64,
    /// Number of targets in the core of the day.
    pub targets: u64,
    /// Number of these targets that were not in the core of the day before.
    pub new_targets: u64,
    /// Share of the requests of the day for these new targets, 0 to 1.
    pub new_share: f64,
}

/// Returns the core-90 % set; `None` without requests.
pub(super) fn compute(ranking: &RankedTargets, days: CoreTracker, sized: bool) -> Option<Core90> {
    let whole = *ranking.coverage(sized).iter().find(|point| point.requests_permille == 900)?;
    let shares = || days.changes.iter().map(|day| day.new_share);
    let n = days.changes.len();
    Some(Core90 {
        targets: whole.targets,
        targets_share: whole.targets_share,
        bytes: whole.bytes,
        working_set_share: whole.working_set_share,
        new_share_mean: (n > 0).then(|| shares().sum::<f64>() / n as f64),
        new_share_max: shares().reduce(f64::max),
        days: days.changes,
    })
}

/// The counts of the current day, and the cores of the days before.
#[derive(Default)]
pub(super) struct CoreTracker {
    first_ns: Option<i64>,
    day: i64,
    /// Latest time since the first request, in nanoseconds.
    last_ns: i64,
    /// Number of requests per target in the current day.
    counts: Vec<u32>,
    /// For each target, the number of the last closed day whose core has it, from 1; 0 for none.
    core_of: Vec<u32>,
    /// Number of closed days.
    closed: u32,
    changes: Vec<DayChange>,
}

impl CoreTracker {
    /// Counts a request.
    pub(super) fn add(&mut self, target: u32, time_ns: i64) {
        let first = *self.first_ns.get_or_insert(time_ns);
        let day = time_ns.saturating_sub(first) / DAY_NS;
        if day > self.day {
            self.close_day();
            self.day = day;
        }
        self.last_ns = self.last_ns.max(time_ns.saturating_sub(first));
        if self.closed as usize > DAYS_MAX {
            return;
        }
        let index = target as usize;
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
            self.core_of.resize(index + 1, 0);
        }
        self.counts[index] = self.counts[index].saturating_add(1);
    }

    /// Ends the last day, if it is whole.
    pub(super) fn finish(&mut self) {
        if self.last_ns - self.day * DAY_NS >= LAST_DAY_MIN_NS {
            self.close_day();
        }
    }

    /// Closes the current day: determines its core, and compares it with the core of the day before.
    fn close_day(&mut self) {
        if self.closed as usize > DAYS_MAX {
            return;
        }
        let mut ranked: Vec<(u32, u32)> = (0_u32..)
            .zip(&mut self.counts)
            .map(|(target, count)| (std::mem::take(count), target))
            .filter(|&(count, _)| count > 0)
            .collect();
        ranked.sort_by_key(|&(count, target)| (std::cmp::Reverse(count), target));
        let requests: u64 = ranked.iter().map(|&(count, _)| u64::from(count)).sum();
        let before = self.closed;
        self.closed += 1;
        let mut change =
            DayChange { day: self.day.unsigned_abs(), requests, targets: 0, new_targets: 0, new_share: 0.0 };
        let (mut covered, mut new_requests) = (0, 0);
        for (count, target) in ranked {
            if covered * 10 >= requests * 9 {
                break;
            }
            covered += u64::from(count);
            change.targets += 1;
            let core_of = &mut self.core_of[target as usize];
            if *core_of != before {
                change.new_targets += 1;
                new_requests += u64::from(count);
            }
            *core_of = self.closed;
        }
        change.new_share = new_requests as f64 / requests.max(1) as f64;
        if before > 0 {
            self.changes.push(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i64 = DAY_NS / 24;

    #[test]
    fn a_day_is_compared_with_the_day_before() {
        let mut days = CoreTracker::default();
        // On day 0 target 0 has all requests. On day 1 target 1 has two thirds and target 0 has one third.
        // Day 2 is like day 1.
        days.add(0, 1_000);
        for hour in [25, 49, 71] {
            for target in [1, 1, 0] {
                days.add(target, 1_000 + hour * HOUR_NS);
            }
        }
        days.finish();
        let change = |day, requests, new_targets, new_share| DayChange {
            day,
            requests,
            targets: 2,
            new_targets,
            new_share,
        };
        assert_eq!(days.changes, [change(1, 3, 1, 2.0 / 3.0), change(2, 6, 0, 0.0)]);
    }

    #[test]
    fn a_short_last_day_is_omitted() {
        let mut days = CoreTracker::default();
        for hour in [0, 23, 24, 30] {
            days.add(0, hour * HOUR_NS);
        }
        days.finish();
        assert!(days.changes.is_empty());
    }
}
