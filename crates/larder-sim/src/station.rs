//! A station: a single server with a queue in order of arrival. Processors, disks and network interfaces are
//! stations.
//!
//! The service time of a job is known when the job arrives, so its end is known at once: `end = max(now,
//! free) + time`. Only the first job of a queue is an event of the calendar. A job may also learn its service
//! time when it reaches the head of the queue. Such a job is enqueued with no time and then
//! [served](Station::serve), which delays the jobs behind it.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use larder_core::Time;

use crate::calendar::{Calendar, EventKey};

/// A single server with its queue of jobs.
#[derive(Debug)]
pub(crate) struct Station {
    timer: usize,
    free_ns: u64,
    served_ns: u64,
    /// The delay of the last wake-up, in ns, if no job was waiting then.
    late_ns: u64,
    /// The delay of the queued jobs beyond the ends that were computed at their arrival, in ns.
    shift_ns: u64,
    /// The queued jobs, each with its end without the shift.
    queue: VecDeque<(EventKey, u32)>,
}

/// The longest delay of a wake-up that is compensated, in ns, as in the live node.
const LATE_MAX_NS: u64 = 20_000_000;

impl Station {
    /// Creates an idle station that uses this timer of the calendar.
    pub(crate) fn new(timer: usize) -> Self {
        Self { timer, free_ns: 0, served_ns: 0, late_ns: 0, shift_ns: 0, queue: VecDeque::new() }
    }

    /// Enqueues a job that takes `time_ns` of service.
    pub(crate) fn enqueue(&mut self, calendar: &mut Calendar, now: Time, time_ns: u64, seq: u64, job: u32) {
        let end = self.free_ns.max(now.as_nanos()).saturating_add(time_ns);
        self.free_ns = end;
        self.served_ns = self.served_ns.saturating_add(time_ns);
        if self.queue.is_empty() {
            calendar.set(self.timer, EventKey::new(Time::from_nanos(end), seq));
        }
        self.queue.push_back((EventKey::new(Time::from_nanos(end - self.shift_ns), seq), job));
    }

    /// Adds `time_ns` of service whose end no job waits for.
    pub(crate) fn charge(&mut self, now: Time, time_ns: u64) {
        self.free_ns = self.free_ns.max(now.as_nanos()).saturating_add(time_ns);
        self.served_ns = self.served_ns.saturating_add(time_ns);
    }

    /// Serves a job for `time_ns` from `now` on. The job was enqueued without a time and has just been
    /// [popped](Station::pop). This must not be used on a station with late wake-ups.
    pub(crate) fn serve(&mut self, calendar: &mut Calendar, now: Time, time_ns: u64, seq: u64, job: u32) {
        self.free_ns = self.free_ns.max(now.as_nanos()).saturating_add(time_ns);
        self.served_ns = self.served_ns.saturating_add(time_ns);
        // The job goes before all jobs that follow, whose ends move along. The time added so far was served
        // before `now`.
        let before = now.as_nanos() - self.shift_ns;
        self.shift_ns = self.shift_ns.saturating_add(time_ns);
        self.queue.push_front((EventKey::new(Time::from_nanos(before), seq), job));
        calendar
            .set(self.timer, EventKey::new(Time::from_nanos(now.as_nanos().saturating_add(time_ns)), seq));
    }

    /// Enqueues a job that comes late because of a late timer: the job is dated back by that delay
    /// ([`Station::enqueue`]). Returns the job's end, which may lie before `now`.
    pub(crate) fn enqueue_late(
        &mut self,
        calendar: &mut Calendar,
        now: Time,
        time_ns: u64,
        seq: u64,
        job: u32,
    ) -> u64 {
        let late_ns = core::mem::take(&mut self.late_ns);
        let asked_ns = now.as_nanos().saturating_sub(late_ns);
        let end_ns = self.free_ns.max(asked_ns).saturating_add(time_ns);
        self.free_ns = end_ns;
        self.served_ns = self.served_ns.saturating_add(time_ns);
        let key = EventKey::new(Time::from_nanos(end_ns).max(now), seq);
        if self.queue.is_empty() {
            calendar.set(self.timer, key);
        }
        self.queue.push_back((key, job));
        end_ns
    }

