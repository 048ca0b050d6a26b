//! The values of peer switches for display.

use alloc::sync::Arc;
use core::time::Duration;

/// Counters of events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchesCounts {
    /// Messages that were invalid or of another version.
    pub invalid: u64,
    /// Sets sent.
    pub sets_sent: u64,
    /// Sets received that were newer than the stored ones.
    pub sets_taken: u64,
    /// Sets received that were equal to the stored ones.
    pub sets_same: u64,
    /// Sets received that were older than the stored ones.
    pub sets_older: u64,
    /// Sets that were not sent, because they have more servers than fit in a message.
    pub sets_too_large: u64,
    /// The number of times that more sets had changed than a journal can contain.
    pub missed: u64,
    /// The number of requests for a part of the sets.
    pub parts_asked: u64,
    /// Prompts whose placement was sent.
    pub prompts_sent: u64,
    /// Prompts of other switches.
    pub prompts_taken: u64,
    /// Prompts whose placement was not sent, because too many were waiting.
    pub prompts_lost: u64,
    /// The number of requests for a page of credits.
    pub credit_pages_asked: u64,
}

/// The status of another switch, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSwitchSummary {
    /// The name of the switch.
    pub name: Arc<str>,
    /// Whether messages can be sent to the switch.
    pub up: bool,
    /// The time since the switch last sent its load.
    pub silent: Duration,
    /// Whether the load of the switch is unknown, because it has sent none for too long.
    pub unknown: bool,
    /// Whether sets are being requested from the switch.
    pub requesting: bool,
    /// The requests of the switch at nodes known here.
    pub requests: u64,
}
