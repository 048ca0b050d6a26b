//! The event calendar: which of many clocks strikes next.
//!
//! Everything in the cluster that serves one thing after another has at most one next event, so the calendar holds
//! one key per clock and a tournament over them: reading the next event is O(1), changing one clock O(log clocks).
//! A run therefore grows linearly with its requests and logarithmically with its nodes.
//!
//! Equal times are ordered by sequence number, so a run is the same on every machine.

use larder_core::Time;

/// When something happens: the time, and among equal times the order in which it was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// Never.
    pub(crate) const NEVER: Self = Self(u128::MAX);

    pub(crate) const fn new(time: Time, seq: u64) -> Self {
        Self(((time.as_nanos() as u128) << 64) | seq as u128)
    }

    pub(crate) const fn time(self) -> Time {
        Time::from_nanos((self.0 >> 64) as u64)
    }
}

/// The clocks and the tournament over them.
#[derive(Debug)]
pub(crate) struct Calendar {
    keys: Vec<Key>,
    /// `winners[p]` is the clock that strikes first in the subtree of `p`; the root is 1, leaves are not stored.
    winners: Vec<u32>,
    leaves: usize,
}

impl Calendar {
    /// `clocks` clocks, none of which strikes.
    pub(crate) fn new(clocks: usize) -> Self {
        let leaves = clocks.next_power_of_two().max(2);
        let mut calendar = Self { keys: vec![Key::NEVER; leaves], winners: vec![0; leaves], leaves };
        for parent in (1..leaves).rev() {
            calendar.winners[parent] = calendar.winner_of(parent);
        }
        calendar
    }

    /// The clock that strikes next, and when; [`Key::NEVER`] if none does.
    pub(crate) fn next(&self) -> (usize, Key) {
        let clock = self.winners[1] as usize;
        (clock, self.keys[clock])
    }

    /// Sets a clock.
    pub(crate) fn set(&mut self, clock: usize, key: Key) {
        self.keys[clock] = key;
        let mut parent = (self.leaves + clock) / 2;
        while parent > 0 {
            self.winners[parent] = self.winner_of(parent);
            parent /= 2;
        }
    }

    fn winner_of(&self, parent: usize) -> u32 {
        let (left, right) = (self.champion(2 * parent), self.champion(2 * parent + 1));
        if self.keys[right as usize] < self.keys[left as usize] { right } else { left }
    }

    fn champion(&self, place: usize) -> u32 {
        if place >= self.leaves { (place - self.leaves) as u32 } else { self.winners[place] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_earliest_clock_is_next(clocks in 1..70_usize, sets in prop::collection::vec((0..70_usize, 0..50_u64), 1..200)) {
            let mut calendar = Calendar::new(clocks);
            let mut naive = vec![Key::NEVER; clocks];
            for (seq, (clock, time)) in sets.into_iter().enumerate() {
                let key = if time == 0 { Key::NEVER } else { Key::new(Time::from_nanos(time), seq as u64) };
                calendar.set(clock % clocks, key);
                naive[clock % clocks] = key;
                let least = naive.iter().copied().min().expect("there is a clock");
                let (found, at) = calendar.next();
                prop_assert_eq!(at, least);
                prop_assert!(least == Key::NEVER || naive[found] == least);
            }
        }
    }
}
