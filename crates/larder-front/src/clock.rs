//! The one clock of a switch: monotonic, counted from its start, as the dispatcher wants it.

use larder_core::Time;
use std::time::Instant;

/// Turns the machine's monotonic clock into [`Time`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    #[cfg(test)]
    pub(crate) fn start() -> Self {
        Self::since(Instant::now())
    }

    /// Counted from an earlier moment: that of a predecessor's, whose times are to hold on.
    pub(crate) fn since(start: Instant) -> Self {
        Self { start }
    }

    pub(crate) fn now(self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The instant of `time`; `None` if it is past what the machine's clock can express.
    pub(crate) fn instant(self, time: Time) -> Option<Instant> {
        self.start.checked_add(time.since(Time::ZERO))
    }
}
