//! A keyed hash that spreads targets over shards and buckets, so that an attacker cannot select one of them.
//!
//! A target's id is a public function of its URL. Anyone can find URLs whose ids agree in the bits that select a
//! shard or a bucket. [`Spread`] hashes the id once more, with a secret key: `h(x) = (a x + b mod 2^128) / 2^64`.
//! This is the multiply-shift scheme of Dietzfelbinger ("Universal hashing and k-wise independent random variables
//! via integer arithmetic without primes", STACS 1996, theorem 3). With uniform `a` and `b`, `h` is strongly
//! universal: two ids chosen without knowledge of the key agree in `k` given bits with probability `2^-k`. It costs
//! two multiplications and an addition, and needs no table.
//!
//! The key is expanded from 64 random bits. Key 0 means no key: `h(x) = x`. Simulations use it, so that they give
//! the same result on every machine.

use crate::id::TargetId;
use crate::nodes::mix;

/// A keyed function from targets to 64 evenly distributed bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    factor: u128,
    summand: u128,
}

impl Spread {
    /// Creates the function of a key. Key 0 gives the function that returns the target's id.
    pub(crate) fn new(key: u64) -> Self {
        if key == 0 {
            return Self { factor: 1 << 64, summand: 0 };
        }
        let words = [mix(key), mix(key ^ mix(1)), mix(key ^ mix(2)), mix(key ^ mix(3))];
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        Self { factor: wide(words[0], words[1]), summand: wide(words[2], words[3]) }
    }

    /// Returns the bits of a target.
    #[inline]
    pub(crate) const fn of(self, target: TargetId) -> u64 {
        (self.factor.wrapping_mul(target.0 as u128).wrapping_add(self.summand) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_key_ids_are_unchanged() {
        for id in [0, 1, 7 << 32, u64::MAX] {
            assert_eq!(Spread::new(0).of(TargetId(id)), id);
        }
    }

    /// Ids that agree in the bits that select a bucket, a shard, or both, and ids in arithmetic progressions.
    #[test]
    fn every_bit_spreads_chosen_ids_evenly() {
        const IDS: u64 = 1 << 14;
        for step in [1, 1 << 7, 1 << 16, 1 << 38, 1 << 50, 0x9E37_79B9_7F4A_7C15] {
            for key in 1..=16_u64 {
                let spread = Spread::new(mix(key));
                for bit in 0..64 {
                    let ones = (0..IDS)
                        .filter(|n| spread.of(TargetId(n.wrapping_mul(step))) >> bit & 1 == 1)
                        .count();
                    // Far more than 2^14 coin tosses deviate; a bit that does not depend on the ids gives 0 or all.
                    let share = ones as f64 / IDS as f64;
                    assert!((0.3..0.7).contains(&share), "step {step:#x} key {key} bit {bit}: {share}");
                }
            }
        }
    }
}
