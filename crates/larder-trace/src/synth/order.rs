//! The order and the times of the requests.
//!
//! Without drift, the requests are a random permutation: the independent reference model with given counts.
//! With *locality*, a share of the requests repeats a recent target ([`localize`]).
//! With drift, the span is divided into days. The requests of a target are spread evenly over the days from
//! its first day on, so that its popularity is steady. The first days of targets are random. The order within
//! a day is random. Arrivals are a Poisson process with exponential gaps, scaled to the span.

use std::collections::VecDeque;

use larder_core::Time;

use super::rng::Stream;

/// Depth of the stack of recent targets as a share of all targets.
const STACK_SHARE: f64 = 0.02;

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
/// A share `locality` of the requests repeats a recent target.
pub(super) fn order_requests(
    counts: &[u64],
    drift: Option<&Drift>,
    locality: f64,
    seed: u64,
) -> Vec<Vec<u32>> {
    let mut days = match drift {
        Some(drift) => spread_over_days(counts, drift, &mut Stream::new(seed, "drift")),
        None => {
            let of = |(rank, &count): (u32, &u64)| std::iter::repeat_n(rank, count as usize);
            vec![(0_u32..).zip(counts).flat_map(of).collect()]
        }
    };
    let mut random = Stream::new(seed, "order");
    let mut repeats = Stream::new(seed, "locality");
    for day in &mut days {
        random.shuffle(day);
        if locality > 0.0 {
            *day = localize(day, counts.len(), locality, &mut repeats);
        }
    }
    days
}

/// Returns the same requests with temporal locality: an LRU stack of finite depth, as in ProWGen (Busari and
/// Williamson, INFOCOM 2001). With probability `locality`, a request repeats a target of the stack. The
/// logarithm of the depth is uniform, so that depth `k` has a probability of about `1/k`, as in logs (Cao and Irani,
/// USITS 1997); exactly it is `ln(1 + 1/k) / ln(n + 1)` in a stack of `n` targets. The repetition takes the place of the target's next
/// request, so that the number of requests of every target stays. If the target has no further request, the
/// next request of the original order follows. Targets of the stack are also requested by chance. Cost: O(depth) for
/// a request, where the depth is 2 % of the targets.
fn localize(order: &[u32], targets: usize, locality: f64, random: &mut Stream) -> Vec<u32> {
    let mut left = vec![0_u32; targets];
    order.iter().for_each(|&rank| left[rank as usize] += 1);
    // Repetitions whose request in the original order has not been reached. That request is then skipped.
    let mut early = vec![0_u32; targets];
    let depth = (targets as f64 * STACK_SHARE).round().max(1.0) as usize;
    let mut stack: VecDeque<u32> = VecDeque::with_capacity(depth + 1);
    let mut local = Vec::with_capacity(order.len());
    let mut rest = order.iter();
    while local.len() < order.len() {
        let repeated = draw_recent(&stack, locality, random).filter(|&(_, rank)| left[rank as usize] > 0);
        let (place, rank) = match repeated {
            Some((place, rank)) => {
                early[rank as usize] += 1;
                (Some(place), rank)
            }
            None => {
                let next = rest.find(|&&rank| {
                    let skipped = early[rank as usize] > 0;
                    early[rank as usize] -= u32::from(skipped);
                    !skipped
                });
                let Some(&rank) = next else { break };
                (stack.iter().position(|&recent| recent == rank), rank)
            }
        };
        left[rank as usize] -= 1;
        local.push(rank);
        if let Some(place) = place {
            stack.remove(place);
        }
        stack.push_front(rank);
        stack.truncate(depth);
    }
    local
}

/// Draws whether a request repeats a recent target, and returns the place of this target in the stack.
fn draw_recent(stack: &VecDeque<u32>, locality: f64, random: &mut Stream) -> Option<(usize, u32)> {
    if random.unit() >= locality {
        return None;
    }
    let place = libm::pow(stack.len() as f64 + 1.0, random.unit()) as usize - 1;
    stack.get(place).map(|&rank| (place, rank))
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
            assert_eq!(count_ranks(&order_requests(&COUNTS, drift, 0.0, 3).concat()), COUNTS);
        }
        assert_ne!(order_requests(&COUNTS, None, 0.0, 3), order_requests(&COUNTS, None, 0.0, 4));
    }

    #[test]
    fn steady_targets_are_even_and_fresh_targets_start_later() {
        let steady = Drift { days: 5, fresh_popular: 0.0, fresh_rare: 0.0, steady_top: 0 };
        for day in order_requests(&COUNTS, Some(&steady), 0.0, 3) {
            assert_eq!(count_ranks(&day)[..2], [20, 10]);
        }
        let fresh = Drift { fresh_popular: 1.0, fresh_rare: 1.0, ..steady };
        assert!(order_requests(&COUNTS, Some(&fresh), 0.0, 3)[0].is_empty());
    }

    #[test]
    fn locality_keeps_the_requests_and_shortens_the_gaps() {
        let counts = [20_u64; 500];
        let gaps = |locality: f64| {
            let order = order_requests(&counts, None, locality, 3).concat();
            let mut last: Vec<Option<usize>> = vec![None; counts.len()];
            let mut short = 0;
            for (at, &rank) in order.iter().enumerate() {
                short += usize::from(last[rank as usize].is_some_and(|last| at - last <= 10));
                last[rank as usize] = Some(at);
            }
            let mut sorted = order;
            sorted.sort_unstable();
            let same: Vec<u32> = (0..500).flat_map(|rank| [rank; 20]).collect();
            assert_eq!(sorted, same);
            short
        };
        // The stack has ten targets, so that a repetition is within few requests. 0.3 of 10,000 requests repeat.
        let (random, local) = (gaps(0.0), gaps(0.3));
        assert!(random < 400, "{random}: 10 of 500 targets");
        assert!((2_500..3_500).contains(&local), "{local}");
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
