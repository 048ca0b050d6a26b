//! The event calendar (future event list): finds the timer that expires next.
//!
//! Every component that serves jobs one after another has at most one next event. The calendar therefore
//! holds one key per timer and a tournament tree over the timers. Reading the next event is O(1); setting one
//! timer is O(log timers). The time of a run grows linearly with its requests and logarithmically with its
//! nodes.
//!
//! Events at equal times are ordered by sequence number, so a run is the same on every machine. Arrivals of
//! the source have the lowest number: they precede every event at the same time.

use larder_core::Time;

/// The time of an event, and its rank among events at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventKey {
    time: Time,
    seq: u64,
}

impl EventKey {
    /// The key of a timer that is not set.
    pub(crate) const NEVER: Self = Self { time: Time::MAX, seq: u64::MAX };

    pub(crate) const fn new(time: Time, seq: u64) -> Self {
        Self { time, seq }
    }

    pub(crate) const fn time(self) -> Time {
        self.time
    }

    /// Returns the key delayed by `ns` nanoseconds.
    pub(crate) const fn later(self, ns: u64) -> Self {
        Self { time: Time::from_nanos(self.time.as_nanos().saturating_add(ns)), seq: self.seq }
    }
}

/// The timers and the tournament tree over them.
#[derive(Debug)]
pub(crate) struct Calendar {
    keys: Vec<EventKey>,
    /// `winners[p]` is the timer that expires first in the subtree of `p`. The root is 1; the leaf of timer
    /// `c` is `keys.len() + c`.
    winners: Vec<u32>,
}

impl Calendar {
    /// Creates a calendar of `timers` timers, at most 2^31, none of them set.
    pub(crate) fn new(timers: usize) -> Self {
        let leaves = timers.next_power_of_two().max(2);
        let mut winners = vec![0; leaves];
        winners.extend(0..leaves as u32);
        for parent in (1..leaves).rev() {
            winners[parent] = winners[2 * parent];
        }
        Self { keys: vec![EventKey::NEVER; leaves], winners }
    }

    /// Returns the timer that expires next, and its key; [`EventKey::NEVER`] if no timer is set.
    pub(crate) fn next(&self) -> (usize, EventKey) {
        let timer = self.winners[1] as usize;
        (timer, self.keys[timer])
    }

    /// Returns the key of a timer.
    pub(crate) fn key(&self, timer: usize) -> EventKey {
        self.keys[timer]
    }

    /// Sets the key of a timer.
    pub(crate) fn set(&mut self, timer: usize, key: EventKey) {
        if self.keys[timer] == key {
            return;
        }
        self.keys[timer] = key;
        let mut parent = (self.keys.len() + timer) / 2;
        while parent > 0 {
            let (left, right) = (self.winners[2 * parent], self.winners[2 * parent + 1]);
            let winner = if self.keys[right as usize] < self.keys[left as usize] { right } else { left };
            // If another timer wins as before, no node further up changes.
            if winner == self.winners[parent] && winner as usize != timer {
                return;
            }
            self.winners[parent] = winner;
            parent /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_earliest_clock_is_next(timers in 1..70_usize, sets in prop::collection::vec((0..70_usize, 0..50_u64), 1..200)) {
            let mut calendar = Calendar::new(timers);
            let mut naive = vec![EventKey::NEVER; timers];
            for (seq, (timer, time)) in sets.into_iter().enumerate() {
                let key = if time == 0 { EventKey::NEVER } else { EventKey::new(Time::from_nanos(time), seq as u64) };
                calendar.set(timer % timers, key);
                naive[timer % timers] = key;
                let least = naive.iter().copied().min().expect("there is a clock");
                let (found, at) = calendar.next();
                prop_assert_eq!(at, least);
                prop_assert!(least == EventKey::NEVER || naive[found] == least);
            }
        }
    }
}
