//! Mirror routes, which get copies of another route's requests.

use crate::config_error::SHARE_WHOLE;
use larder_core::RouteId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Configuration of a mirror route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Name of the mirrored route: a route with matchers, or the default route.
    pub route: String,
    /// Share of the requests that are copied, in thousandths of a percent: 0 to 100,000.
    pub share: u32,
    /// Maximum number of copies in flight; further requests are not copied. 1 to 65,536; typically 64.
    pub copies_max: u32,
    /// Maximum body of a copied request; larger requests are not copied. Bytes; 0 to 16 MiB; typically 64 KiB.
    pub body_bytes_max: usize,
    /// Timeout of a copy, from connecting to the end of the reply. 10 ms to 1 min; typically 10 s.
    pub timeout: Duration,
}

/// Outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOutcome {
    /// The whole reply arrived.
    Done,
    /// The node could not be reached, or broke off.
    Failed,
    /// The copy timed out.
    TimedOut,
    /// The dispatcher had no node or no admission for it.
    NoRoom,
    /// The limit of copies in flight was reached.
    TooMany,
    /// The request body was too large.
    TooLarge,
    /// The request was incomplete: its client left, or it was retried.
    Unfinished,
}

impl CopyOutcome {
    pub(crate) const ALL: [Self; 7] = [
        Self::Done,
        Self::Failed,
        Self::TimedOut,
        Self::NoRoom,
        Self::TooMany,
        Self::TooLarge,
        Self::Unfinished,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::NoRoom => "no_room",
            Self::TooMany => "too_many",
            Self::TooLarge => "too_large",
            Self::Unfinished => "unfinished",
        }
    }
}

/// State of a mirror route.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) config: MirrorConfig,
    /// Mirror route itself.
    pub(crate) route: RouteId,
    accumulated_share: AtomicU64,
    in_flight: AtomicU32,
    outcomes: [AtomicU64; CopyOutcome::ALL.len()],
}

impl Mirror {
    pub(crate) fn new(config: MirrorConfig, route: RouteId) -> Self {
        let outcomes = std::array::from_fn(|_| AtomicU64::new(0));
        Self { config, route, accumulated_share: AtomicU64::new(0), in_flight: AtomicU32::new(0), outcomes }
    }

    /// Whether this request is to be copied. Each call adds the share, and a whole sum selects the request.
    pub(crate) fn selects(&self) -> bool {
        let (share, whole) = (u64::from(self.config.share), u64::from(SHARE_WHOLE));
        let before = self.accumulated_share.fetch_add(share, Relaxed) % whole;
        before + share >= whole
    }

    pub(crate) fn count(&self, outcome: CopyOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CopyOutcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name(), self.outcomes[outcome as usize].load(Relaxed)))
    }

    /// Takes a permit for a copy in flight. If the limit is reached, counts that and returns `None`.
    pub(crate) fn acquire(self: &Arc<Self>) -> Option<CopyPermit> {
        let max = self.config.copies_max;
        let more = |count: u32| (count < max).then_some(count + 1);
        if self.in_flight.fetch_update(Relaxed, Relaxed, more).is_err() {
            self.count(CopyOutcome::TooMany);
            return None;
        }
        Some(CopyPermit(self.clone()))
    }
}

/// Permit for a copy in flight.
#[derive(Debug)]
pub(crate) struct CopyPermit(pub(crate) Arc<Mirror>);

impl Drop for CopyPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
