//! Counters of the network between peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a network. Fields described with *now* are gauges; all others only rise.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// Values of [`Counters`] at one time.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CounterValues { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Reads all counters. They are read one after another, not atomically as a whole.
            pub fn read(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Other members, now.
    members,
    /// Members that joined.
    members_joined,
    /// Members that left, announced or lost.
    members_left,
    /// Times this member rejoined after it was declared down.
    renewals,
    /// Datagrams sent.
    datagrams_out,
    /// Datagrams that could not be sent: the socket's buffer was full, or encryption failed.
    datagrams_unsent,
    /// Datagrams received, valid or not.
    datagrams_in,
    /// Datagrams that failed authentication: another secret, changed bytes, or an impossible length.
    datagrams_forged,
    /// Datagrams encrypted with an accepted secret that is not the one that this member sends with.
    datagrams_other_secret,
    /// Authenticated datagrams that could not be decoded: the sender runs another version.
    datagrams_malformed,
    /// Datagrams dropped because they name more members than [`crate::GossipConfig::known_max`] allows.
    datagrams_full,
    /// Datagrams from another process that has this member's name.
    datagrams_namesake,
    /// Seeds that could not be resolved.
    seeds_unresolved,
    /// Incoming connections refused: too many, not from a member, or meant for another member.
    links_refused,
    /// Failed connection attempts to members.
    links_failed,
    /// Connections in both directions whose secret is not the one that this member sends with, now.
    links_other_secret,
    /// Connections closed because their secret is no longer accepted.
    links_revoked,
    /// Data connections to and from members, now.
    data_links,
    /// Control connections to and from members, now.
    control_links,
    /// Control connections dropped because their queue was full.
    control_overflows,
    /// Messages queued on control connections.
    messages_out,
    /// Messages received.
    messages_in,
    /// Bytes of messages sent.
    message_bytes_out,
    /// Bytes of messages received.
    message_bytes_in,
    /// Forwarded requests in flight, now.
    streams,
    /// Requests forwarded to members.
    requests_out,
    /// Requests received from members.
    requests_in,
    /// Requests that were not forwarded; the peer has not processed them.
    requests_unsent,
    /// Requests that failed after the peer may have processed them.
    requests_lost,
    /// Encrypted bytes sent on connections.
    link_bytes_out,
    /// Encrypted bytes received on connections.
    link_bytes_in,
}

/// Selects a gauge among the counters.
type Gauge = fn(&Counters) -> &AtomicU64;

/// Raises a gauge by one until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard {
    counters: Arc<Counters>,
    gauge: Gauge,
}

impl GaugeGuard {
    pub(crate) fn new(counters: &Arc<Counters>, gauge: Gauge) -> Self {
        gauge(counters).fetch_add(1, Relaxed);
        Self { counters: Arc::clone(counters), gauge }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        (self.gauge)(&self.counters).fetch_sub(1, Relaxed);
    }
}

/// Adds one to a counter.
pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Adds a number of bytes to a counter.
pub(crate) fn add(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Relaxed);
}
