//! Settings of WARD.

use crate::unit::Bytes;
use core::time::Duration;

/// Settings of nodes that work with a routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WardSettings {
    /// Time between two tables, 1 s to 31 days; default 15 min (the paper, section 3.4). With `None` tables come
    /// only from [`Ward::load_table`](super::Ward::load_table).
    pub refresh: Option<Duration>,
    /// Requests at one node after which the first table is made, and the fewest requests for any table. 1 to
    /// 1,000,000,000; default 10,000.
    pub first_requests: u64,
    /// Time after the last change of the membership until a new table is made. 100 ms to 1 h; default 5 s.
    pub settle: Duration,
    /// Interval at which the node with the lowest name announces its table. 100 ms to 10 min; default 5 s.
    pub heartbeat: Duration,
    /// Time after which a request without an answer is repeated. 10 ms to 1 min; default 1 s.
    pub retry: Duration,
    /// Time after which a node that sends no counts is left out. At least `retry`, at most 10 min; default 10 s.
    pub patience: Duration,
    /// Largest number of counted targets, and of targets in a table. 64 to 100,000,000; default 1,048,576.
    pub targets_max: usize,
    /// Size of this node's cache. A table is made for the smallest one. Not 0.
    pub memory: Bytes,
    /// Rule for targets that the table does not list.
    pub unlisted: UnlistedTargets,
}

impl Default for WardSettings {
    fn default() -> Self {
        Self {
            refresh: Some(Duration::from_secs(900)),
            first_requests: 10_000,
            settle: Duration::from_secs(5),
            heartbeat: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            patience: Duration::from_secs(10),
            targets_max: 1 << 20,
            memory: Bytes::mib(64),
            unlisted: UnlistedTargets::Hashed,
        }
    }
}

/// Rule for targets that the table does not list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnlistedTargets {
    /// The live node with the highest hash of target and name serves them.
    #[default]
    Hashed,
    /// The node where they are requested serves them, as in the paper.
    Here,
}
