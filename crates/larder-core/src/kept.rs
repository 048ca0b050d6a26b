//! How many requests a client's connection still brings, and whether handing it over is worth that.
//!
//! A node that hands a connection over to the one that has its target saves the relaying of one reply, in proportion to that
//! reply's size. From then on every packet of the connection takes a way more, by the node that accepted it, and later requests
//! pay for it. The size from which handing over pays with no request to come, `min`, is taken for what one later request costs
//! too (`bench/peers/transfer.py` measures both; figures are in CLAIMS.md). So a connection is handed over if
//!
//! ```text
//! size >= min * (1 + requests that it is expected to bring after this one)
//! ```
//!
//! The PRESS paper, whose clients ask once on each connection, knows only the first factor.
//!
//! What is expected a node learns from the connections it sees: a life table by powers of two. At *level* j is a connection that
//! has brought 2^j to 2^(j+1) - 1 requests. Of those that were seen there some brought more (*passed*), some ended, having brought
//! `beyond` requests after the 2^j-th. The product-limit estimate (Kaplan and Meier, JASA 1958) then takes the levels one by one:
//! of a connection at its beginning
//!
//! ```text
//! expected(j) = (passed * 2^j + beyond) / (passed + ended)  +  passed / (passed + ended) * expected(j + 1)
//! ```
//!
//! which is the mean of what was seen; within a level those that ended there are taken to have done so evenly. A connection that
//! is handed over is *censored*: it was there, and what became of it is seen elsewhere. The node that it was handed to goes on
//! with its number. So what all nodes hand over they still learn of, each from what it is given.
//!
//! What nobody has seen counts as no request: a node that has seen nothing hands over whatever is large enough.

use crate::unit::Bytes;

/// Levels; what has brought 2^15 requests or more is at the last one, and taken to be at its beginning.
const LEVELS: usize = 16;
/// Connections seen at a level, from which on all that was seen there counts half. So clients that behave otherwise than before
/// are known after some hundreds.
const SEEN_MAX: f64 = 1_024.0;

/// What was seen at a level. Connections, decayed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Level {
    passed: f64,
    ended: f64,
    /// Requests that those which ended had brought after the level's first.
    beyond: f64,
}

/// What a node knows of how long connections last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept([Level; LEVELS]);

impl Kept {
    /// Whether [`Self::came`] learns anything from a connection's `requests`th request: not from its first, nor within a level.
    pub const fn counts(requests: u32) -> bool {
        requests > 1 && requests.is_power_of_two()
    }

    /// A connection has brought its `requests`th request here.
    pub fn came(&mut self, requests: u32) {
        if Self::counts(requests)
            && let Some(level) =
                requests.ilog2().checked_sub(1).and_then(|level| self.0.get_mut(level as usize))
        {
            level.passed += 1.0;
            level.age();
        }
    }

    /// A connection has ended after so many requests. One that brought none says nothing.
    pub fn ended(&mut self, requests: u32) {
        let Some((at, offset)) = place(requests) else { return };
        let level = &mut self.0[at];
        level.ended += 1.0;
        level.beyond += offset;
        level.age();
    }

    /// How many requests a connection is expected to bring after its `requests`th; 0 where nothing is known.
    pub fn expected(&self, requests: u32) -> f64 {
        let Some((at, mut offset)) = place(requests) else { return 0.0 };
        let (mut expected, mut reached) = (0.0, 1.0);
        for (level, width) in self.0.iter().zip(widths()).skip(at) {
            // What is left of the level, and who is left of those that ended in it.
            let rest = width - offset;
            let share = rest / width;
            let alive = level.passed + level.ended * share;
            if alive <= 0.0 {
                break;
            }
            expected += reached * (level.passed * rest + level.beyond * share * share) / alive;
            reached *= level.passed / alive;
            offset = 0.0;
        }
        expected
    }
}

impl Level {
    fn age(&mut self) {
        if self.passed + self.ended >= SEEN_MAX {
            // Exact: binary fractions.
            self.passed /= 2.0;
            self.ended /= 2.0;
            self.beyond /= 2.0;
        }
    }
}

/// Whether a connection is handed over for a reply of this size. `min` is the size from which that pays if no request comes
/// after it; `expected` those that are expected to.
pub fn pays(size: Bytes, min: Bytes, expected: f64) -> bool {
    size.0 as f64 >= min.0 as f64 * (1.0 + expected)
}

/// Requests that a level holds.
fn widths() -> impl Iterator<Item = f64> {
    (0..LEVELS).map(|level| f64::from(1_u32 << level))
}

