//! The cost of a miss: fixed, or measured from the requests that end.

use crate::policy::CacheResult;
use crate::range::{SettingsError, in_range};
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// The parameters of `lard-cost`. M is measured. L_idle, L_overload and the initial value of M are the paper's
/// (USENIX 1999, section 4, Apache 1.3.3 on FreeBSD 2.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostSettings {
    /// L_idle: the load below which a node is under-used. Connections; 1 to 100,000; default 30.
    pub idle: u32,
    /// L_overload: the load above which no more delay is acceptable. Connections; above `idle`, to 100,000; default
    /// 130.
    pub overload: u32,
    /// M: the cost of a miss. Default: measured, and 50 until enough is known.
    pub miss: MissCost,
}

/// The cost of a miss, in delays of a request for a cached target at an unloaded node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissCost {
    /// A fixed cost, 1 to 1,000.
    Fixed(u32),
    /// A cost measured from the requests that end. 1 to 1,000.
    Measured {
        /// The cost until enough samples are known.
        default: u32,
    },
}

impl CostSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let (idle, overload) = (self.idle, self.overload);
        in_range("cost.idle", idle.into(), (1..=100_000).contains(&idle), "1 to 100000")?;
        let ok = overload > idle && overload <= 100_000;
        in_range("cost.overload", overload.into(), ok, "above cost.idle, at most 100000")?;
        let (MissCost::Fixed(units) | MissCost::Measured { default: units }) = self.miss;
        in_range("cost.miss", units.into(), (1..=MISS_MAX).contains(&units), "1 to 1000")
    }
}

impl Default for CostSettings {
    fn default() -> Self {
        Self { idle: 30, overload: 130, miss: MissCost::Measured { default: 50 } }
    }
}

/// The largest cost of a miss, in units.
const MISS_MAX: u32 = 1_000;
/// The number of samples of hits and of misses before the measured cost is used.
const SAMPLES_MIN: u32 = 64;
/// The number of samples of one kind after which the counts are halved.
const SAMPLES_MAX: u32 = 4_096;
/// The number of samples between two computations of the medians.
const LOOK: u32 = 64;
/// The number of time classes: eight per doubling from 1 us up; the last class contains all times from 2^32 us on.
const CLASSES: usize = 32 * 8;

/// The measured times of hits and misses.
#[derive(Debug, Default)]
pub(in crate::policy) struct MissCostEstimator {
    /// M in 1/1000; 0 while it is unknown.
    milli: AtomicU64,
    times: Mutex<LatencyHistograms>,
}

#[derive(Debug, Default)]
struct LatencyHistograms {
    hits: Histogram,
    misses: Histogram,
    since_look: u32,
}

#[derive(Debug)]
struct Histogram {
    counts: Box<[u32; CLASSES]>,
    total: u32,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; CLASSES]), total: 0 }
    }
}

impl MissCostEstimator {
    /// Returns M in 1/1000; 0 while it is unknown.
    pub(in crate::policy) fn milli(&self) -> u64 {
        self.milli.load(Ordering::Relaxed)
    }

    /// Returns all measurements: M, the samples since the last computation, then the histograms of hits and of
    /// misses.
    pub(in crate::policy) fn numbers(&self) -> Vec<u64> {
        let times = self.times.lock();
        let counts = times.hits.counts.iter().chain(times.misses.counts.iter());
        [self.milli(), times.since_look.into()]
            .into_iter()
            .chain(counts.map(|count| u64::from(*count)))
            .collect()
    }

    /// Restores the measurements of another instance.
    pub(in crate::policy) fn resume(&self, numbers: &[u64]) {
        let Some((&[milli, since_look], counts)) = numbers.split_first_chunk::<2>() else { return };
        if counts.len() != 2 * CLASSES {
            return;
        }
        let (hits, misses) = counts.split_at(CLASSES);
        let mut times = self.times.lock();
        (times.hits, times.misses) = (Histogram::of(hits), Histogram::of(misses));
        times.since_look = since_look.min(LOOK.into()) as u32;
        if milli > 0 {
            self.milli.store(milli.clamp(1_000, u64::from(MISS_MAX) * 1_000), Ordering::Relaxed);
        }
    }

