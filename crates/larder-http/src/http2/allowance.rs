//! A token bucket: a number of events at once, and a rate in the long run.

use tokio::time::Instant;

/// Streams of a connection that a client may reset at once. Browsers reset what they asked for when their user leaves a page.
const RESETS_MAX: f64 = 500.0;
/// Streams of a connection that a client may reset in the long run, per second.
const RESETS_PER_S: f64 = 33.0;

/// The events that are still allowed.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    left: f64,
    max: f64,
    per_s: f64,
    counted_at: Instant,
}

impl Allowance {
    /// A full bucket of `max` events, which gains `per_s` events a second.
    pub const fn new(max: f64, per_s: f64, now: Instant) -> Self {
        Self { left: max, max, per_s, counted_at: now }
    }

    /// The resets that a client may send on a connection.
    pub const fn resets(now: Instant) -> Self {
        Self::new(RESETS_MAX, RESETS_PER_S, now)
    }

    /// Takes one event. Returns false if it was not allowed.
    #[must_use]
    pub fn take(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.counted_at).as_secs_f64() * self.per_s;
        self.counted_at = now;
        self.left = (self.left + gained).min(self.max) - 1.0;
        self.left >= 0.0
    }

    /// Allows further events, up to the size of the bucket.
    pub fn earn(&mut self, events: f64) {
        self.left = (self.left + events).min(self.max);
    }

    /// Empties the bucket but for this part of it.
    pub fn leave(&mut self, part: f64) {
        self.left = self.max * part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn resets_are_limited_at_once_and_in_the_long_run() {
        let start = Instant::now();
        let mut allowance = Allowance::resets(start);
        let taken = (0..2_000).take_while(|_| allowance.take(start)).count();
        assert_eq!(taken, 500);
        let mut allowance = Allowance::resets(start);
        // 40 resets a second for 100 s: 33 of them are gained each second.
        let at = |reset: u64| start + Duration::from_millis(reset * 25);
        let taken = (0..4_000).take_while(|reset| allowance.take(at(*reset))).count();
        assert!((2_800..2_900).contains(&taken), "{taken}: 500 / (1 - 33 / 40)");
        let mut allowance = Allowance::resets(start);
        assert!((0..4_000).all(|reset| allowance.take(start + Duration::from_millis(reset * 31))));
    }

    #[test]
    fn what_is_earned_never_exceeds_the_bucket() {
        let start = Instant::now();
        let mut allowance = Allowance::new(3.0, 0.0, start);
        allowance.earn(100.0);
        assert_eq!((0..10).take_while(|_| allowance.take(start)).count(), 3);
    }
}
