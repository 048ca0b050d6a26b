//! The atomic counters of a node.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that rises and falls.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn decrement(&self, by: u64) {
        self.0.fetch_sub(by, Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The node's counters. [`crate::NodeStats`] explains them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Counter,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) collapsed: Counter,
    pub(crate) dynamic: Counter,
    /// All later requests on handed-off connections. The next three counters are the ones among them that were
    /// not served here by the rule.
    pub(crate) later: Counter,
    pub(crate) later_fetched: Counter,
    pub(crate) later_unknown: Counter,
    pub(crate) later_failed: Counter,
    pub(crate) not_modified: Counter,
    pub(crate) partial_content: Counter,
    pub(crate) client_errors: Counter,
    pub(crate) server_errors: Counter,
    pub(crate) aborted: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) in_flight: Gauge,
    /// The requests in flight that ask for the node's own paths.
    pub(crate) own: Gauge,
    /// Requests for contents that have ended, and the sum of their service times.
    pub(crate) ended: Counter,
    pub(crate) service_us: Counter,
    pub(crate) connections: Gauge,
    pub(crate) connections_accepted: Counter,
    pub(crate) http2_connections: Counter,
    pub(crate) http2_floods: Counter,
    pub(crate) panics: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) head_timeouts: Counter,
    pub(crate) idle_timeouts: Counter,
    pub(crate) write_timeouts: Counter,
    pub(crate) announcements_refused: Counter,
    pub(crate) fields_dropped: Counter,
    pub(crate) own_denied: Counter,
    pub(crate) purges: Counter,
    pub(crate) purged: Counter,
    pub(crate) purges_denied: Counter,
}

impl Counters {
    /// Counts a request for contents that has ended `time` after its head.
    pub(crate) fn record_request_end(&self, time: Duration) {
        self.ended.add(1);
        self.service_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}
