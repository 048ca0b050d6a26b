//! State that all clients of a run share: the next request, the bounds of the measured part, and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::plan::CheckedPlan;

/// A request that was assigned to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledRequest {
    pub(crate) number: u64,
    /// Time at which it is due, from the start of the run.
    pub(crate) intended: Duration,
    /// Whether it is counted, or part of the warm-up.
    pub(crate) measured: bool,
}

/// Shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(crate) job: Arc<CheckedPlan>,
    start: Instant,
    next: AtomicU64,
    /// Due time of the first counted request, in nanoseconds from the start; `u64::MAX` before.
    measured_from: AtomicU64,
    /// Time when a client first found no request, in nanoseconds from the start; `u64::MAX` before.
    exhausted_at: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
}

impl RunState {
    pub(crate) fn new(job: Arc<CheckedPlan>, start: Instant) -> Self {
        Self {
            job,
            start,
            next: AtomicU64::new(0),
            measured_from: AtomicU64::new(u64::MAX),
            exhausted_at: AtomicU64::new(u64::MAX),
            finished: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Returns the next request of a closed loop, which is due at once. `None` when the run is over.
    pub(crate) fn next_now(&self, now: Duration) -> Option<ScheduledRequest> {
        let over = self.job.plan.duration.is_some_and(|duration| now >= duration);
        if over || self.job.plan.stop.is_stopped() {
            return self.exhaust(now);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.assign(number, now)
    }

    /// Returns the next request of a schedule, which may be due in the future. `None` when the run is over.
    pub(crate) fn next_scheduled(&self, pacer: &crate::pacer::Pacer) -> Option<ScheduledRequest> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let intended = pacer.at(number);
        let over = self.job.plan.duration.is_some_and(|duration| intended >= duration);
        if over || self.job.plan.stop.is_stopped() {
            return self.exhaust(self.now());
        }
        self.assign(number, intended)
    }

    fn assign(&self, number: u64, intended: Duration) -> Option<ScheduledRequest> {
        if self.job.total.is_some_and(|total| number >= total) {
            return self.exhaust(self.now());
        }
        let plan = &self.job.plan;
        let measured = number >= plan.warmup_requests && intended >= plan.warmup_time;
        if measured && self.measured_from.load(Ordering::Relaxed) > nanos(intended) {
            self.measured_from.fetch_min(nanos(intended), Ordering::Relaxed);
        }
        Some(ScheduledRequest { number, intended, measured })
    }

    /// Notes that no request is left. Returns `None`.
    fn exhaust(&self, now: Duration) -> Option<ScheduledRequest> {
        self.exhausted_at.fetch_min(nanos(now), Ordering::Relaxed);
        None
    }

    /// Time when the first counted request was due; `None` before.
    pub(crate) fn measured_from(&self) -> Option<Duration> {
        load_time(&self.measured_from)
    }

    /// Time when a client first found no request left; `None` before.
    pub(crate) fn exhausted_at(&self) -> Option<Duration> {
        load_time(&self.exhausted_at)
    }

    /// Whether `at` lies within the measured part and before the first client ran out of requests.
    pub(crate) fn while_busy(&self, at: Duration) -> bool {
        let at = nanos(at);
        at >= self.measured_from.load(Ordering::Relaxed) && at <= self.exhausted_at.load(Ordering::Relaxed)
    }

    /// Counts a finished request.
    pub(crate) fn count(&self, ok: bool) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        if !ok {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Numbers of finished requests and of failed requests.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.finished.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a time; `u64::MAX` stands for `None`.
fn load_time(cell: &AtomicU64) -> Option<Duration> {
    match cell.load(Ordering::Relaxed) {
        u64::MAX => None,
        nanos => Some(Duration::from_nanos(nanos)),
    }
}
