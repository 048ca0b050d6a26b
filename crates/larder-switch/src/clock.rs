//! The clock of a switch: monotonic time since its start, as the dispatcher expects it.

use larder_core::Time;
use std::time::Instant;

/// Converts the monotonic clock to [`Time`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    #[cfg(test)]
    pub(crate) fn start() -> Self {
        Self::since(Instant::now())
    }

    /// Returns a clock that counts from `start`. After a reload, this is the start of the first process, so that
    /// recorded times stay valid.
    pub(crate) fn since(start: Instant) -> Self {
        Self { start }
    }

    pub(crate) fn now(self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the instant of `time`; `None` if the system clock cannot represent it.
    pub(crate) fn instant(self, time: Time) -> Option<Instant> {
        self.start.checked_add(time.since(Time::ZERO))
    }
}
