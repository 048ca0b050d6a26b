//! What all clients of a run share: the place in the order, and the marks that bound the measured part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::plan::Job;

/// A request that was handed out to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) number: u64,
    /// When it is to be sent, from the start of the run.
    pub(crate) intended: Duration,
    /// Whether it counts, or only warms the caches.
    pub(crate) measured: bool,
}

/// Shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) job: Arc<Job>,
    start: Instant,
    next: AtomicU64,
    /// Nanoseconds from the start; `u64::MAX`: not yet.
    measured_from: AtomicU64,
    dry_from: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
}

impl Shared {
    pub(crate) fn new(job: Arc<Job>, start: Instant) -> Self {
        Self {
            job,
            start,
            next: AtomicU64::new(0),
            measured_from: AtomicU64::new(u64::MAX),
            dry_from: AtomicU64::new(u64::MAX),
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

    /// The next request of a closed loop: due at once. `None` when the run is over.
    pub(crate) fn claim_now(&self, now: Duration) -> Option<Claim> {
        let over = self.job.plan.duration.is_some_and(|duration| now >= duration);
        if over || self.job.plan.stop.stopped() {
            return self.dry(now);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.claim(number, now)
    }

    /// The next request of a schedule, which may be due in the future. `None` when the run is over.
    pub(crate) fn claim_due(&self, pacer: &crate::pacer::Pacer) -> Option<Claim> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let intended = pacer.at(number);
        let over = self.job.plan.duration.is_some_and(|duration| intended >= duration);
        if over || self.job.plan.stop.stopped() {
            return self.dry(self.now());
        }
        self.claim(number, intended)
    }

    fn claim(&self, number: u64, intended: Duration) -> Option<Claim> {
        if self.job.total.is_some_and(|total| number >= total) {
            return self.dry(self.now());
        }
        let plan = &self.job.plan;
        let measured = number >= plan.warmup_requests && intended >= plan.warmup_time;
        if measured && self.measured_from.load(Ordering::Relaxed) > nanos(intended) {
            self.measured_from.fetch_min(nanos(intended), Ordering::Relaxed);
        }
        Some(Claim { number, intended, measured })
    }

    fn dry(&self, now: Duration) -> Option<Claim> {
        self.dry_from.fetch_min(nanos(now), Ordering::Relaxed);
        None
    }

    /// When the first counted request was due; `None` if none was yet.
    pub(crate) fn measured_from(&self) -> Option<Duration> {
        mark(&self.measured_from)
    }

    /// When a client first found no request left; `None` if none did yet.
    pub(crate) fn dry_from(&self) -> Option<Duration> {
        mark(&self.dry_from)
    }

    /// Whether `at` lies between the two marks, where every client has work.
    pub(crate) fn while_busy(&self, at: Duration) -> bool {
        let at = nanos(at);
        at >= self.measured_from.load(Ordering::Relaxed) && at <= self.dry_from.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, ok: bool) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        if !ok {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests finished, and how many of them failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.finished.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn mark(cell: &AtomicU64) -> Option<Duration> {
    match cell.load(Ordering::Relaxed) {
        u64::MAX => None,
        nanos => Some(Duration::from_nanos(nanos)),
    }
}
