//! A request's slot at the origin, and the counters of requests to the origin.

use super::slots::Slot;
use super::stats::OriginStats;
use crate::counters::Counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Counts of the outcomes of requests to the origin.
#[derive(Debug, Default)]
pub(super) struct OriginCounters {
    asking: AtomicUsize,
    requests: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
    pub(super) full: Counter,
    pub(super) client_share: Counter,
    pub(super) late_bodies: Counter,
    pub(super) write_timeouts: Counter,
    pub(super) failovers: Counter,
    pub(super) tunnels_opened: Counter,
    pub(super) tunnels_full: Counter,
    pub(super) tunnels_idle: Counter,
    pub(super) tunnel_received: Counter,
    pub(super) tunnel_sent: Counter,
    slow_replies: Counter,
}

impl OriginCounters {
    pub(super) fn requests_in_flight(&self) -> usize {
        self.asking.load(Relaxed)
    }

    /// Returns the number of completed requests, the bytes of their replies' bodies, and the sum of their
    /// times.
    pub(super) fn totals(&self) -> (u64, u64, Duration) {
        let busy = Duration::from_nanos(self.busy_ns.load(Relaxed));
        (self.requests.load(Relaxed), self.bytes.load(Relaxed), busy)
    }

    /// Fills in how often each limit was reached.
    pub(super) fn add_to(&self, stats: OriginStats) -> OriginStats {
        OriginStats {
            origin_full: self.full.read(),
            origin_client_share: self.client_share.read(),
            origin_late_bodies: self.late_bodies.read(),
            origin_write_timeouts: self.write_timeouts.read(),
            origin_slow_replies: self.slow_replies.read(),
            origin_failovers: self.failovers.read(),
            origin_tunnels_opened: self.tunnels_opened.read(),
            origin_tunnels_full: self.tunnels_full.read(),
            origin_tunnels_idle: self.tunnels_idle.read(),
            origin_tunnel_received_bytes: self.tunnel_received.read(),
            origin_tunnel_sent_bytes: self.tunnel_sent.read(),
            ..stats
        }
    }
}

/// A slot of the origin, held until the last byte of the reply and of the request's body. It counts for the
/// client whose request went to the origin, even if that client leaves while its request fills the cache.
/// Otherwise a client could cause any number of requests by leaving.
#[derive(Clone, Debug)]
pub(crate) struct OriginSlot(Arc<SlotLease>);

#[derive(Debug)]
struct SlotLease {
    _slot: Slot,
    counts: Arc<OriginCounters>,
    since: Instant,
}

impl OriginSlot {
    pub(super) fn new(slot: Slot, counts: &Arc<OriginCounters>) -> Self {
        counts.asking.fetch_add(1, Relaxed);
        Self(Arc::new(SlotLease { _slot: slot, counts: Arc::clone(counts), since: Instant::now() }))
    }

    pub(super) fn counts(&self) -> &OriginCounters {
        &self.0.counts
    }

    pub(crate) fn count_bytes(&self, bytes: usize) {
        self.0.counts.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a reply that is aborted because the origin sends it too slowly.
    pub(crate) fn count_slow_reply(&self) {
        self.0.counts.slow_replies.add(1);
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.counts.asking.fetch_sub(1, Relaxed);
        self.counts.requests.fetch_add(1, Relaxed);
        let busy = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counts.busy_ns.fetch_add(busy, Relaxed);
    }
}
