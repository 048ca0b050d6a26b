//! The expected number of further requests on a client's connection, and the resulting decision to hand it off.
//!
//! A node that hands a connection off to the node that has the target saves the relaying of one reply, in proportion to that
//! reply's size. After that, every packet of the connection takes an additional hop through the node that accepted it, which costs
//! every later request. The size from which a handoff pays without later requests, `min`, is also taken as the cost of one later
//! request (`bench/peers/transfer.py` measures both; figures are in docs/reference/claims.md). A connection is therefore handed off if
//!
//! ```text
//! size >= min * (1 + requests that it is expected to bring after this one)
//! ```
//!
//! The PRESS paper, whose clients send one request per connection, has only the first factor.
//!
//! A node learns the expected number from the connections it serves, with a life table by powers of two. A connection that has
//! brought 2^j to 2^(j+1) - 1 requests is at *level* j. Some connections observed there brought more (*passed*); some ended, having
//! brought `beyond` requests after the 2^j-th. The product-limit estimate (Kaplan and Meier, JASA 1958) processes the levels one by
//! one: for a connection at the beginning of level j
//!
//! ```text
//! expected(j) = (passed * 2^j + beyond) / (passed + ended)  +  passed / (passed + ended) * expected(j + 1)
//! ```
//!
//! This is the mean of the observations. Within a level the ended connections are assumed to have ended evenly. A connection that
//! is handed off is *censored*: it was observed, and its end is observed at another node. That node continues with its number of
//! requests. The nodes together therefore still learn from handed-off connections, each from those it receives.
//!
//! Without observations the expected number is 0, so a node that has observed nothing hands off every large enough reply.

use crate::unit::Bytes;

/// The number of levels. A connection that has brought 2^15 requests or more is at the last level, and counts as at
/// its beginning.
const LEVELS: usize = 16;
/// The number of connections observed at a level after which all observations are halved. A changed behaviour of
/// clients is therefore learned after some hundreds of connections.
const SEEN_MAX: f64 = 1_024.0;

/// The observations at a level, as decayed numbers of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LevelCounts {
    passed: f64,
    ended: f64,
    /// The requests that the ended connections had brought after the level's first.
    beyond: f64,
}

/// A life table of client connections: the observed numbers of requests per connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionLifeTable([LevelCounts; LEVELS]);

impl ConnectionLifeTable {
    /// Returns whether [`Self::record_request`] learns from a connection's request with this number. The first
    /// request and requests within a level teach nothing.
    pub const fn is_informative(requests: u32) -> bool {
        requests > 1 && requests.is_power_of_two()
    }

    /// Records that a connection has brought its request number `requests` here.
    pub fn record_request(&mut self, requests: u32) {
        if Self::is_informative(requests)
            && let Some(level) =
                requests.ilog2().checked_sub(1).and_then(|level| self.0.get_mut(level as usize))
        {
            level.passed += 1.0;
            level.age();
        }
    }

    /// Records that a connection has ended after `requests` requests. A connection without requests teaches nothing.
    pub fn record_end(&mut self, requests: u32) {
        let Some((at, offset)) = place(requests) else { return };
        let level = &mut self.0[at];
        level.ended += 1.0;
        level.beyond += offset;
        level.age();
    }

