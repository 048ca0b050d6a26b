//! The order and the times of the requests.
//!
//! Without drift the requests are one random permutation (the independent reference model with given counts). With
//! drift the span is cut into days: a target's requests are spread evenly over the days from its first day on, so that
//! its popularity is steady, and chance decides which targets are born on a later day. Within a day the order is
//! random. Arrivals are a Poisson process: exponential gaps, scaled to the span.

use larder_core::Time;

use super::rng::Stream;

/// Daily change of what is popular.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Days of 24 hours, at least 2.
    pub days: u32,
    /// Probability that a popular target (of those which take 90 % of the requests) is first asked for on a later
    /// day, 0 to 1.
    pub fresh_popular: f64,
    /// The same for the other targets.
    pub fresh_rare: f64,
    /// So many most requested targets are there from the start.
    pub steady_top: usize,
}

/// The ranks asked for, in order, a list a day (one list without drift).
pub(super) fn days(counts: &[u64], drift: Option<&Drift>, seed: u64) -> Vec<Vec<u32>> {
    let mut days = match drift {
        Some(drift) => spread(counts, drift, &mut Stream::new(seed, "drift")),
        None => {
            let of = |(rank, &count): (u32, &u64)| std::iter::repeat_n(rank, count as usize);
            vec![(0_u32..).zip(counts).flat_map(of).collect()]
        }
    };
    let mut chance = Stream::new(seed, "order");
    for day in &mut days {
        chance.shuffle(day);
    }
    days
}

fn spread(counts: &[u64], drift: &Drift, chance: &mut Stream) -> Vec<Vec<u32>> {
    let mut days: Vec<Vec<u32>> = vec![Vec::new(); drift.days as usize];
    let all: u64 = counts.iter().sum();
    let mut before = 0;
    for (rank, &count) in counts.iter().enumerate() {
        let fresh = if before * 10 < all * 9 { drift.fresh_popular } else { drift.fresh_rare };
        before += count;
        let is_fresh = chance.unit() < fresh && rank >= drift.steady_top;
        // The earlier of two draws: who is born late puts all its requests into few days and weighs more there.
        let later = u64::from(drift.days) - 1;
        let birth = if is_fresh { 1 + chance.below(later).min(chance.below(later)) as usize } else { 0 };
        let alive = days.len() - birth;
        // An even comb over the days alive, at a random offset: each gets its part to within one request.
        let offset = chance.unit();
        for i in 0..count {
            let along = ((i as f64 + offset) / count as f64 * alive as f64) as usize;
            days[birth + along.min(alive - 1)].push(rank as u32);
        }
    }
    days
}

/// Rising times of `n` requests from `start_s` on, over a span of `span_s` seconds.
pub(super) fn times(n: usize, start_s: f64, span_s: f64, chance: &mut Stream) -> Vec<Time> {
    let mut sum = 0.0;
    let mut sums: Vec<f64> = Vec::with_capacity(n);
    for _ in 0..n {
        sums.push(sum);
        sum -= libm::log(1.0 - chance.unit());
    }
    sums.iter().map(|at| Time::from_nanos(((start_s + at / sum * span_s) * 1e9) as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: [u64; 4] = [100, 50, 7, 1];

    fn tally(ranks: &[u32]) -> [u64; 4] {
        let mut tally = [0; 4];
        for &rank in ranks {
            tally[rank as usize] += 1;
        }
        tally
    }

    #[test]
    fn every_request_is_placed_once() {
        let drift = Drift { days: 5, fresh_popular: 0.5, fresh_rare: 0.5, steady_top: 1 };
        for drift in [None, Some(&drift)] {
            assert_eq!(tally(&days(&COUNTS, drift, 3).concat()), COUNTS);
        }
        assert_ne!(days(&COUNTS, None, 3), days(&COUNTS, None, 4));
    }

    #[test]
    fn steady_targets_are_asked_for_evenly_and_fresh_ones_from_a_day_on() {
        let steady = Drift { days: 5, fresh_popular: 0.0, fresh_rare: 0.0, steady_top: 0 };
        for day in days(&COUNTS, Some(&steady), 3) {
            assert_eq!(tally(&day)[..2], [20, 10]);
        }
        let fresh = Drift { fresh_popular: 1.0, fresh_rare: 1.0, ..steady };
        assert!(days(&COUNTS, Some(&fresh), 3)[0].is_empty());
    }

    #[test]
    fn times_rise_within_the_span() {
        let times = times(1_000, 10.0, 60.0, &mut Stream::new(1, "times"));
        assert!(times.is_sorted());
        assert!(times[0] >= Time::from_secs(10) && times[999] <= Time::from_secs(70));
        let half = times.partition_point(|&time| time < Time::from_secs(40));
        assert!((400..600).contains(&half), "{half}");
    }
}
