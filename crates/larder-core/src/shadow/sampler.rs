//! Which requests a shadow looks at.
//!
//! Two draws, each of one in `q`. *By target* (Waldspurger et al., SHARDS, FAST 2015): all requests of some targets and
//! none of the others, by the target's hash, so that a memory smaller by `q` hits alike. *By lot*: requests of any target,
//! by a hash of target and moment, which show what is hot and how many requests there are in all. Both are functions of
//! what is drawn and of `q` alone: whoever draws again draws the same.

use crate::id::TargetId;
use crate::time::Time;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Draws requests. `q` is a power of two and only grows.
#[derive(Debug)]
pub struct Sampler {
    /// log2 q.
    level: AtomicU32,
}

impl Sampler {
    /// The largest `q`.
    pub const ONE_IN_MAX: u32 = 1 << 16;

    /// Draws one in `one_in`, rounded up to a power of two; 1 to [`Sampler::ONE_IN_MAX`].
    pub fn new(one_in: u32) -> Self {
        let one_in = one_in.clamp(1, Self::ONE_IN_MAX).next_power_of_two();
        Self { level: AtomicU32::new(one_in.ilog2()) }
    }

    /// `q`.
    pub fn one_in(&self) -> u32 {
        1 << self.level.load(Relaxed)
    }

    /// Whether one of the draws takes a request.
    #[inline]
    pub fn draws(&self, target: TargetId, at: Time) -> bool {
        let level = self.level.load(Relaxed);
        by_target(target, level) || by_lot(target, at, level)
    }

    /// Whether a draw by lot of one in 2^`level` takes a request, whatever a sampler does.
    #[inline]
    pub fn lot(target: TargetId, at: Time, level: u32) -> bool {
        by_lot(target, at, level)
    }

    /// Draws half as many from here on. False if it cannot.
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

/// Whether the target's requests are drawn at one in 2^`level`. What is drawn at a level is drawn at all lower ones.
#[inline]
pub(super) fn by_target(target: TargetId, level: u32) -> bool {
    mix(target.0).leading_zeros() >= level
}

/// Whether the request of that moment is drawn at one in 2^`level`.
#[inline]
pub(super) fn by_lot(target: TargetId, at: Time, level: u32) -> bool {
    mix(mix(at.as_nanos()) ^ target.0.rotate_left(32)).leading_zeros() >= level
}

/// SplitMix64's finaliser: policies that place by hash look at the target's own bits, which must not be those that draw.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_q_is_drawn_either_way_and_what_is_drawn_stays_drawn() {
        for level in [0, 3, 6] {
            let (mut targets, mut lots) = (0_i64, 0_i64);
            for n in 0..100_000_u64 {
                let target = TargetId::of(&n.to_le_bytes());
                let drawn = by_target(target, level);
                targets += i64::from(drawn);
                lots += i64::from(by_lot(target, Time::from_nanos(n * 977), level));
                assert!(!drawn || level == 0 || by_target(target, level - 1));
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
    fn what_is_drawn_is_spread_over_nodes_that_are_chosen_by_hash() {
        let mut nodes = [0_u32; 8];
        for n in 0..80_000_u64 {
            let target = TargetId::of(&n.to_le_bytes());
            if by_target(target, 3) {
                nodes[(target.0 % 8) as usize] += 1;
            }
        }
        assert!(nodes.iter().all(|count| (1_100..1_400).contains(count)), "{nodes:?}");
    }

    #[test]
    fn the_rate_halves_down_to_its_end() {
        let sampler = Sampler::new(5);
        assert_eq!(sampler.one_in(), 8);
        assert!(sampler.halve() && sampler.one_in() == 16);
        while sampler.halve() {}
        assert_eq!(sampler.one_in(), Sampler::ONE_IN_MAX);
    }
}