    /// Returns the expected number of requests after a connection's request number `requests`; 0 if nothing is
    /// known.
    pub fn expected_requests(&self, requests: u32) -> f64 {
        let Some((at, mut offset)) = place(requests) else { return 0.0 };
        let (mut expected, mut reached) = (0.0, 1.0);
        for (level, width) in self.0.iter().zip(widths()).skip(at) {
            // The rest of the level, and the connections remaining of those that ended in it.
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

impl LevelCounts {
    fn age(&mut self) {
        if self.passed + self.ended >= SEEN_MAX {
            // Halving binary fractions is exact.
            self.passed /= 2.0;
            self.ended /= 2.0;
            self.beyond /= 2.0;
        }
    }
}

/// Returns whether a connection is handed off for a reply of this size. `min` is the size from which a handoff pays
/// without later requests; `expected_requests` is the expected number of later requests.
pub fn is_handoff_worthwhile(size: Bytes, min: Bytes, expected: f64) -> bool {
    size.0 as f64 >= min.0 as f64 * (1.0 + expected)
}

/// Returns the number of requests in each level.
fn widths() -> impl Iterator<Item = f64> {
    (0..LEVELS).map(|level| f64::from(1_u32 << level))
}

/// Returns the level of a connection that has brought this number of requests, and the number of requests after the
/// level's first; `None` for 0 requests.
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

    /// Records a connection with this number of requests, observed from its first to its last.
    fn live(kept: &mut ConnectionLifeTable, requests: u32) {
        (1..=requests).for_each(|number| kept.record_request(number));
        kept.record_end(requests);
    }

    fn learned(lives: impl IntoIterator<Item = u32>) -> ConnectionLifeTable {
        let mut kept = ConnectionLifeTable::default();
        lives.into_iter().for_each(|requests| live(&mut kept, requests));
        kept
    }

    #[test]
    fn without_observations_nothing_is_expected() {
        let mut kept = ConnectionLifeTable::default();
        assert_eq!(kept.expected_requests(1), 0.0);
        // Observed and handed off at once.
        kept.record_request(1);
        assert_eq!(
            (kept.expected_requests(0), kept.expected_requests(1), kept.expected_requests(u32::MAX)),
            (0.0, 0.0, 0.0)
        );
        // A first connection that continues is expected to continue, as far as it was observed.
        kept.record_request(2);
        assert_eq!((kept.expected_requests(1), kept.expected_requests(2)), (1.0, 0.0));
    }

    /// By hand: at level 0 one ends and three pass; at level 1 (2 and 3 requests) one ends after 3 and two pass; at
    /// level 2 both end, after 4 and after 6 requests. The mean of 1, 3, 4, 6 less the first: 2.5.
    #[test]
    fn expectation_is_the_mean_of_the_observations() {
        let kept = learned([1, 3, 4, 6]);
        assert_eq!(kept.expected_requests(1), 2.5);
        assert_eq!(kept.expected_requests(2), (1.0 + 2.0 + 4.0) / 3.0, "of those that brought two");
        assert_eq!(kept.expected_requests(4), 1.0, "0 and 2");
        // In the middle of level 2, at 6: one of two is assumed to remain, with a quarter of the two to come.
        assert_eq!(kept.expected_requests(6), 0.5);
    }

    #[test]
    fn handed_off_connections_are_censored() {
        let mut kept = learned([4, 4, 4, 4]);
        let before = kept.expected_requests(1);
        // Handed off at their third request: they count as continuing at their second.
        (0..4).for_each(|_| [1, 2, 3].into_iter().for_each(|number| kept.record_request(number)));
        assert_eq!(kept.expected_requests(1), before);
        // The connections that were given to this node at their third request end after their eighth.
        let mut other = kept.clone();
        (0..4).for_each(|_| {
            (4..=8).for_each(|number| other.record_request(number));
            other.record_end(8);
        });
        assert!(other.expected_requests(1) > before, "{} after {before}", other.expected_requests(1));
    }

    #[test]
    fn uninformative_requests_change_nothing() {
        let before = learned([3, 9]);
        for requests in 0..70_000 {
            let mut after = before.clone();
            after.record_request(requests);
            assert_eq!(
                after != before,
                ConnectionLifeTable::is_informative(requests) && requests <= 1 << 16,
                "{requests}"
            );
        }
    }

    #[test]
    fn size_threshold_grows_with_expected_requests() {
        let min = Bytes(16_384);
        assert!(
            is_handoff_worthwhile(Bytes(16_384), min, 0.0) && !is_handoff_worthwhile(Bytes(16_383), min, 0.0)
        );
        assert!(
            !is_handoff_worthwhile(Bytes(65_535), min, 3.0) && is_handoff_worthwhile(Bytes(65_536), min, 3.0)
        );
        assert!(is_handoff_worthwhile(Bytes(0), Bytes(0), 1e6), "for nothing, whatever comes");
    }

    #[test]
    fn changed_behaviour_is_learned_after_some_hundreds() {
        let mut kept = learned(core::iter::repeat_n(200, 2_000));
        assert_eq!(kept.expected_requests(1), 199.0);
        (0..1_500).for_each(|_| live(&mut kept, 1));
        assert!(kept.expected_requests(1) < 40.0, "{}", kept.expected_requests(1));
        (0..1_500).for_each(|_| live(&mut kept, 200));
        assert!(kept.expected_requests(1) > 140.0, "{}", kept.expected_requests(1));
    }

    proptest! {
        #[test]
        fn equal_lifetimes_are_predicted_exactly(requests in 1..40_000_u32, lives in 1..4_u32) {
            let mut kept = ConnectionLifeTable::default();
            for _ in 0..lives {
                (0..=requests.ilog2()).for_each(|level| kept.record_request(1 << level));
                kept.record_end(requests);
            }
            let known = requests.min(1 << 15);
            prop_assert!((kept.expected_requests(1) - f64::from(known - 1)).abs() < 1e-6, "{}", kept.expected_requests(1));
        }

        #[test]
        fn expectation_is_bounded_and_never_lowered_by_a_longer_connection(
            lives in prop::collection::vec(0..100_000_u32, 0..60), at: u32,
        ) {
            let mut kept = ConnectionLifeTable::default();
            for requests in lives {
                (0..=requests.checked_ilog2().unwrap_or(0)).for_each(|level| kept.record_request(1 << level));
                kept.record_end(requests);
            }
            let before = kept.expected_requests(at);
            prop_assert!((0.0..=65_536.0).contains(&before), "{before}");
            let next = at.checked_ilog2().and_then(|level| 2_u32.checked_shl(level));
            if let Some(next) = next {
                kept.record_request(next);
                prop_assert!(kept.expected_requests(at) >= before - 1e-9, "{} after {before}", kept.expected_requests(at));
            }
        }

        /// If a connection continues with the same probability after each request, it brings as many more requests,
        /// whatever it has brought.
        #[test]
        fn memoryless_lifetimes_have_a_constant_expectation(seed: u64, going_on in 0.5..0.97_f64) {
            let mut state = seed;
            let mut goes_on = || {
                // SplitMix64.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut x = state;
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 <= going_on
            };
            let mut kept = ConnectionLifeTable::default();
            for _ in 0..8_000 {
                let mut requests = 1;
                while goes_on() {
                    requests += 1;
                }
                live(&mut kept, requests);
            }
            let mean = going_on / (1.0 - going_on);
            for at in [1, 2, 4] {
                let expected = kept.expected_requests(at);
                prop_assert!((expected - mean).abs() < 0.35 * mean, "{expected} after {at}, the mean is {mean}");
            }
        }

        #[test]
        fn more_expected_requests_need_a_larger_size(size: u64, min in 0..1_u64 << 40, expected in 0.0..1e5_f64, more in 0.0..1e5_f64) {
            if is_handoff_worthwhile(Bytes(size), Bytes(min), expected + more) {
                prop_assert!(is_handoff_worthwhile(Bytes(size), Bytes(min), expected));
                prop_assert!(is_handoff_worthwhile(Bytes(size.saturating_add(1)), Bytes(min), expected));
            }
        }
    }
}
