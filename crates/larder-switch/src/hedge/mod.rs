//! Hedged requests: if a node is slow to begin its reply, a second node is asked too, and the first reply is used.
//!
//! Follows Dean and Barroso, *The Tail at Scale* (Communications of the ACM 56(2), 2013): a cause that slows one node
//! for a moment (a disk, garbage collection, a neighbour) seldom slows another at the same time. The cost has three
//! bounds: the delay, a share of the route's requests, and the load of the second node. To the dispatcher, a hedge is
//! like a request that a node has failed: it goes to another server of the target if there is one, otherwise to the
//! least loaded node.

use crate::budget::{RetryBudget, RetryConfig};
use crate::config_error::ConfigError;
use crate::config_error::SHARE_WHOLE;
use crate::config_error::route_error;
use larder_core::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Configuration of hedging on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HedgeConfig {
    /// Time that a node has to begin its reply before another node is asked. 1 ms to 1 min.
    pub after: Duration,
    /// Maximum share of hedged requests, in thousandths of a percent: 0 to 100,000. One hedge per second is always
    /// allowed.
    pub share: u32,
}

impl HedgeConfig {
    pub(crate) fn validate(&self, route: &str) -> Result<(), ConfigError> {
        let after = Duration::from_millis(1)..=Duration::from_secs(60);
        if after.contains(&self.after) && self.share <= SHARE_WHOLE {
            return Ok(());
        }
        Err(route_error(route, "hedge", "out of range: after 1 ms to 1 min, share 0 to 100 %".to_owned()))
    }
}

/// Outcome of a hedge, or the reason why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HedgeOutcome {
    /// The second node replied first.
    Won,
    /// The first node replied first.
    Lost,
    /// Neither node replied while the client waited.
    Failed,
    /// No other node had room.
    NoRoom,
    /// The share of hedged requests was reached.
    OverShare,
}

impl HedgeOutcome {
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

/// State of hedging on a route.
#[derive(Debug)]
pub(crate) struct RouteHedging {
    pub(crate) after: Duration,
    budget: RetryBudget,
    /// Requests that were eligible for hedging.
    eligible: AtomicU64,
    outcomes: [AtomicU64; HedgeOutcome::ALL.len()],
}

impl RouteHedging {
    pub(crate) fn new(config: &HedgeConfig) -> Self {
        let share = f64::from(config.share) / f64::from(SHARE_WHOLE);
        Self {
            after: config.after,
            budget: RetryBudget::new(RetryConfig { share, min_per_s: 1 }, Time::ZERO),
            eligible: AtomicU64::new(0),
            outcomes: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Counts a request that is eligible for hedging.
    pub(crate) fn count_eligible(&self) {
        self.eligible.fetch_add(1, Relaxed);
    }

    /// Takes a hedge from the budget. Counts the case that none is left.
    pub(crate) fn try_take(&self, now: Time) -> bool {
        let allowed = self.budget.take(now, self.eligible.load(Relaxed));
        if !allowed {
            self.count(HedgeOutcome::OverShare);
        }
        allowed
    }

    /// Returns a hedge to the budget because no other node had room.
    pub(crate) fn give_back(&self) {
        self.budget.give_back();
        self.count(HedgeOutcome::NoRoom);
    }

    pub(crate) fn count(&self, outcome: HedgeOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        HedgeOutcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name(), self.outcomes[outcome as usize].load(Relaxed)))
    }
}
