//! The counts of reloads.

use serde::{Deserialize, Serialize};

/// The counts of reloads and restarts. The process that starts the others keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReloadCounts {
    /// The number of this process, from 1 on.
    pub generation: u64,
    /// Reloads and upgrades after which the new process served.
    pub done: u64,
    /// Reloads whose config or binary was refused.
    pub refused: u64,
    /// Reloads whose new process did not start.
    pub failed: u64,
    /// Processes that were started because one had died.
    pub restarted: u64,
    /// Processes that finish what they have.
    pub retiring: u64,
    /// The time of the last of these events, seconds since 1970; 0 if there was none.
    pub last_unix_s: f64,
    /// The last event changed nothing.
    pub last_failed: bool,
}
