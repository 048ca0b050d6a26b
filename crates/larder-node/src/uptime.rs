//! The node's clock: time since the node was made.

use std::time::{Duration, Instant};

/// The time at which the node was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime(Instant);

impl Uptime {
    /// Starts the clock now.
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    /// Milliseconds until now.
    pub(crate) fn now_ms(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Time until `at`.
    pub(crate) fn at(self, at: Instant) -> Duration {
        at.saturating_duration_since(self.0)
    }
}
