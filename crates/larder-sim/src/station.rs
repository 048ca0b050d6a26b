//! Something that serves one job after another, in the order in which they came: a processor, a disk, a network
//! interface.
//!
//! A job's service time is known when it comes, so its end is known at once: `end = max(now, free) + time`. Only the
//! first job in line is an event of the calendar.

use std::collections::VecDeque;

use larder_core::Time;

use crate::calendar::{Calendar, Key};

/// One server with its line of waiting jobs.
#[derive(Debug)]
pub(crate) struct Station {
    clock: usize,
    free_ns: u64,
    given_ns: u64,
    line: VecDeque<(Key, u32)>,
}

impl Station {
    /// An idle station that strikes with this clock of the calendar.
    pub(crate) fn new(clock: usize) -> Self {
        Self { clock, free_ns: 0, given_ns: 0, line: VecDeque::new() }
    }

    /// A job comes that takes `time_ns` of service.
    pub(crate) fn enqueue(&mut self, calendar: &mut Calendar, now: Time, time_ns: u64, seq: u64, job: u32) {
        let end = self.free_ns.max(now.as_nanos()).saturating_add(time_ns);
        self.free_ns = end;
        self.given_ns = self.given_ns.saturating_add(time_ns);
        let key = Key::new(Time::from_nanos(end), seq);
        if self.line.is_empty() {
            calendar.set(self.clock, key);
        }
        self.line.push_back((key, job));
    }

    /// The first job in line has ended.
    pub(crate) fn pop(&mut self, calendar: &mut Calendar) -> Option<u32> {
        let (_, job) = self.line.pop_front()?;
        calendar.set(self.clock, self.line.front().map_or(Key::NEVER, |(key, _)| *key));
        Some(job)
    }

    /// Nanoseconds of service given until `now`.
    pub(crate) fn busy_ns(&self, now: Time) -> u64 {
        self.given_ns - self.free_ns.saturating_sub(now.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_served_one_at_a_time_and_busy_time_is_what_has_passed() {
        let mut calendar = Calendar::new(1);
        let mut station = Station::new(0);
        station.enqueue(&mut calendar, Time::from_nanos(10), 5, 0, 7);
        station.enqueue(&mut calendar, Time::from_nanos(11), 5, 1, 8);
        assert_eq!(calendar.next().1.time(), Time::from_nanos(15));
        assert_eq!(station.busy_ns(Time::from_nanos(12)), 2);
        assert_eq!(station.pop(&mut calendar), Some(7));
        assert_eq!(calendar.next().1.time(), Time::from_nanos(20));
        assert_eq!(station.pop(&mut calendar), Some(8));
        assert_eq!((calendar.next().1, station.pop(&mut calendar)), (Key::NEVER, None));
        // Idle from 20 to 30.
        station.enqueue(&mut calendar, Time::from_nanos(30), 5, 2, 9);
        assert_eq!(station.busy_ns(Time::from_nanos(31)), 11);
    }
}
