//! A clock that all switches share well enough to say which of two changes is the later one.
//!
//! Each counts nanoseconds since its own start and runs *ahead* of that by as much as it takes not to be behind any that it
//! has heard (Lamport, Communications of the ACM 21(7), 1978, with clocks that run by themselves). So all follow the one
//! that has run the longest, within [`NEAR`] and the time that a message takes; nobody's idea of the date matters. It never
//! goes back. Whoever is behind by less than that stays so: two changes that close together are made without knowing of each other.

use crate::time::Time;
use core::time::Duration;

/// A clock that is behind by no more is left alone.
const NEAR: Duration = Duration::from_millis(5);

/// The common clock, as one switch has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Common {
    ahead: Duration,
}

impl Common {
    /// Later than any clock that is right: 146 years.
    pub(super) const LAST: Time = Time::from_nanos(1 << 62);

    /// How far it runs ahead of the own one.
    pub(super) const fn ahead(self) -> Duration {
        self.ahead
    }

    /// An own time in the common clock.
    pub(super) fn of(self, own: Time) -> Time {
        (own + self.ahead).min(Self::LAST)
    }

    /// A time of the common clock by the own one, or earlier: the clock has never run further ahead than now.
    pub(super) fn own(self, common: Time) -> Time {
        Time::from_nanos(common.since(Time::ZERO + self.ahead).as_nanos() as u64)
    }

    /// Another's clock said this a moment ago.
    pub(super) fn hear(&mut self, now: Time, clock: Time) {
        if clock.since(self.of(now)) > NEAR {
            self.ahead = clock.since(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_far_behind_whom_he_has_heard() {
        let (mut old, mut young) = (Common::default(), Common::default());
        let (at_old, at_young) = (Time::from_secs(500), Time::from_secs(2));
        old.hear(at_old, young.of(at_young));
        assert_eq!(old.of(at_old), at_old, "a younger one changes nothing");
        young.hear(at_young, old.of(at_old));
        assert_eq!(young.of(at_young), at_old);
        young.hear(at_young, at_old + NEAR);
        assert_eq!(young.of(at_young), at_old, "near enough");
    }
}