/// The level of a connection that has brought so many requests, and how many of them after the level's first; `None` for none.
fn place(requests: u32) -> Option<(usize, f64)> {
    let level = requests.checked_ilog2()? as usize;
    if level >= LEVELS - 1 {
        return Some((LEVELS - 1, 0.0));
    }
    Some((level, f64::from(requests - (1 << level))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A connection that brings so many requests, seen from its first to its last.
    fn live(kept: &mut Kept, requests: u32) {
        (1..=requests).for_each(|number| kept.came(number));
        kept.ended(requests);
    }

    fn learned(lives: impl IntoIterator<Item = u32>) -> Kept {
        let mut kept = Kept::default();
        lives.into_iter().for_each(|requests| live(&mut kept, requests));
        kept
    }

    #[test]
    fn nothing_known_is_nothing_expected() {
        let mut kept = Kept::default();
        assert_eq!(kept.expected(1), 0.0);
        // Seen and handed over at once.
        kept.came(1);
        assert_eq!((kept.expected(0), kept.expected(1), kept.expected(u32::MAX)), (0.0, 0.0, 0.0));
        // A first that goes on is expected to go on, as far as it was seen to.
        kept.came(2);
        assert_eq!((kept.expected(1), kept.expected(2)), (1.0, 0.0));
    }

    /// By hand: at level 0 one ends and three pass, at level 1 (2 and 3 requests) one ends after 3 and two pass, at level 2
    /// both end, after 4 and after 6 requests. Mean of 1, 3, 4, 6 less the first: 2.5.
    #[test]
    fn the_mean_of_what_was_seen_is_expected() {
        let kept = learned([1, 3, 4, 6]);
        assert_eq!(kept.expected(1), 2.5);
        assert_eq!(kept.expected(2), (1.0 + 2.0 + 4.0) / 3.0, "of those that brought two");
        assert_eq!(kept.expected(4), 1.0, "0 and 2");
        // In the middle of level 2, at 6: one of two is taken to be there still, and to have a quarter of the two to go.
        assert_eq!(kept.expected(6), 0.5);
    }

    #[test]
    fn what_is_handed_over_says_only_that_it_was_there() {
        let mut kept = learned([4, 4, 4, 4]);
        let before = kept.expected(1);
        // Handed over at their third: they count as going on at their second.
        (0..4).for_each(|_| [1, 2, 3].into_iter().for_each(|number| kept.came(number)));
        assert_eq!(kept.expected(1), before);
        // Those that were given to this node at their third end after their eighth.
        let mut other = kept.clone();
        (0..4).for_each(|_| {
            (4..=8).for_each(|number| other.came(number));
            other.ended(8);
        });
        assert!(other.expected(1) > before, "{} after {before}", other.expected(1));
    }

    #[test]
    fn what_does_not_count_changes_nothing() {
        let before = learned([3, 9]);
        for requests in 0..70_000 {
            let mut after = before.clone();
            after.came(requests);
            assert_eq!(after != before, Kept::counts(requests) && requests <= 1 << 16, "{requests}");
        }
    }

    #[test]
    fn a_size_pays_for_what_is_to_come() {
        let min = Bytes(16_384);
        assert!(pays(Bytes(16_384), min, 0.0) && !pays(Bytes(16_383), min, 0.0));
        assert!(!pays(Bytes(65_535), min, 3.0) && pays(Bytes(65_536), min, 3.0));
        assert!(pays(Bytes(0), Bytes(0), 1e6), "for nothing, whatever comes");
    }

    #[test]
    fn clients_that_change_are_known_after_some_hundreds() {
        let mut kept = learned(core::iter::repeat_n(200, 2_000));
        assert_eq!(kept.expected(1), 199.0);
        (0..1_500).for_each(|_| live(&mut kept, 1));
        assert!(kept.expected(1) < 40.0, "{}", kept.expected(1));
        (0..1_500).for_each(|_| live(&mut kept, 200));
        assert!(kept.expected(1) > 140.0, "{}", kept.expected(1));
    }

    proptest! {
        #[test]
        fn equal_lives_are_known_exactly(requests in 1..40_000_u32, lives in 1..4_u32) {
            let mut kept = Kept::default();
            for _ in 0..lives {
                (0..=requests.ilog2()).for_each(|level| kept.came(1 << level));
                kept.ended(requests);
            }
            let known = requests.min(1 << 15);
            prop_assert!((kept.expected(1) - f64::from(known - 1)).abs() < 1e-6, "{}", kept.expected(1));
        }

        #[test]
        fn it_is_bounded_and_a_life_that_goes_on_never_lowers_it(
            lives in prop::collection::vec(0..100_000_u32, 0..60), at: u32,
        ) {
            let mut kept = Kept::default();
            for requests in lives {
                (0..=requests.checked_ilog2().unwrap_or(0)).for_each(|level| kept.came(1 << level));
                kept.ended(requests);
            }
            let before = kept.expected(at);
            prop_assert!((0.0..=65_536.0).contains(&before), "{before}");
            let next = at.checked_ilog2().and_then(|level| 2_u32.checked_shl(level));
            if let Some(next) = next {
                kept.came(next);
                prop_assert!(kept.expected(at) >= before - 1e-9, "{} after {before}", kept.expected(at));
            }
        }

        /// Whoever goes on with the same chance after each request brings as many more, whatever it has brought.
        #[test]
        fn lives_without_memory_have_the_same_before_them(seed: u64, going_on in 0.5..0.97_f64) {
            let mut state = seed;
            let mut goes_on = || {
                // SplitMix64.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut x = state;
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 <= going_on
            };
            let mut kept = Kept::default();
            for _ in 0..8_000 {
                let mut requests = 1;
                while goes_on() {
                    requests += 1;
                }
                live(&mut kept, requests);
            }
            let mean = going_on / (1.0 - going_on);
            for at in [1, 2, 4] {
                let expected = kept.expected(at);
                prop_assert!((expected - mean).abs() < 0.35 * mean, "{expected} after {at}, the mean is {mean}");
            }
        }

        #[test]
        fn more_to_come_asks_for_more(size: u64, min in 0..1_u64 << 40, expected in 0.0..1e5_f64, more in 0.0..1e5_f64) {
            if pays(Bytes(size), Bytes(min), expected + more) {
                prop_assert!(pays(Bytes(size), Bytes(min), expected));
                prop_assert!(pays(Bytes(size.saturating_add(1)), Bytes(min), expected));
            }
        }
    }
}
