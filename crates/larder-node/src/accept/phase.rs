//! The phases of a shutdown, as the serving threads see them.

use std::time::Duration;

/// Time to accept the connections that already wait in the listen queue. Busy clients must not delay the
/// shutdown.
pub(crate) const LAST_ACCEPT_WAIT: Duration = Duration::from_millis(20);
/// The phase of the node's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The node accepts and serves connections.
    Serving,
    /// The listeners close. Only connections that already wait are accepted.
    Closing,
    /// No connection is accepted, and idle connections end.
    Draining,
    /// All connections are aborted.
    Aborting,
}
