//! A clock that all switches share closely enough to determine the later one of two changes.
//!
//! Each switch counts nanoseconds since its own start and adds an offset. So its clock is never behind any clock that it
//! has received (Lamport, Communications of the ACM 21(7), 1978, with physical clocks). All switches therefore follow the
//! one that has run the longest, within [`NEAR`] and the delay of a message; the date of no host matters. The clock never
//! goes back. A switch that is behind by less than [`NEAR`] stays behind: two changes that close together are concurrent.

use crate::time::Time;
use core::time::Duration;

/// The largest lag that is not corrected.
const NEAR: Duration = Duration::from_millis(5);

/// The shared clock, as one switch has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedClock {
    clock_offset: Duration,
}

impl SharedClock {
    /// The latest valid time: 146 years.
    pub(super) const LAST: Time = Time::from_nanos(1 << 62);

    /// Returns the offset by which the shared clock is ahead of this switch's own clock.
    pub(super) const fn clock_offset(self) -> Duration {
        self.clock_offset
    }

    /// Converts a time of this switch's own clock to the shared clock.
    pub(super) fn to_shared(self, own: Time) -> Time {
        (own + self.clock_offset).min(Self::LAST)
    }

    /// Converts a time of the shared clock to this switch's own clock, or an earlier time: the shared clock was
    /// never further ahead than now.
    pub(super) fn to_own(self, common: Time) -> Time {
        Time::from_nanos(common.since(Time::ZERO + self.clock_offset).as_nanos() as u64)
    }

    /// Processes the shared clock of another switch, received just now.
    pub(super) fn observe(&mut self, now: Time, clock: Time) {
        if clock.since(self.to_shared(now)) > NEAR {
            self.clock_offset = clock.since(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_is_far_behind_a_received_one() {
        let (mut old, mut young) = (SharedClock::default(), SharedClock::default());
        let (at_old, at_young) = (Time::from_secs(500), Time::from_secs(2));
        old.observe(at_old, young.to_shared(at_young));
        assert_eq!(old.to_shared(at_old), at_old, "a younger one changes nothing");
        young.observe(at_young, old.to_shared(at_old));
        assert_eq!(young.to_shared(at_young), at_old);
        young.observe(at_young, at_old + NEAR);
        assert_eq!(young.to_shared(at_young), at_old, "near enough");
    }
}
