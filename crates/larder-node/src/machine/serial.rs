//! A modelled device that serves one job at a time: a disk or a processor.
//!
//! The device uses a virtual clock. A job starts when the job before it has ended, not when a timer has fired.
//! So the throughput of a busy device is the model's to the nanosecond. If the device was idle, the next job is
//! dated back by the lateness of the last wake-up. Its request would have come that much earlier.

use std::time::Duration;
use tokio::time::Instant;

/// Largest lateness that is compensated. A later wake-up means a stalled machine, not a coarse timer.
const LATE_MAX: Duration = Duration::from_millis(20);

/// A device that serves one job at a time: when it is free, and how long it has worked.
#[derive(Debug)]
pub(super) struct SerialDevice {
    free_at: Instant,
    late: Duration,
    /// Time of all accepted jobs, including those still to be done.
    taken: Duration,
    waiting: u32,
}

impl SerialDevice {
    pub(super) fn new(now: Instant) -> Self {
        Self { free_at: now, late: Duration::ZERO, taken: Duration::ZERO, waiting: 0 }
    }

    /// Queues a job of length `time`, and returns the time at which it ends.
    pub(super) fn enqueue(&mut self, now: Instant, time: Duration) -> Instant {
        let late = std::mem::take(&mut self.late);
        let asked_at = now.checked_sub(late).unwrap_or(now);
        let start = self.free_at.max(asked_at);
        // A time beyond the clock's range stands for a job that never ends.
        let end = start.checked_add(time).unwrap_or(start + Duration::from_secs(1 << 32));
        self.free_at = end;
        self.taken = self.taken.saturating_add(time);
        self.waiting += 1;
        end
    }

    /// Records that the wait for the job that ends at `end` was over at `now`; `now` is earlier if the waiter
    /// was dropped. The job is done nevertheless.
    pub(super) fn record_wakeup(&mut self, end: Instant, now: Instant) {
        self.waiting -= 1;
        // If another job is queued behind this one, the wake-up delayed nothing.
        if end == self.free_at {
            self.late = now.saturating_duration_since(end).min(LATE_MAX);
        }
    }

    /// Returns the busy time until `now`, including the completed part of the current job. `now` must not
    /// precede the arrival of any job. The device works without a pause until it is free, so its remaining work
    /// is the time until then.
    pub(super) fn busy(&self, now: Instant) -> Duration {
        self.taken.saturating_sub(self.free_at.saturating_duration_since(now))
    }

    /// Returns the number of jobs that are waited for, including the current one.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn jobs_run_one_at_a_time_in_order(jobs in prop::collection::vec((0..50_u64, 1..50_u64), 1..60)) {
            let origin = Instant::now();
            let mut serial = SerialDevice::new(origin);
            let (mut now, mut last_end) = (origin, origin);
            for (gap, time) in jobs {
                now += Duration::from_millis(gap);
                let time = Duration::from_millis(time);
                let end = serial.enqueue(now, time);
                prop_assert_eq!(end, last_end.max(now) + time);
                last_end = end;
            }
        }
    }

    #[test]
    fn a_late_wake_up_is_compensated_once() {
        let origin = Instant::now();
        let ms = Duration::from_millis;
        let mut serial = SerialDevice::new(origin);
        let end = serial.enqueue(origin, ms(10));
        serial.record_wakeup(end, end + ms(1));
        // The job was requested at 11.5 ms because the answer came 1 ms late. It starts at 10.5 ms.
        let end = serial.enqueue(origin + ms(11) + Duration::from_micros(500), ms(10));
        assert_eq!(end, origin + ms(20) + Duration::from_micros(500));
        let end = serial.enqueue(origin + ms(100), ms(10));
        assert_eq!(end, origin + ms(110));
        assert_eq!(serial.waiting(), 2, "only one job has ended");
        let busy_at = |at| serial.busy(origin + ms(at));
        assert_eq!(
            [busy_at(100), busy_at(104), busy_at(110), busy_at(500)],
            [ms(20), ms(24), ms(30), ms(30)]
        );
    }

    #[test]
    fn a_job_longer_than_time_itself_does_not_overflow() {
        let now = Instant::now();
        assert!(SerialDevice::new(now).enqueue(now, Duration::MAX) > now);
    }
}
