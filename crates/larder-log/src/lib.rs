//! A rate limit for log lines that traffic can cause.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[doc(hidden)]
pub use tracing;

/// Minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// Start of the time that all limiters count from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Logs a warning at most every 10 s. The arguments are those of [`tracing::warn!`]. The field `times` counts the events
/// since the last line.
#[macro_export]
macro_rules! limited_warn {
    ($($argument:tt)*) => {{
        static LIMITER: $crate::LogLimiter = $crate::LogLimiter::new();
        if let Some(times) = LIMITER.due() {
            $crate::tracing::warn!(times, $($argument)*);
        }
    }};
}

/// A limiter for each of N kinds of an event, so that one kind does not hide another.
#[derive(Debug)]
pub struct LogLimiters<const N: usize>([LogLimiter; N]);

impl<const N: usize> LogLimiters<N> {
    /// Returns limiters that permit a line of each kind at once.
    pub const fn new() -> Self {
        Self([const { LogLimiter::new() }; N])
    }

    /// Counts an event of a kind. If a line is due, returns the number of its events since the last line, including this
    /// one. Kinds from N on share the last limiter.
    pub fn due(&self, kind: usize) -> Option<u64> {
        self.0.get(kind.min(N.saturating_sub(1)))?.due()
    }
}

impl<const N: usize> Default for LogLimiters<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Permits one log line every 10 s, and counts the events in between.
#[derive(Debug, Default)]
pub struct LogLimiter {
    /// Time of the last line, in nanoseconds since [`START`], plus 1; 0 before the first.
    last: AtomicU64,
    /// Number of events since then.
    suppressed: AtomicU64,
}

impl LogLimiter {
    /// Returns a limiter that permits a line at once.
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Counts an event. If a line is due, returns the number of events since the last line, including this one.
    pub fn due(&self) -> Option<u64> {
        self.due_at(START.elapsed())
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
    fn kinds_of_an_event_do_not_hide_each_other() {
        let limiters = LogLimiters::<2>::new();
        assert_eq!([0, 0, 1, 7].map(|kind| limiters.due(kind)), [Some(1), None, Some(1), None]);
    }

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
