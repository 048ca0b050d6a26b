//! Random number streams by xoshiro256++ (Blackman and Vigna), one for each use.
//!
//! SplitMix64 initializes the state of a stream from an XXH3-64 hash. The hash is over the seed of the run (8
//! bytes, little-endian) and the name of the stream. Therefore an additional draw in one place changes
//! nothing in another.
//!
//! All values are computed from whole 64-bit outputs and with `libm`, which gives the same bits on every
//! machine.

use larder_core::TargetId;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A stream of random numbers. The same seed and name give the same numbers on every machine.
#[derive(Debug)]
pub struct Stream(Xoshiro256PlusPlus);

impl Stream {
    /// Creates the stream of this name for a seed.
    pub fn new(seed: u64, name: &str) -> Self {
        let hash = TargetId::of_parts(&[&seed.to_le_bytes(), name.as_bytes()]).0;
        Self(Xoshiro256PlusPlus::seed_from_u64(hash))
    }

    /// Returns a uniform value of at least 0 and below 1, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a uniform integer of at least 0 and below `n`, without bias (multiplication method of Lemire).
    /// `n` is at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        let reject = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(n);
            if product as u64 >= reject {
                return (product >> 64) as u64;
            }
        }
    }

    /// Shuffles the items. Every order is equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end as u64) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_seed_and_name() {
        let first = |seed, name| Stream::new(seed, name).below(u64::MAX);
        assert_eq!(first(1, "order"), first(1, "order"));
        assert_ne!(first(1, "order"), first(2, "order"));
        assert_ne!(first(1, "order"), first(1, "sizes"));
    }

    #[test]
    fn draws_are_uniform() {
        let mut stream = Stream::new(7, "test");
        let mut counts = [0_u32; 6];
        let mut sum = 0.0;
        for _ in 0..60_000 {
            counts[stream.below(6) as usize] += 1;
            sum += stream.unit();
        }
        // Ten thousand of each are expected. Six standard deviations are 550.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 550), "{counts:?}");
        assert!((sum / 60_000.0 - 0.5).abs() < 0.01);
    }

    #[test]
    fn a_shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..1_000).collect();
        Stream::new(1, "test").shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..1_000));
    }
}
