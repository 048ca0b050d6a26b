//! The core-90 % set: the fewest most requested targets that take 90 % of the requests, and its change by the day.
//!
//! WARD (section 3.4) places files by yesterday's log. What that costs hangs on the requests that go to targets of
//! today's core which were not in yesterday's: at its site less than 3 % of a day's requests. A day is 24 hours from
//! the first request; a last day that ends before its 23rd hour is left out, and times that step back count into the
//! day at hand.

use serde::Serialize;

use super::locality::Ranking;

const DAY_NS: i64 = 86_400_000_000_000;
const LAST_DAY_MIN_NS: i64 = DAY_NS / 24 * 23;
/// Days that are followed; what comes later is left out of the day-by-day figures.
const DAYS_MAX: usize = 1_000;

/// The set over the whole trace, and how it changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Core90 {
    /// Targets in the set.
    pub targets: u64,
    /// Their share of all targets, 0 to 1.
    pub targets_share: f64,
    /// Their sizes together; `None` where the file states no sizes.
    pub bytes: Option<u64>,
    /// Their share of the working set, 0 to 1.
    pub working_set_share: Option<f64>,
    /// One entry a day from the second on; empty for traces of less than two days.
    pub days: Vec<DayChange>,
    /// Mean of the days' [`DayChange::new_share`]; `None` without days.
    pub new_share_mean: Option<f64>,
    /// Largest of the days' [`DayChange::new_share`]; `None` without days.
    pub new_share_max: Option<f64>,
}

/// How a day's core differs from that of the day before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DayChange {
    /// Number of the day, from 0 at the first request; days without requests are skipped.
    pub day: u64,
    /// The day's requests.
    pub requests: u64,
    /// Targets in the day's core.
    pub targets: u64,
    /// Those of them that were not in the core of the day before.
    pub new_targets: u64,
    /// Share of the day's requests that go to those, 0 to 1.
    pub new_share: f64,
}

pub(super) fn of(ranking: &Ranking, days: Days, sized: bool) -> Option<Core90> {
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

/// Follows the core day by day.
#[derive(Default)]
pub(super) struct Days {
    first_ns: Option<i64>,
    day: i64,
    last_ns: i64,
    /// The day's requests per target.
    counts: Vec<u32>,
    /// Per target, the number of the last closed day in whose core it was, from 1; 0 for none.
    core_of: Vec<u32>,
    closed: u32,
    changes: Vec<DayChange>,
}

impl Days {
    pub(super) fn add(&mut self, target: u32, time_ns: i64) {
        let first = *self.first_ns.get_or_insert(time_ns);
        let day = time_ns.saturating_sub(first) / DAY_NS;
        if day > self.day {
            self.close();
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

    /// Ends the last day.
    pub(super) fn finish(&mut self) {
        if self.last_ns - self.day * DAY_NS >= LAST_DAY_MIN_NS {
            self.close();
        }
    }

    fn close(&mut self) {
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
        let mut days = Days::default();
        // Day 0: target 0 takes all. Day 1: target 1 takes two thirds, 0 the rest. Day 2: as day 1.
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
    fn a_short_last_day_is_left_out() {
        let mut days = Days::default();
        for hour in [0, 23, 24, 30] {
            days.add(0, hour * HOUR_NS);
        }
        days.finish();
        assert!(days.changes.is_empty());
    }
}
