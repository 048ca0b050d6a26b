//! Division of a trace into days of 24 hours, counted from its first request.
//!
//! WARD (HPL-2001-2, section 3.4) serves the requests of a day by a table made from the previous day. A day
//! must therefore be a trace of its own.

use std::ops::Range;

use larder_core::{Bytes, Time};
use serde::Serialize;

use crate::trace::{Request, Target, Trace};

/// Length of a day in nanoseconds.
const DAY_NS: u64 = 86_400_000_000_000;
/// The last day is whole if its last request is in its 24th hour. In nanoseconds.
const LAST_DAY_MIN_NS: u64 = DAY_NS / 24 * 23;

/// A day with requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Day {
    /// Number of the day, from 0 at the first request of the trace. Days without requests are numbered, but
    /// have no entry.
    pub number: u64,
    /// The requests of the day: a range of [`Trace::requests`].
    pub requests: Range<usize>,
    /// Whether the day is whole. False for a last day that ends before its 24th hour, so that its figures are
    /// those of a part.
    pub is_whole: bool,
}

impl Trace {
    /// Returns the days with requests, in order. A trace without times is a single incomplete day.
    pub fn days(&self) -> Vec<Day> {
        let number = |request: &Request| request.time.as_nanos() / DAY_NS;
        let mut days = Vec::new();
        let mut begin = 0;
        for day in self.requests.chunk_by(|a, b| number(a) == number(b)) {
            let Some(last) = day.last() else { continue };
            let end = begin + day.len();
            let is_last = end == self.requests.len();
            let is_whole = !is_last || last.time.as_nanos() % DAY_NS >= LAST_DAY_MIN_NS;
            days.push(Day { number: number(last), requests: begin..end, is_whole });
            begin = end;
        }
        days
    }

    /// Returns the trace that a log of only these requests would be loaded as.
    ///
    /// It has only the targets of these requests. The size of a target is its largest reply among them. Times
    /// are counted from the first of these requests. Client numbers do not change.
    ///
    /// # Panics
    /// If the range exceeds [`Trace::requests`].
    pub fn part(&self, range: Range<usize>) -> Self {
        let part = &self.requests[range];
        let start = part.first().map_or(Time::from_nanos(0), |request| request.time).as_nanos();
        let mut numbers = vec![u32::MAX; self.targets.len()];
        let mut targets: Vec<Target> = Vec::new();
        let mut requests = Vec::with_capacity(part.len());
        for request in part {
            let number = &mut numbers[request.target as usize];
            if *number == u32::MAX {
                // A part has no more targets than the whole trace, whose numbers have 32 bits.
                *number = targets.len() as u32;
                let name = self.targets[request.target as usize].name.clone();
                targets.push(Target { name, size: Bytes::ZERO });
            }
            let target = &mut targets[*number as usize];
            target.size = target.size.max(request.size);
            let time = Time::from_nanos(request.time.as_nanos().saturating_sub(start));
            requests.push(Request { time, target: *number, ..*request });
        }
        let origin_ns = self
            .origin_ns
            .filter(|_| !part.is_empty())
            .map(|origin| origin.saturating_add(i64::try_from(start).unwrap_or(i64::MAX)));
        Self { targets, requests, size_unit: self.size_unit, origin_ns }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SizeUnit;

    const HOUR_NS: u64 = DAY_NS / 24;

    /// Creates a trace of requests that are given as (hour, target, size).
    fn trace(asks: &[(u64, u32, u64)]) -> Trace {
        let first = asks.first().map_or(0, |ask| ask.0);
        let requests: Vec<_> = asks
            .iter()
            .map(|&(hour, target, size)| Request {
                time: Time::from_nanos((hour - first) * HOUR_NS),
                target,
                client: 1,
                size: Bytes(size),
            })
            .collect();
        let size = |target: u32| {
            requests.iter().filter(|r| r.target == target).map(|r| r.size).max().unwrap_or(Bytes::ZERO)
        };
        let targets = (0..4).map(|n| Target { name: format!("/{n}"), size: size(n) }).collect();
        let origin_ns = (!asks.is_empty()).then_some((first * HOUR_NS) as i64);
        Trace { targets, requests, size_unit: SizeUnit::Bytes, origin_ns }
    }

    #[test]
    fn days_are_counted_from_the_first_request() {
        let days = |asks: &[(u64, u32, u64)]| trace(asks).days();
        assert!(days(&[]).is_empty());
        let day = |number, requests, is_whole| Day { number, requests, is_whole };
        assert_eq!(
            days(&[(7, 0, 1), (30, 1, 1), (31, 0, 1), (90, 0, 1)]),
            [day(0, 0..2, true), day(1, 2..3, true), day(3, 3..4, false)]
        );
        assert_eq!(days(&[(0, 0, 1), (23, 0, 1)]), [day(0, 0..2, true)]);
        assert_eq!(days(&[(0, 0, 1), (22, 0, 1)]), [day(0, 0..2, false)]);
    }

    #[test]
    fn a_part_equals_a_load_of_its_lines() {
        let whole = trace(&[(10, 2, 5), (40, 1, 7), (41, 2, 3), (42, 1, 9)]);
        let part = whole.part(1..4);
        let target = |name: &str, size| Target { name: name.to_owned(), size: Bytes(size) };
        assert_eq!(part.targets, [target("/1", 9), target("/2", 3)]);
        assert_eq!(part.origin_ns, Some((40 * HOUR_NS) as i64));
        let asks: Vec<_> = part.requests.iter().map(|r| (r.time.as_nanos() / HOUR_NS, r.target)).collect();
        assert_eq!(asks, [(0, 0), (1, 1), (2, 0)]);
        assert_eq!(whole.part(2..2).origin_ns, None);
    }

    proptest! {
        #[test]
        fn days_partition_all_requests(hours in prop::collection::vec((0_u64..40, 0_u32..4), 0..60)) {
            let mut hour = 0;
            let asks: Vec<_> = hours.iter().map(|&(step, target)| { hour += step; (hour, target, 1) }).collect();
            let whole = trace(&asks);
            let days = whole.days();
            prop_assert!(days.is_sorted_by(|a, b| a.number < b.number && a.requests.end == b.requests.start));
            let parts: Vec<_> = days.iter().map(|day| whole.part(day.requests.clone())).collect();
            let names = |trace: &Trace| -> Vec<String> {
                trace.requests.iter().map(|r| trace.targets[r.target as usize].name.clone()).collect()
            };
            prop_assert_eq!(parts.iter().flat_map(names).collect::<Vec<_>>(), names(&whole));
        }
    }
}
