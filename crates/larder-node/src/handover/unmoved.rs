//! Why connections stay, and how many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a connection stays, and its request is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unmoved {
    /// The target, or the range of it that is asked for, is smaller than is worth it.
    Small,
    /// The target's size is not known: no whole reply for it has passed here.
    SizeUnknown,
    /// It is no plain GET in HTTP/1.1, or it does not say how much it asks for: a condition may spare the reply's body, and
    /// several ranges are the server's to read.
    Request,
    /// It came to no service address of this node, or has been handed over once.
    Elsewhere,
    /// The peer takes none: its channel is down, it ends, it had no place lately, or it does not have the address.
    Peer,
    /// As many are handed over as may be.
    Full,
    /// So many requests are expected to follow on it that its target is too small for that.
    Kept,
    /// It was tried and did not succeed; the log says why.
    Failed,
}

impl Unmoved {
    /// All, in order.
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

    /// Its name in the view of peers.
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

/// How many stayed, and why.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; Unmoved::ALL.len()]);

impl Counts {
    pub(super) fn add(&self, why: Unmoved) {
        self.0[why as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self) -> BTreeMap<&'static str, u64> {
        Unmoved::ALL.iter().map(|why| (why.name(), self.0[*why as usize].load(Relaxed))).collect()
    }
}