    /// Records that the owner of a job noticed at `now` that the job had ended at `end_ns`.
    pub(crate) fn note_wake(&mut self, end_ns: u64, now: Time) {
        // If another job was queued behind, no job waited for the wake-up.
        if end_ns == self.free_ns {
            self.late_ns = now.as_nanos().saturating_sub(end_ns).min(LATE_MAX_NS);
        }
    }

    /// Removes the first job of the queue, which has ended.
    pub(crate) fn pop(&mut self, calendar: &mut Calendar) -> Option<u32> {
        let (_, job) = self.queue.pop_front()?;
        calendar
            .set(self.timer, self.queue.front().map_or(EventKey::NEVER, |(key, _)| key.later(self.shift_ns)));
        Some(job)
    }

    /// Returns the number of jobs that wait for service.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len().saturating_sub(1)
    }

    /// Returns the service given until `now`, in ns.
    pub(crate) fn busy_ns(&self, now: Time) -> u64 {
        self.served_ns - self.free_ns.saturating_sub(now.as_nanos())
    }
}

/// A pool of servers with one queue: each job goes to the server that is free first.
///
/// Service times are known when jobs arrive, so the queue is first come, first served.
#[derive(Debug)]
pub(crate) struct Pool {
    free_ns: BinaryHeap<Reverse<u64>>,
    served_ns: u64,
    /// Start times of the jobs that had to wait, in ns. They never decrease, because the queue is served in
    /// order.
    starts_ns: VecDeque<u64>,
}

impl Pool {
    /// Creates a pool of idle servers; at least one.
    pub(crate) fn new(servers: u32) -> Self {
        let free_ns = (0..servers.max(1)).map(|_| Reverse(0)).collect();
        Self { free_ns, served_ns: 0, starts_ns: VecDeque::new() }
    }

    /// Enqueues a job that takes `time_ns` of service and returns its end.
    pub(crate) fn enqueue(&mut self, now: Time, time_ns: u64) -> Time {
        let free = self.free_ns.pop().map_or(0, |Reverse(free)| free);
        let now_ns = now.as_nanos();
        while self.starts_ns.front().is_some_and(|begin| *begin <= now_ns) {
            self.starts_ns.pop_front();
        }
        if free > now_ns {
            self.starts_ns.push_back(free);
        }
        let end = free.max(now_ns).saturating_add(time_ns);
        self.free_ns.push(Reverse(end));
        self.served_ns = self.served_ns.saturating_add(time_ns);
        Time::from_nanos(end)
    }

    /// Returns the number of jobs that wait for a server at `now`.
    pub(crate) fn waiting(&self, now: Time) -> usize {
        let begun = self.starts_ns.partition_point(|begin| *begin <= now.as_nanos());
        self.starts_ns.len() - begun
    }

