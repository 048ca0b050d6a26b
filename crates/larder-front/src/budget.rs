//! How many requests may be tried again, so that retries cannot multiply an outage.
//!
//! Retries may be a share of the requests, and a few a second whatever their number. The tokens are counted only when somebody
//! wants one: a request that needs no second try costs nothing.

use crate::config_error::{ConfigError, range};
use larder_core::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How much of a budget can be saved up: what comes in within this time.
const SAVED: Duration = Duration::from_secs(10);

/// How many tries there may be beyond the first.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryConfig {
    /// Retries per request that has ended, over about 10 s. 0 to 1; default 0.2. Outcome: the failure is the answer.
    pub share: f64,
    /// Retries a second that are allowed whatever the share. 0 to 1,000,000; default 10.
    pub min_per_s: u32,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self { share: 0.2, min_per_s: 10 }
    }
}

impl RetryConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        range("retries.min_per_s", self.min_per_s as usize, 0, 1_000_000)?;
        if (0.0..=1.0).contains(&self.share) {
            Ok(())
        } else {
            Err(ConfigError::Share("retries.share", self.share.to_string()))
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Level {
    tokens: f64,
    at: Time,
    requests: u64,
    /// Requests a second of late.
    rate: f64,
    rated: Time,
    rated_requests: u64,
}

/// The budget.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    config: RetryConfig,
    level: Mutex<Level>,
    denied: AtomicU64,
}

impl RetryBudget {
    /// A full one.
    pub(crate) fn new(config: RetryConfig, now: Time) -> Self {
        let tokens = f64::from(config.min_per_s) * SAVED.as_secs_f64();
        let level = Level { tokens, at: now, requests: 0, rate: 0.0, rated: now, rated_requests: 0 };
        Self { config, level: Mutex::new(level), denied: AtomicU64::new(0) }
    }

    /// Takes a retry at `now`, when `requests` have ended since the start; false if there is none left.
    pub(crate) fn take(&self, now: Time, requests: u64) -> bool {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        level.fill(&self.config, now, requests);
        let taken = level.tokens >= 1.0;
        if taken {
            level.tokens -= 1.0;
        } else {
            self.denied.fetch_add(1, Relaxed);
        }
        taken
    }

    /// Gives back one that was taken for nothing.
    pub(crate) fn give_back(&self) {
        self.level.lock().unwrap_or_else(PoisonError::into_inner).tokens += 1.0;
    }

    /// How often there was none left.
    pub(crate) fn denied(&self) -> u64 {
        self.denied.load(Relaxed)
    }
}

impl Level {
    fn fill(&mut self, config: &RetryConfig, now: Time, requests: u64) {
        let since = now.max(self.rated) - self.rated;
        if since >= Duration::from_secs(1) {
            self.rate = requests.saturating_sub(self.rated_requests) as f64 / since.as_secs_f64();
            (self.rated, self.rated_requests) = (now, requests);
        }
        let seconds = (now.max(self.at) - self.at).as_secs_f64();
        let min = f64::from(config.min_per_s);
        let come = seconds * min + requests.saturating_sub(self.requests) as f64 * config.share;
        let most = SAVED.as_secs_f64() * (min + self.rate * config.share);
        self.tokens = (self.tokens + come).min(most.max(1.0));
        (self.at, self.requests) = (self.at.max(now), requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn taken(budget: &RetryBudget, now: Time, requests: u64, wanted: usize) -> usize {
        (0..wanted).filter(|_| budget.take(now, requests)).count()
    }

    #[test]
    fn a_quiet_switch_may_try_again_so_often_a_second() {
        let budget = RetryBudget::new(RetryConfig { share: 0.2, min_per_s: 10 }, at(0));
        assert_eq!(taken(&budget, at(0), 0, 1_000), 100, "what can be saved up");
        assert_eq!(taken(&budget, at(1_000), 0, 1_000), 10);
        assert_eq!(budget.denied(), 900 + 990);
    }

    #[test]
    fn under_load_retries_are_a_share() {
        let budget = RetryBudget::new(RetryConfig { share: 0.1, min_per_s: 0 }, at(0));
        let mut total = 0;
        // 1,000 requests a second, each of which wants a retry.
        for ms in (10..20_000).step_by(10) {
            total += taken(&budget, at(ms), ms, 10);
        }
        assert!((1_900..=2_100).contains(&total), "{total} of 20,000");
    }

    #[test]
    fn after_a_long_quiet_there_is_not_more_than_was_saved() {
        let budget = RetryBudget::new(RetryConfig { share: 0.1, min_per_s: 1 }, at(0));
        let after = taken(&budget, at(3_600_000), 3_600_000, 1_000_000);
        // 1,000 requests a second over the hour: 10 s of 1 + 100.
        assert_eq!(after, 1_010);
    }
}
