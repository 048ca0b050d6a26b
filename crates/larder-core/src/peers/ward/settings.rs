//! The settings of WARD.

use crate::unit::Bytes;
use core::time::Duration;

/// The settings of nodes that work with a routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WardSettings {
    /// Time between two tables, 1 s to 31 days; None: tables are only given ([`Ward::load`](super::Ward::load)). Default 15 min (the paper,
    /// section 3.4).
    pub refresh: Option<Duration>,
    /// Requests counted at one node after which the first table is made; none is made of fewer. 1 to 1,000,000,000; default
    /// 10,000.
    pub first_requests: u64,
    /// After the last change of who is there, another table is made. 100 ms to 1 h; default 5 s.
    pub settle: Duration,
    /// So often the lowest name says which table it has. 100 ms to 10 min; default 5 s.
    pub beat: Duration,
    /// Time after which a question without an answer is repeated. 10 ms to 1 min; default 1 s.
    pub retry: Duration,
    /// A node that gives no counts for so long is left out. At least `retry`, to 10 min; default 10 s.
    pub patience: Duration,
    /// Targets counted, and in a table, at most; more are left out. 64 to 100,000,000; default 1,048,576.
    pub targets_max: usize,
    /// Memory of this node's cache; a table is made for the least that there is. Not 0.
    pub memory: Bytes,
    /// The rule for targets that the table does not have.
    pub rest: Rest,
}

impl Default for WardSettings {
    fn default() -> Self {
        Self {
            refresh: Some(Duration::from_secs(900)),
            first_requests: 10_000,
            settle: Duration::from_secs(5),
            beat: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            patience: Duration::from_secs(10),
            targets_max: 1 << 20,
            memory: Bytes::mib(64),
            rest: Rest::Hashed,
        }
    }
}

/// The rule for targets that the table does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// To the live node of the highest hash of target and name.
    #[default]
    Hashed,
    /// Nowhere: they are served where they are asked for. The paper.
    Here,
}
