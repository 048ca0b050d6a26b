//! The most requested targets, in little memory.
//!
//! Misra and Gries, "Finding repeated elements", Science of Computer Programming 2 (1982), with `k` counters. A
//! request for a target that has a counter increments it. A request for another target takes a free counter. If none
//! is free, all counters are decremented, and those at zero become free. Of `n` requests no count is too high, and
//! none is too low by more than `n / (k + 1)`. Every target with a larger share of the requests than `1 / (k + 1)`
//! is therefore found.
//!
//! Counts are those of the current window and the previous one, so that old requests are forgotten.

use crate::id::TargetId;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// Counters of the most requested targets. `L` is the label stored with a target.
#[derive(Clone, Debug)]
pub struct TopTargets<L> {
    current: CountingWindow<L>,
    previous: CountingWindow<L>,
}

/// A target with a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopTarget<'a, L> {
    /// The target.
    pub target: TargetId,
    /// The number of requests counted in both windows; never too high.
    pub requests: u64,
    /// The label of the target.
    pub label: &'a L,
}

#[derive(Clone, Debug)]
struct CountingWindow<L> {
    rows: HashTable<Counter<L>>,
    rows_max: usize,
    requests: u64,
}

#[derive(Clone, Debug)]
struct Counter<L> {
    target: TargetId,
    requests: u64,
    label: L,
}

impl<L> TopTargets<L> {
    /// Creates counters for `targets_max` targets per window, at least 1.
    pub fn new(targets_max: usize) -> Self {
        Self { current: CountingWindow::new(targets_max), previous: CountingWindow::new(targets_max) }
    }

    /// Counts a request for `target`. `label` is called if the target gets a counter.
    pub fn count(&mut self, target: TargetId, label: impl FnOnce() -> L) {
        self.current.count(target, label);
    }

    /// Returns the requests counted for a target in both windows.
    pub fn requests_of(&self, target: TargetId) -> u64 {
        self.current.get(target) + self.previous.get(target)
    }

    /// Returns the number of all requests of the current window.
    pub fn window_requests(&self) -> u64 {
        self.current.requests
    }

    /// Returns the number of all requests of both windows.
    pub fn requests(&self) -> u64 {
        self.current.requests + self.previous.requests
    }

    /// Begins a new window and discards the window before the current one.
    pub fn rotate(&mut self) {
        core::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
    }

    /// Discards all counts.
    pub fn clear(&mut self) {
        self.current.clear();
        self.previous.clear();
    }

    /// Returns the `most` most requested targets, the most requested first; equal ones by lower id.
    pub fn top(&self, most: usize) -> Vec<TopTarget<'_, L>> {
        let current = self.current.rows.iter().map(|row| TopTarget {
            target: row.target,
            requests: row.requests + self.previous.get(row.target),
            label: &row.label,
        });
        let previous = self
            .previous
            .rows
            .iter()
            .filter(|row| self.current.get(row.target) == 0)
            .map(|row| TopTarget { target: row.target, requests: row.requests, label: &row.label });
        let mut all: Vec<_> = current.chain(previous).collect();
        all.sort_unstable_by_key(|hot| (core::cmp::Reverse(hot.requests), hot.target));
        all.truncate(most);
        all
    }
}

impl<L> CountingWindow<L> {
    fn new(rows_max: usize) -> Self {
        Self { rows: HashTable::new(), rows_max: rows_max.max(1), requests: 0 }
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.requests = 0;
    }

    fn get(&self, target: TargetId) -> u64 {
        self.rows.find(target.0, |row| row.target == target).map_or(0, |row| row.requests)
    }

    fn count(&mut self, target: TargetId, label: impl FnOnce() -> L) {
        self.requests += 1;
        if let Some(row) = self.rows.find_mut(target.0, |row| row.target == target) {
            row.requests += 1;
        } else if self.rows.len() < self.rows_max {
            let row = Counter { target, requests: 1, label: label() };
            self.rows.insert_unique(target.0, row, |row| row.target.0);
        } else {
            // Each counter that is decremented here was incremented before, so a request costs O(1) on average.
            self.rows.retain(|row| {
                row.requests -= 1;
                row.requests > 0
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u64) -> TargetId {
        TargetId::of(&n.to_le_bytes())
    }

    #[test]
    fn counts_are_discarded_after_two_windows() {
        let mut hottest = TopTargets::new(8);
        (0..5).for_each(|_| hottest.count(id(1), || "one"));
        hottest.rotate();
        (0..3).for_each(|_| hottest.count(id(2), || "two"));
        let top = |hottest: &TopTargets<&'static str>| {
            hottest.top(8).iter().map(|hot| (*hot.label, hot.requests)).collect::<Vec<_>>()
        };
        assert_eq!(top(&hottest), [("one", 5), ("two", 3)]);
        assert_eq!((hottest.window_requests(), hottest.requests()), (3, 8));
        hottest.rotate();
        assert_eq!(top(&hottest), [("two", 3)]);
        hottest.clear();
        assert!(top(&hottest).is_empty());
    }

    proptest! {
        /// The bound of the paper, compared with exact counts.
        #[test]
        fn counts_are_never_too_high_nor_too_low_by_more_than_the_bound(
            asked in prop::collection::vec(0_u64..40, 0..600), counters in 1_usize..12
        ) {
            let mut hottest = TopTargets::new(counters);
            let mut exact = [0_u64; 40];
            for n in &asked {
                hottest.count(id(*n), || ());
                exact[*n as usize] += 1;
            }
            let slack = asked.len() as u64 / (counters as u64 + 1);
            for n in 0..40 {
                let found = hottest.requests_of(id(n));
                prop_assert!(found <= exact[n as usize] && found + slack >= exact[n as usize]);
            }
            prop_assert!(hottest.top(usize::MAX).len() <= counters);
        }
    }
}
