//! Counters of reloads.

use serde::{Deserialize, Serialize};

/// Counters of reloads and restarts. The process that starts the others keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReloadCounts {
    /// Number of this process, from 1.
    pub generation: u64,
    /// Reloads and upgrades after which the new process served.
    pub done: u64,
    /// Reloads whose config or binary was refused.
    pub refused: u64,
    /// Reloads whose new process did not start.
    pub failed: u64,
    /// Processes that were started because one had died.
    pub restarted: u64,
    /// Processes that finish their requests.
    pub retiring: u64,
    /// Time of the last event, seconds since 1970; 0 if there was none.
    pub last_unix_s: f64,
    /// Whether the last event failed.
    pub last_failed: bool,
}
