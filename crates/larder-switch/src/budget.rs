//! Retry budget: limits retries, so that they cannot multiply an outage.
//!
//! The budget allows a share of the requests, and a few retries per second in any case. The token bucket is updated
//! only when a retry asks for a token, so a request without a retry costs nothing.

use crate::config_error::{ConfigError, range};
use larder_core::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Window of the burst: the bucket holds at most the tokens of this time.
const BURST_WINDOW: Duration = Duration::from_secs(10);

/// Configuration of a retry budget.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryConfig {
    /// Retries per finished request, averaged over about 10 s. 0 to 1; default 0.2. Outcome: the failure is returned
    /// to the client.
    pub share: f64,
    /// Retries per second that are allowed whatever the share. 0 to 1,000,000; default 10.
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
struct TokenBucket {
    tokens: f64,
    at: Time,
    requests: u64,
    /// Recent requests per second.
    rate: f64,
    rate_updated: Time,
    rate_requests: u64,
}

/// Token bucket for retries.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    config: RetryConfig,
    bucket: Mutex<TokenBucket>,
    denied: AtomicU64,
}

impl RetryBudget {
    /// Creates a full budget.
    pub(crate) fn new(config: RetryConfig, now: Time) -> Self {
        let tokens = f64::from(config.min_per_s) * BURST_WINDOW.as_secs_f64();
        let bucket =
            TokenBucket { tokens, at: now, requests: 0, rate: 0.0, rate_updated: now, rate_requests: 0 };
        Self { config, bucket: Mutex::new(bucket), denied: AtomicU64::new(0) }
    }

    /// Takes a token at `now`, when `requests` have finished since the start. Returns false if there is none.
    pub(crate) fn take(&self, now: Time, requests: u64) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.refill(&self.config, now, requests);
        let taken = bucket.tokens >= 1.0;
        if taken {
            bucket.tokens -= 1.0;
        } else {
            self.denied.fetch_add(1, Relaxed);
        }
        taken
    }

    /// Returns an unused token.
    pub(crate) fn give_back(&self) {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).tokens += 1.0;
    }

    /// Returns how often no token was left.
    pub(crate) fn denied(&self) -> u64 {
        self.denied.load(Relaxed)
    }
}

impl TokenBucket {
    fn refill(&mut self, config: &RetryConfig, now: Time, requests: u64) {
        let since = now.max(self.rate_updated) - self.rate_updated;
        if since >= Duration::from_secs(1) {
            self.rate = requests.saturating_sub(self.rate_requests) as f64 / since.as_secs_f64();
            (self.rate_updated, self.rate_requests) = (now, requests);
        }
        let seconds = (now.max(self.at) - self.at).as_secs_f64();
        let min = f64::from(config.min_per_s);
        let come = seconds * min + requests.saturating_sub(self.requests) as f64 * config.share;
        let most = BURST_WINDOW.as_secs_f64() * (min + self.rate * config.share);
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
    fn an_idle_switch_has_the_minimum_rate() {
        let budget = RetryBudget::new(RetryConfig { share: 0.2, min_per_s: 10 }, at(0));
        assert_eq!(taken(&budget, at(0), 0, 1_000), 100, "the burst");
        assert_eq!(taken(&budget, at(1_000), 0, 1_000), 10);
        assert_eq!(budget.denied(), 900 + 990);
    }

    #[test]
    fn retries_under_load_are_a_share() {
        let budget = RetryBudget::new(RetryConfig { share: 0.1, min_per_s: 0 }, at(0));
        let mut total = 0;
        // 1,000 requests per second, each of which needs a retry.
        for ms in (10..20_000).step_by(10) {
            total += taken(&budget, at(ms), ms, 10);
        }
        assert!((1_900..=2_100).contains(&total), "{total} of 20,000");
    }

    #[test]
    fn tokens_are_capped_after_a_long_idle_time() {
        let budget = RetryBudget::new(RetryConfig { share: 0.1, min_per_s: 1 }, at(0));
        let after = taken(&budget, at(3_600_000), 3_600_000, 1_000_000);
        // 1,000 requests per second over the hour: 10 s of 1 + 100.
        assert_eq!(after, 1_010);
    }
}
