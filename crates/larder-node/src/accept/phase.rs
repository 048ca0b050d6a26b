//! The end of accepting and serving, as the threads know it.

use std::time::Duration;

/// Time for the last connections that wait to be accepted. Busy clients must not hold up the end.
pub(crate) const LAST_LOOK: Duration = Duration::from_millis(20);
/// The progress of the node's end, as its threads know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Connections that wait to be accepted are the last ones.
    Closing,
    /// None is accepted any more, and idle ones end.
    Draining,
    /// All end.
    Aborting,
}
