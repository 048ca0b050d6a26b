//! Routes that copy the requests of another route.

use crate::config_error::WHOLE;
use larder_core::RouteId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What a mirroring route copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorOf {
    /// The route whose requests are copied, by name; one with matchers, or the default one.
    pub route: String,
    /// How many of them, in thousandths of a percent: 0 to 100,000.
    pub share: u32,
    /// Copies under way at a time; more are left out. 1 to 65,536; usual 64.
    pub copies_max: u32,
    /// Bytes of a request's body; requests with more are not copied. 0 to 16 MiB; usual 64 KiB.
    pub body_bytes_max: usize,
    /// How long a copy may take, from connecting to the end of the reply. 10 ms to 1 min; usual 10 s.
    pub timeout: Duration,
}

/// What became of a copy.
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
    /// As many as may be were under way.
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

/// A route that copies another's requests, at work.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) config: MirrorOf,
    /// Where copies go.
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

    /// Whether it is this request's turn.
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

    /// A place among those under way; `None`, which is counted, if there is none.
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

/// A copy's place among those under way.
#[derive(Debug)]
pub(crate) struct UnderWay(pub(crate) Arc<Mirror>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}
