//! A queue of jobs for a modelled device.

use super::serial::SerialDevice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A modelled device that serves one job at a time, in order of arrival.
#[derive(Debug)]
pub(super) struct DeviceQueue(Mutex<SerialDevice>);

impl DeviceQueue {
    pub(super) fn new() -> Self {
        Self(Mutex::new(SerialDevice::new(Instant::now())))
    }

    /// Waits until a job of length `time` is done. If the future is dropped, the device does the job
    /// nevertheless.
    pub(super) async fn use_for(&self, time: Duration) {
        let end = self.lock().enqueue(Instant::now(), time);
        let _waiting = QueueTicket { queue: self, end };
        sleep_until(end).await;
    }

    /// Waits until a job of length `time` is done in turns of length `turn`, alternating with other jobs. If
    /// the future is dropped, the remaining turns are not taken.
    pub(super) async fn use_in_turns(&self, time: Duration, turn: Duration) {
        let mut remaining = time;
        while !remaining.is_zero() {
            let next = remaining.min(turn);
            self.use_for(next).await;
            remaining -= next;
        }
    }

    pub(super) fn busy(&self) -> Duration {
        self.lock().busy(Instant::now())
    }

    pub(super) fn waiting(&self) -> u32 {
        self.lock().waiting()
    }

    fn lock(&self) -> MutexGuard<'_, SerialDevice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter for a job.
struct QueueTicket<'a> {
    queue: &'a DeviceQueue,
    end: Instant,
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.queue.lock().record_wakeup(self.end, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_short_job_waits_for_a_long_one_or_for_one_slice_of_it() {
        for (turn, most) in [(Duration::MAX, 1_002), (10 * MS, 22)] {
            let queue = DeviceQueue::new();
            let start = Instant::now();
            let long = queue.use_in_turns(1_000 * MS, turn);
            let short = async {
                tokio::time::sleep(MS).await;
                queue.use_for(MS).await;
                start.elapsed()
            };
            let ((), short) = tokio::join!(long, short);
            assert!(short <= most * MS, "{short:?}");
            assert!(start.elapsed() >= 1_001 * MS && start.elapsed() <= 1_003 * MS, "{:?}", start.elapsed());
            assert_eq!((queue.busy(), queue.waiting()), (1_001 * MS, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_job_leaves_the_queue() {
        let queue = DeviceQueue::new();
        let is_cancelled = tokio::time::timeout(MS, queue.use_for(50 * MS)).await;
        assert!(is_cancelled.is_err());
        assert_eq!(queue.waiting(), 0);
        let start = Instant::now();
        queue.use_for(MS).await;
        assert!(start.elapsed() >= 49 * MS, "it is done all the same");
    }
}
