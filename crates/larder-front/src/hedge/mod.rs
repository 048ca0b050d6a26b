//! Hedged requests: where a node has not begun to answer after a while, another is asked too, and the first answer is taken.
//!
//! After Dean and Barroso, *The Tail at Scale* (Communications of the ACM 56(2), 2013): what makes one node slow for a moment (a disk, a
//! collection of garbage, a neighbour) seldom makes another slow at the same time. What it costs is bounded three times: the
//! time, a share of the route's requests, and the second node's room at the dispatcher, to which a hedge is a request like any
//! other that a node has failed: another server of the target if there is one, else the least loaded.

use crate::budget::{RetryBudget, RetryConfig};
use crate::config_error::ConfigError;
use crate::config_error::WHOLE;
use crate::config_error::wrong;
use larder_core::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// When a route's requests are hedged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hedge {
    /// How long a node may take to begin its answer before another is asked. 1 ms to 1 min.
    pub after: Duration,
    /// How many of the route's requests at most, in thousandths of a percent: 0 to 100,000. One a second is allowed whatever it is.
    pub share: u32,
}

impl Hedge {
    pub(crate) fn validate(&self, route: &str) -> Result<(), ConfigError> {
        let after = Duration::from_millis(1)..=Duration::from_secs(60);
        if after.contains(&self.after) && self.share <= WHOLE {
            return Ok(());
        }
        Err(wrong(route, "hedge", "out of range: after 1 ms to 1 min, share 0 to 100 %".to_owned()))
    }
}

/// What became of a hedge, or why there was none when its time came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The second node's answer was the first.
    Won,
    /// The first node's answer was the first after all.
    Lost,
    /// Neither answered while somebody waited.
    Failed,
    /// No other node had room.
    NoRoom,
    /// As many of the requests as may be were hedged of late.
    OverShare,
}

impl Outcome {
    pub(crate) const ALL: [Self; 5] = [Self::Won, Self::Lost, Self::Failed, Self::NoRoom, Self::OverShare];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::NoRoom => "no_room",
            Self::OverShare => "over_share",
        }
    }
}

/// A route's hedges, at work.
#[derive(Debug)]
pub(crate) struct Hedging {
    pub(crate) after: Duration,
    budget: RetryBudget,
    /// Requests that might have been hedged.
    eligible: AtomicU64,
    outcomes: [AtomicU64; Outcome::ALL.len()],
}

impl Hedging {
    pub(crate) fn new(config: &Hedge) -> Self {
        let share = f64::from(config.share) / f64::from(WHOLE);
        Self {
            after: config.after,
            budget: RetryBudget::new(RetryConfig { share, min_per_s: 1 }, Time::ZERO),
            eligible: AtomicU64::new(0),
            outcomes: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// A request that may be hedged begins.
    pub(crate) fn enter(&self) {
        self.eligible.fetch_add(1, Relaxed);
    }

    /// Takes a hedge from what the share allows; one that there is none of is counted.
    pub(crate) fn allows(&self, now: Time) -> bool {
        let allowed = self.budget.take(now, self.eligible.load(Relaxed));
        if !allowed {
            self.count(Outcome::OverShare);
        }
        allowed
    }

    /// No other node had room for what was allowed.
    pub(crate) fn finds_no_room(&self) {
        self.budget.give_back();
        self.count(Outcome::NoRoom);
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Outcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name(), self.outcomes[outcome as usize].load(Relaxed)))
    }
}
