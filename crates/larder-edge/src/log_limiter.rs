//! A rate limit for log lines that traffic can cause.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// Permits one log line every 10 s, and counts the events in between.
#[derive(Debug)]
pub struct LogLimiter {
    start: Instant,
    /// Time of the last line, in nanoseconds since `start`, plus 1; 0 before the first.
    last: AtomicU64,
    /// Number of events since then.
    suppressed: AtomicU64,
}

impl Default for LogLimiter {
    fn default() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }
}

impl LogLimiter {
    /// Counts an event. If a line is due, returns the number of events since the last line, including this one.
    pub fn due(&self) -> Option<u64> {
        self.due_at(self.start.elapsed())
    }

    fn due_at(&self, now: Duration) -> Option<u64> {
        let (now, last) = (now.as_nanos() as u64, self.last.load(Relaxed));
        let early = last > 0 && now < last.saturating_add(INTERVAL.as_nanos() as u64);
        if early || self.last.compare_exchange(last, now.saturating_add(1), Relaxed, Relaxed).is_err() {
            self.suppressed.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Relaxed) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_due_at_once_and_then_after_an_interval() {
        let limiter = LogLimiter::default();
        let at = |seconds| limiter.due_at(Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(9), at(11), at(12), at(30)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
