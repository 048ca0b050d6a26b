//! The counts of reloads.

use serde::{Deserialize, Serialize};

/// How often the process that serves was replaced. Counted by whoever starts the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReloadCounts {
    /// Which process this is, from 1 on.
    pub generation: u64,
    /// Reloads and upgrades after which the new process served.
    pub done: u64,
    /// Those whose config or binary was refused.
    pub refused: u64,
    /// Those whose new process did not come up.
    pub failed: u64,
    /// Processes started in place of one that had died.
    pub restarted: u64,
    /// Processes that finish what they have.
    pub retiring: u64,
    /// When the last of all these was over, seconds since 1970; 0 if there was none.
    pub last_unix_s: f64,
    /// Whether that one changed nothing.
    pub last_failed: bool,
}
