//! The targets that are asked for most, in little memory.
//!
//! Misra and Gries, "Finding repeated elements", Science of Computer Programming 2 (1982): `k` counters; a target that
//! has one counts up, one that has none takes a free one, and where none is free all count down by one and those at zero
//! are freed. Of `n` requests no count is too high, and none is too low by more than `n / (k + 1)`. So every target with a
//! larger share of the requests than `1 / (k + 1)` is found.
//!
//! Two windows follow each other, so that what was hot is forgotten: counts are those of the present window and the one
//! before.

use crate::id::TargetId;
use hashbrown::HashTable;

/// Counts what is asked for most. `L` is what is known of a target beside its id.
#[derive(Clone, Debug)]
pub struct Hottest<L> {
    present: Window<L>,
    before: Window<L>,
}

/// A target that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot<'a, L> {
    /// The target.
    pub target: TargetId,
    /// Requests counted in both windows; never too many.
    pub requests: u64,
    /// What is known of it.
    pub label: &'a L,
}

#[derive(Clone, Debug)]
struct Window<L> {
    rows: HashTable<Row<L>>,
    rows_max: usize,
    requests: u64,
}

#[derive(Clone, Debug)]
struct Row<L> {
    target: TargetId,
    requests: u64,
    label: L,
}

impl<L> Hottest<L> {
    /// Keeps `targets_max` counters a window, at least 1.
    pub fn new(targets_max: usize) -> Self {
        Self { present: Window::new(targets_max), before: Window::new(targets_max) }
    }

    /// A request for `target`; `label` is asked for where the target gets a counter.
    pub fn note(&mut self, target: TargetId, label: impl FnOnce() -> L) {
        self.present.note(target, label);
    }

    /// Requests counted for a target in both windows.
    pub fn requests_of(&self, target: TargetId) -> u64 {
        self.present.get(target) + self.before.get(target)
    }

    /// All requests of the present window, whatever they asked for.
    pub fn window_requests(&self) -> u64 {
        self.present.requests
    }

    /// All requests of both windows.
    pub fn requests(&self) -> u64 {
        self.present.requests + self.before.requests
    }

    /// Begins another window; the counts of the one before the present one are forgotten.
    pub fn turn(&mut self) {
        core::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.present.clear();
        self.before.clear();
    }

    /// The `most` hottest, the hottest first; of equal ones the lower id.
    pub fn top(&self, most: usize) -> Vec<Hot<'_, L>> {
        let present = self.present.rows.iter().map(|row| Hot {
            target: row.target,
            requests: row.requests + self.before.get(row.target),
            label: &row.label,
        });
        let before = self.before.rows.iter().filter(|row| self.present.get(row.target) == 0).map(|row| Hot {
            target: row.target,
            requests: row.requests,
            label: &row.label,
        });
        let mut all: Vec<_> = present.chain(before).collect();
        all.sort_unstable_by_key(|hot| (core::cmp::Reverse(hot.requests), hot.target));
        all.truncate(most);
        all
    }
}

impl<L> Window<L> {
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

    fn note(&mut self, target: TargetId, label: impl FnOnce() -> L) {
        self.requests += 1;
        if let Some(row) = self.rows.find_mut(target.0, |row| row.target == target) {
            row.requests += 1;
        } else if self.rows.len() < self.rows_max {
            let row = Row { target, requests: 1, label: label() };
            self.rows.insert_unique(target.0, row, |row| row.target.0);
        } else {
            // Each counter that is taken down here was counted up before, so that a request costs O(1) on average.
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
    fn what_cools_down_is_forgotten_after_two_windows() {
        let mut hottest = Hottest::new(8);
        (0..5).for_each(|_| hottest.note(id(1), || "one"));
        hottest.turn();
        (0..3).for_each(|_| hottest.note(id(2), || "two"));
        let top = |hottest: &Hottest<&'static str>| {
            hottest.top(8).iter().map(|hot| (*hot.label, hot.requests)).collect::<Vec<_>>()
        };
        assert_eq!(top(&hottest), [("one", 5), ("two", 3)]);
        assert_eq!((hottest.window_requests(), hottest.requests()), (3, 8));
        hottest.turn();
        assert_eq!(top(&hottest), [("two", 3)]);
        hottest.clear();
        assert!(top(&hottest).is_empty());
    }

    proptest! {
        /// The bound of the paper, against exact counts.
        #[test]
        fn counts_are_never_too_high_nor_too_low_by_more_than_the_bound(
            asked in prop::collection::vec(0_u64..40, 0..600), counters in 1_usize..12
        ) {
            let mut hottest = Hottest::new(counters);
            let mut exact = [0_u64; 40];
            for n in &asked {
                hottest.note(id(*n), || ());
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