    /// Returns the service given until `now`, in ns, as the mean over the servers.
    pub(crate) fn busy_ns(&self, now: Time) -> u64 {
        let ahead = |end: &Reverse<u64>| end.0.saturating_sub(now.as_nanos());
        let planned: u64 = self.free_ns.iter().map(ahead).sum();
        self.served_ns.saturating_sub(planned) / self.free_ns.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_server_takes_the_next_job() {
        let (mut pool, at) = (Pool::new(2), Time::from_nanos);
        let ends: Vec<u64> = [10, 4, 5, 1].map(|ns| pool.enqueue(at(0), ns).as_nanos()).to_vec();
        assert_eq!(ends, [10, 4, 9, 10]);
        assert_eq!([0, 3, 4, 9].map(|ns| pool.waiting(at(ns))), [2, 2, 1, 0], "they begin at 4 and at 9");
        assert_eq!(pool.busy_ns(at(10)), 10);
        assert_eq!(pool.enqueue(at(20), 3), at(23));
        assert_eq!(pool.busy_ns(at(20)), 10);
    }

    #[test]
    fn a_late_wake_up_is_compensated_once() {
        let (mut calendar, mut station, at) = (Calendar::new(1), Station::new(0), Time::from_nanos);
        assert_eq!(station.enqueue_late(&mut calendar, at(0), 10, 0, 1), 10);
        assert_eq!(station.pop(&mut calendar), Some(1));
        station.note_wake(10, at(14));
        // The timer was 4 ns late: the job asked for at 15 is dated back to 11.
        assert_eq!(station.enqueue_late(&mut calendar, at(15), 10, 1, 2), 21);
        station.note_wake(10, at(16));
        assert_eq!(station.enqueue_late(&mut calendar, at(30), 10, 2, 3), 40);
    }

    #[test]
    fn a_job_with_a_late_service_time_keeps_its_turn() {
        let (mut calendar, mut station, at) = (Calendar::new(1), Station::new(0), Time::from_nanos);
        station.enqueue(&mut calendar, at(10), 5, 0, 7);
        station.enqueue(&mut calendar, at(11), 0, 1, 8);
        station.enqueue(&mut calendar, at(12), 2, 2, 9);
        assert_eq!(station.pop(&mut calendar), Some(7));
        assert_eq!((calendar.next().1.time(), station.pop(&mut calendar)), (at(15), Some(8)));
        station.serve(&mut calendar, at(15), 100, 3, 8);
        station.enqueue(&mut calendar, at(16), 0, 4, 6);
        assert_eq!(station.busy_ns(at(20)), 10);
        assert_eq!((calendar.next().1.time(), station.pop(&mut calendar)), (at(115), Some(8)));
        assert_eq!((calendar.next().1.time(), station.pop(&mut calendar)), (at(117), Some(9)));
        assert_eq!((calendar.next().1.time(), station.pop(&mut calendar)), (at(117), Some(6)));
        // The last job of the queue, after a pause.
        station.serve(&mut calendar, at(117), 3, 5, 6);
        assert_eq!((calendar.next().1.time(), station.pop(&mut calendar)), (at(120), Some(6)));
        assert_eq!(calendar.next().1, EventKey::NEVER);
        station.enqueue(&mut calendar, at(200), 4, 6, 5);
        assert_eq!(calendar.next().1.time(), at(204));
        assert_eq!(station.busy_ns(at(202)), 112);
    }

    #[test]
    fn charged_work_takes_its_time_in_the_queue() {
        let (mut calendar, mut station, at) = (Calendar::new(1), Station::new(0), Time::from_nanos);
        station.charge(at(10), 5);
        station.enqueue(&mut calendar, at(11), 5, 0, 7);
        assert_eq!(calendar.next().1.time(), at(20));
        station.charge(at(12), 100);
        assert_eq!((calendar.next().1.time(), station.pop(&mut calendar)), (at(20), Some(7)));
        assert_eq!((calendar.next().1, station.busy_ns(at(30))), (EventKey::NEVER, 20));
        station.enqueue(&mut calendar, at(30), 1, 1, 8);
        assert_eq!(calendar.next().1.time(), at(121));
    }

    #[test]
    fn jobs_are_served_one_at_a_time_and_busy_time_is_what_has_passed() {
        let mut calendar = Calendar::new(1);
        let mut station = Station::new(0);
        station.enqueue(&mut calendar, Time::from_nanos(10), 5, 0, 7);
        station.enqueue(&mut calendar, Time::from_nanos(11), 5, 1, 8);
        assert_eq!(calendar.next().1.time(), Time::from_nanos(15));
        assert_eq!(station.waiting(), 1, "the first is being served");
        assert_eq!(station.busy_ns(Time::from_nanos(12)), 2);
        assert_eq!(station.pop(&mut calendar), Some(7));
        assert_eq!(calendar.next().1.time(), Time::from_nanos(20));
        assert_eq!(station.pop(&mut calendar), Some(8));
        assert_eq!((calendar.next().1, station.pop(&mut calendar)), (EventKey::NEVER, None));
        // The station is idle from 20 to 30.
        station.enqueue(&mut calendar, Time::from_nanos(30), 5, 2, 9);
        assert_eq!(station.busy_ns(Time::from_nanos(31)), 11);
    }
}
