//! State that all users of a run share: the clock, the bounds of the measured window, and counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct UserRunState {
    start: Instant,
    /// Start of the window, in nanoseconds from the start of the run; `u64::MAX` if unknown. Pages due before are not counted.
    measured_from: AtomicU64,
    /// End of the window, in nanoseconds from the start of the run; `u64::MAX` if unknown. No page starts after it.
    until: AtomicU64,
    next_visit: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    users: AtomicU64,
    users_max: AtomicU64,
    over: watch::Sender<bool>,
}

impl UserRunState {
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

    /// Sets the bounds of the window.
    pub(crate) fn set_window(&self, from: Duration, until: Duration) {
        self.until.store(nanos(until), Ordering::Relaxed);
        self.measured_from.store(nanos(from), Ordering::Relaxed);
    }

    /// Ends the run: no further page starts, users who pause leave, and the window ends now at the latest.
    pub(crate) fn end(&self) {
        self.until.fetch_min(nanos(self.now()), Ordering::Relaxed);
        self.over.send_replace(true);
    }

    /// A receiver whose value becomes true when the run is over.
    pub(crate) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    pub(crate) fn measured_from(&self) -> Duration {
        Duration::from_nanos(self.measured_from.load(Ordering::Relaxed))
    }

    pub(crate) fn until(&self) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Relaxed))
    }

    /// Whether `at` lies within the window.
    pub(crate) fn in_window(&self, at: Duration) -> bool {
        at >= self.measured_from() && at < self.until()
    }

    /// Returns the number of the next visit.
    pub(crate) fn claim_visit(&self) -> u64 {
        self.next_visit.fetch_add(1, Ordering::Relaxed)
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

    pub(crate) fn user_arrived(&self) {
        let users = self.users.fetch_add(1, Ordering::Relaxed) + 1;
        self.users_max.fetch_max(users, Ordering::Relaxed);
    }

    pub(crate) fn user_left(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Current number of users.
    pub(crate) fn users(&self) -> u64 {
        self.users.load(Ordering::Relaxed)
    }

    /// Maximum number of concurrent users so far.
    pub(crate) fn users_max(&self) -> u64 {
        self.users_max.load(Ordering::Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
