//! The node's clock: the time since the node was created.

use std::time::{Duration, Instant};

/// The time at which the node was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime(Instant);

impl Uptime {
    /// Starts the clock.
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    /// Returns the milliseconds since the node was created.
    pub(crate) fn now_ms(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the time between the node's creation and `at`; zero if `at` is earlier.
    pub(crate) fn elapsed_at(self, at: Instant) -> Duration {
        at.saturating_duration_since(self.0)
    }
}
