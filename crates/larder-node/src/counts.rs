//! The atomic counters of a node.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that rises and falls.
#[derive(Debug, Default)]
pub(crate) struct Level(AtomicU64);

impl Level {
    pub(crate) fn rise(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn fall(&self, by: u64) {
        self.0.fetch_sub(by, Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The node's counters. [`crate::NodeStats`] explains them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Count,
    pub(crate) hits: Count,
    pub(crate) misses: Count,
    pub(crate) collapsed: Count,
    pub(crate) dynamic: Count,
    /// All later requests on handed-off connections. The next three counters are the ones among them that were
    /// not served here by the rule.
    pub(crate) later: Count,
    pub(crate) later_fetched: Count,
    pub(crate) later_unknown: Count,
    pub(crate) later_failed: Count,
    pub(crate) not_modified: Count,
    pub(crate) partial_content: Count,
    pub(crate) client_errors: Count,
    pub(crate) server_errors: Count,
    pub(crate) aborted: Count,
    pub(crate) bytes_out: Count,
    pub(crate) in_flight: Level,
    /// The requests in flight that ask for the node's own paths.
    pub(crate) own: Level,
    /// Requests for contents that have ended, and the sum of their service times.
    pub(crate) ended: Count,
    pub(crate) service_us: Count,
    pub(crate) connections: Level,
    pub(crate) connections_accepted: Count,
    pub(crate) http2_connections: Count,
    pub(crate) http2_floods: Count,
    pub(crate) panics: Count,
    pub(crate) connections_refused: Count,
    pub(crate) accept_errors: Count,
    pub(crate) head_timeouts: Count,
    pub(crate) idle_timeouts: Count,
    pub(crate) write_timeouts: Count,
    pub(crate) announcements_refused: Count,
    pub(crate) fields_dropped: Count,
    pub(crate) own_denied: Count,
    pub(crate) purges: Count,
    pub(crate) purged: Count,
    pub(crate) purges_denied: Count,
}

impl Counters {
    /// Counts a request for contents that has ended `time` after its head.
    pub(crate) fn ended(&self, time: Duration) {
        self.ended.add(1);
        self.service_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}
