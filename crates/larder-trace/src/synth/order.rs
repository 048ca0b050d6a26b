//! The order and the times of the requests.
//!
//! Without drift, the requests are a random permutation: the independent reference model with given counts.
//! With drift, the span is divided into days. The requests of a target are spread evenly over the days from
//! its first day on, so that its popularity is steady. The first days of targets are random. The order within
//! a day is random. Arrivals are a Poisson process with exponential gaps, scaled to the span.

use larder_core::Time;

use super::rng::Stream;

/// Daily change of popularity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Number of days of 24 hours, at least 2.
    pub days: u32,
    /// Probability that a popular target is first requested after the first day, 0 to 1. The popular targets
    /// are those with 90 % of the requests.
    pub fresh_popular: f64,
    /// The corresponding probability for the other targets.
    pub fresh_rare: f64,
    /// Number of most requested targets that are requested from the first day on.
    pub steady_top: usize,
}

/// Returns the ranks of the requests in order, as one list per day. Without drift there is one list.
pub(super) fn order_requests(counts: &[u64], drift: Option<&Drift>, seed: u64) -> Vec<Vec<u32>> {
    let mut days = match drift {
        Some(drift) => spread_over_days(counts, drift, &mut Stream::new(seed, "drift")),
        None => {
            let of = |(rank, &count): (u32, &u64)| std::iter::repeat_n(rank, count as usize);
            vec![(0_u32..).zip(counts).flat_map(of).collect()]
        }
    };
    let mut random = Stream::new(seed, "order");
    for day in &mut days {
        random.shuffle(day);
    }
    days
}

/// Distributes the requests of each rank over the days.
fn spread_over_days(counts: &[u64], drift: &Drift, random: &mut Stream) -> Vec<Vec<u32>> {
    let mut days: Vec<Vec<u32>> = vec![Vec::new(); drift.days as usize];
    let all: u64 = counts.iter().sum();
    let mut before = 0;
    for (rank, &count) in counts.iter().enumerate() {
        let fresh = if before * 10 < all * 9 { drift.fresh_popular } else { drift.fresh_rare };
        before += count;
        let is_fresh = random.unit() < fresh && rank >= drift.steady_top;
        // The earlier of two draws is used. A target with a late first day has all its requests in few days,
        // and has more weight there.
        let later = u64::from(drift.days) - 1;
        let birth = if is_fresh { 1 + random.below(later).min(random.below(later)) as usize } else { 0 };
        let alive = days.len() - birth;
        // The requests are spaced evenly over the days at a random offset. The counts of the days differ by
        // at most one.
        let offset = random.unit();
        for i in 0..count {
            let along = ((i as f64 + offset) / count as f64 * alive as f64) as usize;
            days[birth + along.min(alive - 1)].push(rank as u32);
        }
    }
    days
}

/// Returns the rising times of `n` requests, from `start_s` on over a span of `span_s` seconds.
pub(super) fn draw_times(n: usize, start_s: f64, span_s: f64, random: &mut Stream) -> Vec<Time> {
    let mut sum = 0.0;
    let mut sums: Vec<f64> = Vec::with_capacity(n);
    for _ in 0..n {
        sums.push(sum);
        sum -= libm::log(1.0 - random.unit());
    }
    sums.iter().map(|at| Time::from_nanos(((start_s + at / sum * span_s) * 1e9) as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: [u64; 4] = [100, 50, 7, 1];

    fn count_ranks(ranks: &[u32]) -> [u64; 4] {
        let mut counts = [0; 4];
        for &rank in ranks {
            counts[rank as usize] += 1;
        }
        counts
    }

    #[test]
    fn every_request_is_placed_once() {
        let drift = Drift { days: 5, fresh_popular: 0.5, fresh_rare: 0.5, steady_top: 1 };
        for drift in [None, Some(&drift)] {
            assert_eq!(count_ranks(&order_requests(&COUNTS, drift, 3).concat()), COUNTS);
        }
        assert_ne!(order_requests(&COUNTS, None, 3), order_requests(&COUNTS, None, 4));
    }

    #[test]
    fn steady_targets_are_even_and_fresh_targets_start_later() {
        let steady = Drift { days: 5, fresh_popular: 0.0, fresh_rare: 0.0, steady_top: 0 };
        for day in order_requests(&COUNTS, Some(&steady), 3) {
            assert_eq!(count_ranks(&day)[..2], [20, 10]);
        }
        let fresh = Drift { fresh_popular: 1.0, fresh_rare: 1.0, ..steady };
        assert!(order_requests(&COUNTS, Some(&fresh), 3)[0].is_empty());
    }

    #[test]
    fn times_rise_within_the_span() {
        let times = draw_times(1_000, 10.0, 60.0, &mut Stream::new(1, "times"));
        assert!(times.is_sorted());
        assert!(times[0] >= Time::from_secs(10) && times[999] <= Time::from_secs(70));
        let half = times.partition_point(|&time| time < Time::from_secs(40));
        assert!((400..600).contains(&half), "{half}");
    }
}
