//! Routes that copy the requests of another route.

use crate::config_error::WHOLE;
use larder_core::RouteId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The configuration of a route that copies the requests of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorOf {
    /// The route whose requests are copied, by name; one with matchers, or the default one.
    pub route: String,
    /// The share of the requests that are copied, in thousandths of a percent: 0 to 100,000.
    pub share: u32,
    /// Copies under way at a time; more are left out. 1 to 65,536; usual 64.
    pub copies_max: u32,
    /// Bytes of a request's body; requests with more are not copied. 0 to 16 MiB; usual 64 KiB.
    pub body_bytes_max: usize,
    /// The longest time of a copy, from connecting to the end of the reply. 10 ms to 1 min; usual 10 s.
    pub timeout: Duration,
}

/// The outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its reply came whole.
    Done,
    /// The node could not be reached, or broke off.
    Failed,
    /// It took too long.
    TimedOut,
    /// The dispatcher had no room for it, or no node.
    NoRoom,
    /// The limit of copies under way was reached.
    TooMany,
    /// The request's body was too long.
    TooLarge,
    /// The request was not whole: its client left, or it was tried again.
    Unfinished,
}

impl Outcome {
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

/// The state of a route that copies requests.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) config: MirrorOf,
    /// The route that copies take.
    pub(crate) route: RouteId,
    turn: AtomicU64,
    under_way: AtomicU32,
    outcomes: [AtomicU64; Outcome::ALL.len()],
}

impl Mirror {
    pub(crate) fn new(config: MirrorOf, route: RouteId) -> Self {
        let outcomes = std::array::from_fn(|_| AtomicU64::new(0));
        Self { config, route, turn: AtomicU64::new(0), under_way: AtomicU32::new(0), outcomes }
    }

    /// Whether this request is to be copied.
    pub(crate) fn takes(&self) -> bool {
        let (share, whole) = (u64::from(self.config.share), u64::from(WHOLE));
        let before = self.turn.fetch_add(share, Relaxed) % whole;
        before + share >= whole
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Outcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name(), self.outcomes[outcome as usize].load(Relaxed)))
    }

    /// Takes a place among the copies under way. If the limit is reached, counts that and returns `None`.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<UnderWay> {
        let max = self.config.copies_max;
        let more = |count: u32| (count < max).then_some(count + 1);
        if self.under_way.fetch_update(Relaxed, Relaxed, more).is_err() {
            self.count(Outcome::TooMany);
            return None;
        }
        Some(UnderWay(self.clone()))
    }
}

/// A place among the copies under way.
#[derive(Debug)]
pub(crate) struct UnderWay(pub(crate) Arc<Mirror>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}
