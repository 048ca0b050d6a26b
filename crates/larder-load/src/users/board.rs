//! What all users of a run share: its clock, the marks of its window, and counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct Board {
    start: Instant,
    /// Nanoseconds from the start. Pages due from here on count; `u64::MAX`: not known yet.
    measured_from: AtomicU64,
    /// No page begins from here on; `u64::MAX`: not known yet.
    until: AtomicU64,
    next_visit: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    users: AtomicU64,
    users_max: AtomicU64,
    over: watch::Sender<bool>,
}

impl Board {
    pub(crate) fn new(start: Instant, measured_from: Duration, until: Option<Duration>) -> Self {
        Self {
            start,
            measured_from: AtomicU64::new(nanos(measured_from)),
            until: AtomicU64::new(until.map_or(u64::MAX, nanos)),
            next_visit: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            users: AtomicU64::new(0),
            users_max: AtomicU64::new(0),
            over: watch::Sender::new(false),
        }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Pages due from now on count, and none begins after `until`.
    pub(crate) fn measure(&self, from: Duration, until: Duration) {
        self.until.store(nanos(until), Ordering::Relaxed);
        self.measured_from.store(nanos(from), Ordering::Relaxed);
    }

    /// No page begins any more; those who pause leave. The window ends now at the latest.
    pub(crate) fn end(&self) {
        self.until.fetch_min(nanos(self.now()), Ordering::Relaxed);
        self.over.send_replace(true);
    }

    /// Becomes true when the run is over.
    pub(crate) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    pub(crate) fn measured_from(&self) -> Duration {
        Duration::from_nanos(self.measured_from.load(Ordering::Relaxed))
    }

    pub(crate) fn until(&self) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Relaxed))
    }

    /// Whether `at` lies in the window.
    pub(crate) fn in_window(&self, at: Duration) -> bool {
        at >= self.measured_from() && at < self.until()
    }

    /// The number of a visit that nobody has begun yet.
    pub(crate) fn claim_visit(&self) -> u64 {
        self.next_visit.fetch_add(1, Ordering::Relaxed)
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

    pub(crate) fn come(&self) {
        let users = self.users.fetch_add(1, Ordering::Relaxed) + 1;
        self.users_max.fetch_max(users, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Users there now.
    pub(crate) fn users(&self) -> u64 {
        self.users.load(Ordering::Relaxed)
    }

    /// Most users there at once.
    pub(crate) fn users_max(&self) -> u64 {
        self.users_max.load(Ordering::Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
