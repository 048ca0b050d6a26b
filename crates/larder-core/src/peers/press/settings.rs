//! The settings of PRESS.

use core::time::Duration;

use crate::peers::sharing::SharingSettings;
use crate::unit::Bytes;

/// Settings of PRESS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressSettings {
    /// T: number of connections above which a node is overloaded. 1 to 1,000,000; the paper: 80.
    pub overload: u32,
    /// Size from which on targets are served where they are requested and never kept. The paper: 128 KB.
    pub large_min: Bytes,
    /// Difference to the last sent load at which the load is sent again; at least 1. The paper: 4.
    pub load_step: u32,
    /// Time for which changes of the memory are gathered; 0 sends each change at once.
    pub gather: Duration,
    /// True if reads are announced when they begin, as if the target were in memory. The paper: false.
    pub announce_reads: bool,
    /// True if a node that does not share keeps large targets and counts their misses. The paper: true, since the rule for
    /// large targets is a part of the algorithm that a node runs when it shares. For simulations: a store with a limit of size
    /// cannot keep such targets, and those that a node keeps when it begins to share count as small until they are evicted.
    pub keep_large_alone: bool,
    /// True if a node adds to a peer's reported load the requests that it has forwarded since the report and that have not
    /// ended. The paper: false, since it names the reported load only.
    pub count_forwarded: bool,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Age at which a reported load becomes unknown; more than `heartbeat`.
    pub stale_after: Duration,
    /// Time for which a node that was made a server counts as one without its own report.
    pub assumed_for: Duration,
    /// Largest number of targets with known servers.
    pub targets_max: usize,
    /// Number of changes that can be sent again, 16 bytes each. A peer that has missed more gets the complete list.
    /// At least 64.
    pub log_max: usize,
    /// Size of this node's memory, for the decision when to share.
    pub memory: Bytes,
    /// Settings for the decision when to share.
    pub sharing: SharingSettings,
}

impl Default for PressSettings {
    fn default() -> Self {
        Self {
            overload: 80,
            large_min: Bytes::kib(128),
            load_step: 4,
            gather: Duration::from_millis(20),
            announce_reads: true,
            keep_large_alone: false,
            count_forwarded: true,
            heartbeat: Duration::from_secs(1),
            stale_after: Duration::from_secs(3),
            assumed_for: Duration::from_secs(5),
            targets_max: 1_000_000,
            log_max: 8_192,
            memory: Bytes::mib(64),
            sharing: SharingSettings::default(),
        }
    }
}
