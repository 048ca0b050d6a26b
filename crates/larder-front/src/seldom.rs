//! A log line that traffic can cause, at most once in a while.

use larder_core::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How much time lies between two lines at least.
const PAUSE: Duration = Duration::from_secs(10);

/// Says when the next line is due, and counts what was not logged.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// When the last line was logged, in nanoseconds and 1; 0 before the first.
    last: AtomicU64,
    silent: AtomicU64,
}

impl Seldom {
    /// Something happened that is worth a line: how often it has happened since the last one, this time included, or `None`
    /// if it is too early for another.
    pub(crate) fn due(&self, now: Time) -> Option<u64> {
        let last = self.last.load(Relaxed);
        let early = last > 0 && now.as_nanos() < last.saturating_add(PAUSE.as_nanos() as u64);
        let next = now.as_nanos().saturating_add(1);
        if early || self.last.compare_exchange(last, next, Relaxed, Relaxed).is_err() {
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
        let at = |seconds| seldom.due(Time::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(9), at(11), at(12), at(30)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
