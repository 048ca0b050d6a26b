//! Counters with one copy per thread.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Bounds of a histogram: from 2^6 to 2^26 microseconds (about 67 s).
const FIRST_BOUND_LOG2: u32 = 6;
const BOUNDS: usize = 21;

/// Cells of a histogram: one per bound, one beyond the last, one for the sum in nanoseconds.
pub(crate) const HISTOGRAM_CELLS: usize = BOUNDS + 2;

/// Returns the upper bounds in seconds.
pub(crate) fn bounds_s() -> impl Iterator<Item = f64> {
    (0..BOUNDS as u32).map(|index| f64::from(1_u32 << (FIRST_BOUND_LOG2 + index)) / 1e6)
}

/// Returns the cell of a duration: the first whose bound is not below it.
pub(crate) fn histogram_cell(value: Duration) -> usize {
    let us = u64::try_from(value.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
    let log2_up = u64::BITS - us.saturating_sub(1).leading_zeros();
    (log2_up.saturating_sub(FIRST_BOUND_LOG2) as usize).min(BOUNDS)
}

/// Copies of the counters.
#[derive(Debug)]
pub(crate) struct Cells {
    copies: Box<[ThreadCells]>,
}

/// Copy of one thread. Alignment and padding keep it off the cache lines of other copies.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCells(Box<[AtomicU64]>);

/// Cells of padding: one 128-byte pair of cache lines.
const PADDING: usize = 16;

impl Cells {
    pub(crate) fn new(cells: usize, threads: usize) -> Self {
        let copies = threads.clamp(1, 256).next_power_of_two();
        let copy = || ThreadCells((0..cells + PADDING).map(|_| AtomicU64::new(0)).collect());
        Self { copies: (0..copies).map(|_| copy()).collect() }
    }

    /// Returns the copy of the calling thread.
    pub(crate) fn local(&self) -> &ThreadCells {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static INDEX: usize = NEXT.fetch_add(1, Relaxed));
        &self.copies[INDEX.with(|index| *index) & (self.copies.len() - 1)]
    }

    /// Sets a cell to zero in every copy.
    pub(crate) fn clear(&self, cell: usize) {
        self.copies.iter().for_each(|copy| copy.0[cell].store(0, Relaxed));
    }

    pub(crate) fn sum(&self, cell: usize) -> u64 {
        self.copies.iter().map(|copy| copy.0[cell].load(Relaxed)).sum()
    }
}

impl ThreadCells {
    pub(crate) fn add(&self, cell: usize, amount: u64) {
        self.0[cell].fetch_add(amount, Relaxed);
    }

    pub(crate) fn observe(&self, histogram: usize, value: Duration) {
        self.add(histogram + histogram_cell(value), 1);
        self.add(histogram + HISTOGRAM_CELLS - 1, u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bound_not_below_it() {
        let bounds: Vec<f64> = bounds_s().collect();
        for (us, bound) in [(0, 64e-6), (64, 64e-6), (65, 128e-6), (1_000, 1024e-6), (67_108_864, 67.108864)]
        {
            assert_eq!(bounds[histogram_cell(Duration::from_micros(us))], bound, "{us} us");
        }
        assert_eq!(histogram_cell(Duration::from_nanos(64_001)), 1);
        assert_eq!(histogram_cell(Duration::from_secs(68)), BOUNDS);
        assert_eq!(histogram_cell(Duration::MAX), BOUNDS);
    }

    #[test]
    fn copies_add_up() {
        let cells = Cells::new(3, 4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| cells.local().add(2, 1)));
            }
        });
        assert_eq!((cells.sum(0), cells.sum(2)), (0, 4000));
    }
}
