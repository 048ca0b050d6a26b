//! Bounds the lines of a log that traffic causes: one line in a while, with the number of lines left out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets a line pass now and then.
#[derive(Debug, Default)]
pub(super) struct LogGate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogGate {
    /// Returns the number of lines that have been left out since the last line if a line may be written now.
    pub(super) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_passes_in_each_pause_and_says_how_many_did_not() {
        let (gate, begun) = (LogGate::default(), Instant::now());
        assert_eq!(gate.admit(begun), Some(0));
        for ms in [1, 5_000, 9_999] {
            assert_eq!(gate.admit(begun + Duration::from_millis(ms)), None);
        }
        assert_eq!(gate.admit(begun + PAUSE), Some(3));
        assert_eq!(gate.admit(begun + 2 * PAUSE), Some(0));
    }
}
