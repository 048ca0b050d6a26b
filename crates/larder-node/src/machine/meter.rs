//! The time that a real device has been in use by one or more users.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time during which at least one use was in progress, like the utilisation of `iostat`. Never more than the
/// time passed.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<MeterState>);

#[derive(Debug, Default)]
struct MeterState {
    uses: u32,
    since: Option<Instant>,
    before: Duration,
}

/// A use in progress.
#[derive(Debug)]
pub(crate) struct UseGuard<'a>(&'a Meter);

impl Meter {
    /// Begins a use, which ends when the guard is dropped.
    pub(crate) fn begin(&self) -> UseGuard<'_> {
        let mut state = self.lock();
        state.uses += 1;
        state.since.get_or_insert_with(Instant::now);
        UseGuard(self)
    }

    /// Returns the time in use until now.
    pub(crate) fn busy(&self) -> Duration {
        let state = self.lock();
        state.before + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the number of uses in progress.
    pub(crate) fn use_count(&self) -> u32 {
        self.lock().uses
    }

    fn lock(&self) -> MutexGuard<'_, MeterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UseGuard<'_> {
    fn drop(&mut self) {
        let mut state = Meter::lock(self.0);
        state.uses -= 1;
        if state.uses == 0
            && let Some(since) = state.since.take()
        {
            state.before += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_uses_count_once() {
        let meter = Meter::default();
        let start = Instant::now();
        let (first, second) = (meter.begin(), meter.begin());
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(meter.use_count(), 2);
        drop(first);
        let before = meter.busy();
        assert!(before >= Duration::from_millis(2));
        drop(second);
        let after = meter.busy();
        assert!(after >= before && after <= start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(meter.busy(), after, "idle time does not count");
    }
}
