//! Something modelled that does one job at a time: a disk, a processor.
//!
//! It lives on a virtual clock. A job starts when the one before it has ended, not when a timer has noticed, so the
//! throughput of something busy is the model's to the nanosecond. When it was idle, the job that comes first is dated
//! back by as much as the last wake-up was late, since its request would have come that much earlier.

use std::time::Duration;
use tokio::time::Instant;

/// Most a late wake-up is made up for. A longer one is a stalled machine, not a coarse timer.
const LATE_MAX: Duration = Duration::from_millis(20);

/// Something that does one job at a time: when it is free, and how long it has worked.
#[derive(Debug)]
pub(super) struct Serial {
    free_at: Instant,
    late: Duration,
    /// Time of all jobs taken on, those still to do included.
    taken: Duration,
    waiting: u32,
}

impl Serial {
    pub(super) fn new(now: Instant) -> Self {
        Self { free_at: now, late: Duration::ZERO, taken: Duration::ZERO, waiting: 0 }
    }

    /// Queues a job of length `time` and returns when it ends.
    pub(super) fn enqueue(&mut self, now: Instant, time: Duration) -> Instant {
        let late = std::mem::take(&mut self.late);
        let asked_at = now.checked_sub(late).unwrap_or(now);
        let start = self.free_at.max(asked_at);
        // A time beyond the clock's range stands for one that never ends.
        let end = start.checked_add(time).unwrap_or(start + Duration::from_secs(1 << 32));
        self.free_at = end;
        self.taken = self.taken.saturating_add(time);
        self.waiting += 1;
        end
    }

    /// Notes that the wait for the job that ends at `end` was over at `now`; before its end, if nobody wants its
    /// result any more. The job is done all the same.
    pub(super) fn woke(&mut self, end: Instant, now: Instant) {
        self.waiting -= 1;
        // With another job queued behind this one, nothing waited for the wake-up.
        if end == self.free_at {
            self.late = now.saturating_duration_since(end).min(LATE_MAX);
        }
    }

    /// Time it has worked until `now`, which is not before any job was taken on, the job under way included as far as it is done. It works without a pause
    /// until it is free, so what it has still to do is the time until then.
    pub(super) fn busy(&self, now: Instant) -> Duration {
        self.taken.saturating_sub(self.free_at.saturating_duration_since(now))
    }

    /// Jobs waited for, the one under way included.
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
        fn jobs_are_done_one_at_a_time_in_order(jobs in prop::collection::vec((0..50_u64, 1..50_u64), 1..60)) {
            let origin = Instant::now();
            let mut serial = Serial::new(origin);
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
    fn a_late_wake_up_is_made_up_for_once() {
        let origin = Instant::now();
        let ms = Duration::from_millis;
        let mut serial = Serial::new(origin);
        let end = serial.enqueue(origin, ms(10));
        serial.woke(end, end + ms(1));
        // Asked for at 11.5 ms because the answer came 1 ms late: starts at 10.5 ms.
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
        assert!(Serial::new(now).enqueue(now, Duration::MAX) > now);
    }
}
