//! The servers.

use serde::{Deserialize, Serialize};

/// How a cluster serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Every node for itself; no messages.
    Trad,
    /// PRESS: nodes decide, forward, and relay what comes back.
    Press,
    /// Nodes decide as in PRESS and hand connections over.
    Distributed,
    /// One node more decides everything, with exact knowledge, and nodes hand connections over.
    Dispatcher,
}

impl Server {
    /// All.
    pub const ALL: [Self; 4] = [Self::Trad, Self::Press, Self::Distributed, Self::Dispatcher];

    /// The name in the paper's tables and here.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Press => "press",
            Self::Distributed => "distributed",
            Self::Dispatcher => "dispatcher",
        }
    }

    /// Whether a forwarded request's reply comes back through the initial node.
    pub(super) const fn relays(self) -> bool {
        matches!(self, Self::Press)
    }
}