    /// Adds the time of one request. If another thread is adding one, the sample is dropped.
    pub(in crate::policy) fn sample(&self, found: CacheResult, elapsed: Duration) {
        let Some(mut times) = self.times.try_lock() else { return };
        match found {
            CacheResult::Hit => times.hits.add(elapsed),
            CacheResult::Miss => times.misses.add(elapsed),
        }
        times.since_look += 1;
        if times.since_look < LOOK {
            return;
        }
        times.since_look = 0;
        if let (Some(hit), Some(miss)) = (times.hits.median_ns(), times.misses.median_ns()) {
            let milli = (miss.saturating_mul(1000) / hit).clamp(1_000, u64::from(MISS_MAX) * 1_000);
            self.milli.store(milli, Ordering::Relaxed);
        }
    }
}

impl Histogram {
    /// Creates a histogram from these counts, each limited to the largest possible count.
    fn of(counts: &[u64]) -> Self {
        let mut made = Self::default();
        for (count, from) in made.counts.iter_mut().zip(counts) {
            *count = (*from).min(SAMPLES_MAX.into()) as u32;
        }
        made.total = made.counts.iter().sum();
        made
    }

    fn add(&mut self, elapsed: Duration) {
        self.counts[class(elapsed)] += 1;
        self.total += 1;
        if self.total >= SAMPLES_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// Returns the middle of the median's class; `None` if there are too few samples.
    fn median_ns(&self) -> Option<u64> {
        if self.total < SAMPLES_MIN {
            return None;
        }
        let mut below = 0;
        let index = self.counts.iter().position(|count| {
            below += count;
            below * 2 >= self.total
        });
        index.map(|index| (floor_ns(index) + floor_ns(index + 1)) / 2)
    }
}

/// Returns the class of a time.
fn class(elapsed: Duration) -> usize {
    let eighths = u64::try_from(elapsed.as_nanos() / 125).unwrap_or(u64::MAX).max(8);
    let octave = eighths.ilog2() - 3;
    let eighth = (eighths >> octave) & 7;
    (octave as usize * 8 + eighth as usize).min(CLASSES - 1)
}

/// Returns the lowest time of a class, in nanoseconds.
const fn floor_ns(index: usize) -> u64 {
    ((8 + index as u64 % 8) * 125) << (index / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_classes_are_an_eighth_of_a_doubling_wide() {
        for ns in (1_000..200_000).step_by(37).chain([28_000_000, 3_600_000_000_000]) {
            let index = class(Duration::from_nanos(ns));
            assert!(floor_ns(index) <= ns && ns < floor_ns(index + 1), "{ns} in {index}");
        }
        assert_eq!(class(Duration::ZERO), 0);
        assert_eq!(class(Duration::MAX), CLASSES - 1);
    }

    #[test]
    fn miss_cost_is_the_ratio_of_the_medians() {
        let misses = MissCostEstimator::default();
        for i in 0..2_000_u64 {
            // Every twentieth client takes a minute, for hits and misses alike.
            let slow = Duration::from_secs(if i % 20 == 0 { 60 } else { 0 });
            misses.sample(CacheResult::Hit, Duration::from_micros(900 + i % 60) + slow);
            if i == 40 {
                assert_eq!(misses.milli(), 0, "too few samples");
            }
            misses.sample(CacheResult::Miss, Duration::from_micros(28_000 + i % 1_000) + slow);
        }
        let milli = misses.milli();
        assert!((27_000..=34_000).contains(&milli), "28.5 ms over 0.93 ms is 30.6: {milli}");
        // The disk is replaced by one ten times as fast: old samples fade.
        (0..20_000).for_each(|_| misses.sample(CacheResult::Miss, Duration::from_micros(2_850)));
        let milli = misses.milli();
        assert!((2_700..=3_400).contains(&milli), "{milli}");
    }

    #[test]
    fn the_measured_cost_is_bounded() {
        let ratio = |hit_us, miss_us| {
            let misses = MissCostEstimator::default();
            for _ in 0..128 {
                misses.sample(CacheResult::Hit, Duration::from_micros(hit_us));
                misses.sample(CacheResult::Miss, Duration::from_micros(miss_us));
            }
            misses.milli()
        };
        assert_eq!(ratio(500, 20), 1_000, "a miss never costs less than a hit");
        assert_eq!(ratio(1, 60_000_000), 1_000_000);
    }
}
