//! The sampler, which selects the requests that a shadow uses.
//!
//! There are two kinds of draws, each of one in `q`. A draw *by target* (Waldspurger et al., SHARDS, FAST 2015)
//! selects all requests of some targets and none of the others, by the target's hash. A memory that is smaller by
//! `q` then has the same hit ratio. A *random* draw selects requests of any target, by a hash of target and time; it
//! shows the hot targets and the number of all requests. Both draws are functions of the request and of `q` alone,
//! so a repeated draw gives the same result. Policies that place by hash use the target's own bits, which must not be
//! those that select it.

use crate::id::TargetId;
use crate::nodes::mix;
use crate::time::Time;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A sampler of requests. `q` is a power of two and only grows.
#[derive(Debug)]
pub struct Sampler {
    /// log2 q.
    level: AtomicU32,
}

impl Sampler {
    /// The largest `q`.
    pub const ONE_IN_MAX: u32 = 1 << 16;

    /// Creates a sampler of one in `one_in`, rounded up to a power of two; 1 to [`Sampler::ONE_IN_MAX`].
    pub fn new(one_in: u32) -> Self {
        let one_in = one_in.clamp(1, Self::ONE_IN_MAX).next_power_of_two();
        Self { level: AtomicU32::new(one_in.ilog2()) }
    }

    /// Returns `q`.
    pub fn one_in(&self) -> u32 {
        1 << self.level.load(Relaxed)
    }

    /// Returns whether one of the draws selects a request.
    #[inline]
    pub fn draws(&self, target: TargetId, at: Time) -> bool {
        let level = self.level.load(Relaxed);
        is_drawn_by_target(target, level) || is_drawn_randomly(target, at, level)
    }

    /// Returns whether a random draw of one in 2^`level` selects a request, regardless of any sampler.
    #[inline]
    pub fn draws_at_level(target: TargetId, at: Time, level: u32) -> bool {
        is_drawn_randomly(target, at, level)
    }

    /// Halves the sampling rate. Returns false if that is not possible.
    pub(super) fn halve(&self) -> bool {
        let level = self.level.load(Relaxed);
        let may = 1 << level < Self::ONE_IN_MAX;
        if may {
            self.level.store(level + 1, Relaxed);
        }
        may
    }

    pub(super) fn level(&self) -> u32 {
        self.level.load(Relaxed)
    }
}

/// Returns whether the target's requests are selected at one in 2^`level`. A target selected at a level is selected
/// at all lower levels.
#[inline]
pub(super) fn is_drawn_by_target(target: TargetId, level: u32) -> bool {
    mix(target.0).leading_zeros() >= level
}

/// Returns whether the request at this time is selected at one in 2^`level`.
#[inline]
pub(super) fn is_drawn_randomly(target: TargetId, at: Time, level: u32) -> bool {
    mix(mix(at.as_nanos()) ^ target.0.rotate_left(32)).leading_zeros() >= level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_draws_select_one_in_q_and_are_nested() {
        for level in [0, 3, 6] {
            let (mut targets, mut lots) = (0_i64, 0_i64);
            for n in 0..100_000_u64 {
                let target = TargetId::of(&n.to_le_bytes());
                let drawn = is_drawn_by_target(target, level);
                targets += i64::from(drawn);
                lots += i64::from(is_drawn_randomly(target, Time::from_nanos(n * 977), level));
                assert!(!drawn || level == 0 || is_drawn_by_target(target, level - 1));
            }
            let expected = 100_000_i64 >> level;
            // Four standard deviations of a binomial.
            let slack = (4.0 * (expected as f64).sqrt()) as i64;
            for drawn in [targets, lots] {
                assert!((drawn - expected).abs() <= slack, "{drawn} of {expected}");
            }
        }
    }

    #[test]
    fn drawn_targets_are_spread_over_nodes_chosen_by_hash() {
        let mut nodes = [0_u32; 8];
        for n in 0..80_000_u64 {
            let target = TargetId::of(&n.to_le_bytes());
            if is_drawn_by_target(target, 3) {
                nodes[(target.0 % 8) as usize] += 1;
            }
        }
        assert!(nodes.iter().all(|count| (1_100..1_400).contains(count)), "{nodes:?}");
    }

    #[test]
    fn sampling_rate_halves_down_to_its_minimum() {
        let sampler = Sampler::new(5);
        assert_eq!(sampler.one_in(), 8);
        assert!(sampler.halve() && sampler.one_in() == 16);
        while sampler.halve() {}
        assert_eq!(sampler.one_in(), Sampler::ONE_IN_MAX);
    }
}
