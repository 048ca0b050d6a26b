//! The event calendar: which of many clocks strikes next.
//!
//! Everything in the cluster that serves one thing after another has at most one next event, so the calendar holds
//! one key per clock and a tournament over them: reading the next event is O(1), changing one clock O(log clocks).
//! A run therefore grows linearly with its requests and logarithmically with its nodes.
//!
//! Equal times are ordered by sequence number, so a run is the same on every machine; requests that come by
//! themselves have the lowest, so they come before anything that ends at the same time.

use larder_core::Time;

/// When something happens: the time, and among equal times the order in which it was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    time: Time,
    seq: u64,
}

impl Key {
    /// Never.
    pub(crate) const NEVER: Self = Self { time: Time::MAX, seq: u64::MAX };

    pub(crate) const fn new(time: Time, seq: u64) -> Self {
        Self { time, seq }
    }

    pub(crate) const fn time(self) -> Time {
        self.time
    }

    /// The same, later by `ns`.
    pub(crate) const fn later(self, ns: u64) -> Self {
        Self { time: Time::from_nanos(self.time.as_nanos().saturating_add(ns)), seq: self.seq }
    }
}

/// The clocks and the tournament over them.
#[derive(Debug)]
pub(crate) struct Calendar {
    keys: Vec<Key>,
    /// `winners[p]` is the clock that strikes first in the subtree of `p`. The root is 1; the leaf of clock `c` is
    /// `keys.len() + c`.
    winners: Vec<u32>,
}

impl Calendar {
    /// `clocks` clocks, at most 2^31, none of which strikes.
    pub(crate) fn new(clocks: usize) -> Self {
        let leaves = clocks.next_power_of_two().max(2);
        let mut winners = vec![0; leaves];
        winners.extend(0..leaves as u32);
        for parent in (1..leaves).rev() {
            winners[parent] = winners[2 * parent];
        }
        Self { keys: vec![Key::NEVER; leaves], winners }
    }

    /// The clock that strikes next, and when; [`Key::NEVER`] if none does.
    pub(crate) fn next(&self) -> (usize, Key) {
        let clock = self.winners[1] as usize;
        (clock, self.keys[clock])
    }

    /// Sets a clock.
    pub(crate) fn set(&mut self, clock: usize, key: Key) {
        if self.keys[clock] == key {
            return;
        }
        self.keys[clock] = key;
        let mut parent = (self.keys.len() + clock) / 2;
        while parent > 0 {
            let (left, right) = (self.winners[2 * parent], self.winners[2 * parent + 1]);
            let winner = if self.keys[right as usize] < self.keys[left as usize] { right } else { left };
            // Where another clock wins as before, nothing changes further up.
            if winner == self.winners[parent] && winner as usize != clock {
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
