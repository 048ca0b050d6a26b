//! A clock that all switches share well enough to say which of two changes is the later one.
//!
//! Each counts nanoseconds since its own start and runs *ahead* of that by as much as it takes not to be behind any that it
//! has heard (Lamport, Communications of the ACM 21(7), 1978, with clocks that run by themselves). So all follow the one
//! that has run the longest, within the time that a message takes; nobody's idea of the date matters. It never goes back.
//!
//! What is remembered is kept in each one's own time and turned into the common one when it is told: a switch that learns
//! that it was behind has dated its own changes right all the same. What changed before a switch began is dated at its
//! begin there.

use crate::time::Time;
use core::time::Duration;

/// The common clock, as one switch has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Common {
    ahead: Duration,
}

impl Common {
    /// Later than any clock that is right: 146 years.
    pub(super) const LAST: Time = Time::from_nanos(1 << 62);

    /// An own time in the common clock.
    pub(super) fn of(self, own: Time) -> Time {
        (own + self.ahead).min(Self::LAST)
    }

    /// A time of the common clock in the own one; those before its begin count as its begin.
    pub(super) fn own(self, common: Time) -> Time {
        Time::from_nanos(
            common.as_nanos().saturating_sub(u64::try_from(self.ahead.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// Another's clock said this a moment ago.
    pub(super) fn hear(&mut self, now: Time, clock: Time) {
        self.ahead = self.ahead.max(clock.since(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_behind_whom_he_has_heard() {
        let (mut old, mut young) = (Common::default(), Common::default());
        let (at_old, at_young) = (Time::from_secs(500), Time::from_secs(2));
        old.hear(at_old, young.of(at_young));
        assert_eq!(old.of(at_old), at_old, "a younger one changes nothing");
        young.hear(at_young, old.of(at_old));
        assert_eq!(young.of(at_young), at_old);
        assert_eq!(young.own(young.of(at_young)), at_young);
        assert_eq!(young.own(Time::from_secs(1)), Time::ZERO, "before its begin");
    }
}
