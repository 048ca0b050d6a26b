//! A limit for log lines that traffic can cause.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Permits one log line every 10 s, and counts the events in between.
#[derive(Debug)]
pub struct Seldom {
    start: Instant,
    /// When the last line was permitted, in nanoseconds since `start`, plus 1; 0 before the first.
    last: AtomicU64,
    /// Events since then.
    silent: AtomicU64,
}

impl Default for Seldom {
    fn default() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0), silent: AtomicU64::new(0) }
    }
}

impl Seldom {
    /// Counts an event. Returns the number of events since the last line, this one included, if a line is due; `None` if it
    /// is too early for one.
    pub fn due(&self) -> Option<u64> {
        self.due_at(self.start.elapsed())
    }

    fn due_at(&self, now: Duration) -> Option<u64> {
        let (now, last) = (now.as_nanos() as u64, self.last.load(Relaxed));
        let early = last > 0 && now < last.saturating_add(PAUSE.as_nanos() as u64);
        if early || self.last.compare_exchange(last, now.saturating_add(1), Relaxed, Relaxed).is_err() {
            self.silent.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.silent.swap(0, Relaxed) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_once_and_then_after_a_pause() {
        let seldom = Seldom::default();
        let at = |seconds| seldom.due_at(Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(9), at(11), at(12), at(30)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
