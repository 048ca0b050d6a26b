//! The reasons why connections stay, and their counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The reason why a connection stays and its request is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RelayReason {
    /// The target, or the requested range, is smaller than the limit.
    Small,
    /// The target's size is unknown: no complete reply for it has passed this node.
    SizeUnknown,
    /// The request is not a plain HTTP/1.1 GET, or the size of its reply is unknown. A condition may make the
    /// reply empty, and several ranges are left to the server.
    Request,
    /// The connection came to no service address of this node, or was handed off already.
    Elsewhere,
    /// The peer takes no connections: its channel is down, it shuts down, it was full lately, or it lacks the
    /// address.
    Peer,
    /// The limit on handed-off connections is reached.
    Full,
    /// The target is too small for the number of further requests that are expected on the connection.
    Kept,
    /// The handoff was tried and failed; the log has the reason.
    Failed,
}

impl RelayReason {
    /// All reasons, in order.
    pub const ALL: [Self; 8] = [
        Self::Small,
        Self::SizeUnknown,
        Self::Request,
        Self::Elsewhere,
        Self::Peer,
        Self::Full,
        Self::Kept,
        Self::Failed,
    ];

    /// Returns the reason's name in the view of peers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::SizeUnknown => "size-unknown",
            Self::Request => "request",
            Self::Elsewhere => "elsewhere",
            Self::Peer => "peer",
            Self::Full => "full",
            Self::Kept => "kept",
            Self::Failed => "failed",
        }
    }
}

/// Counts of relayed requests, by reason.
#[derive(Debug, Default)]
pub(super) struct RelayCounts([AtomicU64; RelayReason::ALL.len()]);

impl RelayCounts {
    pub(super) fn add(&self, reason: RelayReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self) -> BTreeMap<&'static str, u64> {
        RelayReason::ALL
            .iter()
            .map(|reason| (reason.name(), self.0[*reason as usize].load(Relaxed)))
            .collect()
    }
}
