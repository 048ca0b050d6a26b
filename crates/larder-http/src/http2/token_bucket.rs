//! A token bucket: a limit on a burst of events and on their long-term rate.

use tokio::time::Instant;

/// Streams of a connection that a client may reset in one burst. Browsers reset many streams when a user
/// leaves a page.
const RESETS_MAX: f64 = 500.0;
/// Streams of a connection that a client may reset in the long run, per second.
const RESETS_PER_S: f64 = 33.0;

/// A token bucket. Each event takes one token.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// Tokens at `updated_at`. Negative after events that were not allowed.
    tokens: f64,
    capacity: f64,
    rate_per_s: f64,
    updated_at: Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `capacity` tokens, which gains `rate_per_s` tokens per second.
    pub const fn new(capacity: f64, rate_per_s: f64, now: Instant) -> Self {
        Self { tokens: capacity, capacity, rate_per_s, updated_at: now }
    }

    /// Creates the bucket that limits stream resets by a client on one connection.
    pub const fn resets(now: Instant) -> Self {
        Self::new(RESETS_MAX, RESETS_PER_S, now)
    }

    /// Takes one token. Returns false if the bucket was empty, so that the event is not allowed.
    #[must_use]
    pub fn take(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.updated_at).as_secs_f64() * self.rate_per_s;
        self.updated_at = now;
        self.tokens = (self.tokens + gained).min(self.capacity) - 1.0;
        self.tokens >= 0.0
    }

    /// Adds tokens, up to the capacity of the bucket.
    pub fn add(&mut self, tokens: f64) {
        self.tokens = (self.tokens + tokens).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn resets_are_limited_in_a_burst_and_in_the_long_run() {
        let start = Instant::now();
        let mut bucket = TokenBucket::resets(start);
        let taken = (0..2_000).take_while(|_| bucket.take(start)).count();
        assert_eq!(taken, 500);
        let mut bucket = TokenBucket::resets(start);
        // 40 resets per second for 100 s. The bucket gains 33 tokens per second.
        let at = |reset: u64| start + Duration::from_millis(reset * 25);
        let taken = (0..4_000).take_while(|reset| bucket.take(at(*reset))).count();
        assert!((2_800..2_900).contains(&taken), "{taken}: 500 / (1 - 33 / 40)");
        let mut bucket = TokenBucket::resets(start);
        assert!((0..4_000).all(|reset| bucket.take(start + Duration::from_millis(reset * 31))));
    }

    #[test]
    fn added_tokens_never_exceed_the_capacity() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(3.0, 0.0, start);
        bucket.add(100.0);
        assert_eq!((0..10).take_while(|_| bucket.take(start)).count(), 3);
    }
}
