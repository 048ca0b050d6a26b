//! What operators want to know of the network between peers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a network. They only rise, but for those that say *now*.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// The counters at one time.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Counted { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// All of them, each as it is when it is read.
            pub fn read(&self) -> Counted {
                Counted { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Members beside this one, now.
    members,
    /// Members that have come.
    members_joined,
    /// Members that have gone, of themselves or not.
    members_left,
    /// Times this member was declared down, and came back.
    renewals,
    /// Datagrams sent.
    datagrams_out,
    /// Datagrams that the socket did not take.
    datagrams_unsent,
    /// Datagrams received, sound ones and others.
    datagrams_in,
    /// Datagrams not sealed with a secret of the cluster, changed, or of no possible length.
    datagrams_forged,
    /// Datagrams sealed with a secret that is accepted but is not the one that this member sends with.
    datagrams_other_secret,
    /// Datagrams that members sealed and that say what cannot be said: another version.
    datagrams_malformed,
    /// Datagrams refused because they name more members than there is room for.
    datagrams_full,
    /// Datagrams that speak for this member's own name from elsewhere.
    datagrams_namesake,
    /// Seeds that could not be resolved.
    seeds_unresolved,
    /// Connections accepted and refused: too many, no member's, or for somebody else.
    links_refused,
    /// Connections to members that could not be made.
    links_failed,
    /// Connections, both ways, whose secret is not the one that this member sends with, now.
    links_other_secret,
    /// Connections ended because their secret is no longer accepted.
    links_revoked,
    /// Data connections to and from members, now.
    data_links,
    /// Control connections to and from members, now.
    control_links,
    /// Control connections dropped because their queue was full.
    control_overflows,
    /// Messages given to control connections.
    messages_out,
    /// Messages received.
    messages_in,
    /// Bytes of messages sent.
    message_bytes_out,
    /// Bytes of messages received.
    message_bytes_in,
    /// Forwarded requests whose reply is still under way, now.
    streams,
    /// Requests forwarded to members.
    requests_out,
    /// Requests received from members.
    requests_in,
    /// Requests that were not forwarded, and cannot have been worked on.
    requests_unsent,
    /// Requests lost after they may have been worked on.
    requests_lost,
    /// Bytes sent on connections, sealed.
    link_bytes_out,
    /// Bytes received on connections, sealed.
    link_bytes_in,
}

/// A gauge that falls when this goes.
#[derive(Debug)]
pub(crate) struct Held<F: Fn(&Counters) -> &AtomicU64> {
    counters: std::sync::Arc<Counters>,
    gauge: F,
}

impl<F: Fn(&Counters) -> &AtomicU64> Held<F> {
    pub(crate) fn new(counters: &std::sync::Arc<Counters>, gauge: F) -> Self {
        gauge(counters).fetch_add(1, Relaxed);
        Self { counters: std::sync::Arc::clone(counters), gauge }
    }
}

impl<F: Fn(&Counters) -> &AtomicU64> Drop for Held<F> {
    fn drop(&mut self) {
        (self.gauge)(&self.counters).fetch_sub(1, Relaxed);
    }
}

pub(crate) fn rise(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Relaxed);
}
