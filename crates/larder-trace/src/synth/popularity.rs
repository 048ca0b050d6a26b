//! Popularity by rank: the share of the requests of each rank.
//!
//! There are three models, for different knowledge of a trace:
//! - [`Popularity::Zipf`] has only an exponent a: share ~ rank^-a.
//! - [`Popularity::Knee`] has single shares at the top and an exponent. The shares are straight lines through
//!   the known shares on logarithmic axes, then rank^-a up to a knee. A steeper power law follows, which ends
//!   at one request for the last rank. The knee is where the shares add up to 1.
//! - [`Popularity::Curve`] has the hottest share and points "the first k ranks have the share p of the
//!   requests". Between two points, the share falls from A to B with mean M as `B + (A-B)(1-t)^g`, for t from
//!   0 to 1. This curve exists for all A > M > B. It is monotone, and the sum determines g. A and B are the
//!   geometric means of neighbouring M, so that the whole is nearly smooth. Up to the first point, ranks span
//!   several decades. There the share falls from h at rank 1 to A at rank K as `h (A/h)^((ln k / ln K)^g)`.
//!   This is a power law for g = 1, and flatter at the top for a larger g. The sum determines g.

use super::SynthError;

/// A point of a [`Popularity::Curve`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PopularityPoint {
    /// Share of the targets, most requested first, above 0 and below 1.
    pub targets: f64,
    /// Share of the requests for these targets, above 0 and below 1.
    pub requests: f64,
}

/// The decrease of popularity with rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Popularity {
    /// A pure power law.
    Zipf {
        /// Exponent, at least 0.
        exponent: f64,
    },
    /// Known shares at the top, followed by a power law and a steeper tail.
    Knee {
        /// Pairs of rank and share of the requests. They are ordered by rank, and the first is for rank 1.
        top: Vec<(u32, f64)>,
        /// Exponent after the last of these ranks.
        exponent: f64,
    },
    /// A curve through known points.
    Curve {
        /// Share of the requests for the first rank.
        hottest: f64,
        /// The points. Their slopes decrease.
        points: Vec<PopularityPoint>,
    },
}

impl Popularity {
    /// Returns the shares of `targets` ranks. They never rise, and their sum is 1. `requests` is the length
    /// of the trace. The last rank gets at least one request if the model allows it.
    pub(super) fn shares(&self, targets: usize, requests: u64) -> Result<Vec<f64>, SynthError> {
        let one = 1.0 / requests as f64;
        let mut shares = match self {
            Self::Zipf { exponent } => power_law(1.0, 1.0, *exponent, 1, targets),
            Self::Knee { top, exponent } => knee_shares(top, *exponent, targets, one)?,
            Self::Curve { hottest, points } => curve_shares(*hottest, points, targets, one)?,
        };
        let sum: f64 = shares.iter().sum();
        for share in &mut shares {
            *share /= sum;
        }
        Ok(shares)
    }
}

/// Returns `share (k / rank)^-exponent` for the ranks k from `first` to `last`.
fn power_law(share: f64, rank: f64, exponent: f64, first: usize, last: usize) -> Vec<f64> {
    (first..=last).map(|k| share * libm::pow(k as f64 / rank, -exponent)).collect()
}

/// Returns the shares of [`Popularity::Knee`].
fn knee_shares(
    top: &[(u32, f64)],
    exponent: f64,
    targets: usize,
    least: f64,
) -> Result<Vec<f64>, SynthError> {
    let mut shares: Vec<f64> = Vec::with_capacity(targets);
    let mut last = (1, top.first().map_or(0.0, |first| first.1));
    for &(rank, share) in top {
        let slope = if rank == last.0 {
            0.0
        } else {
            libm::log(last.1 / share) / libm::log(f64::from(rank) / f64::from(last.0))
        };
        shares.extend(power_law(last.1, f64::from(last.0), slope, shares.len() + 1, rank as usize));
        last = (rank, share);
    }
    if targets <= shares.len() {
        return Err(SynthError::TooSmall { what: "fewer targets than the popularity's known top ranks" });
    }
    let (rank, share) = (f64::from(last.0), last.1);
    let first = shares.len() + 1;
    let rest = 1.0 - shares.iter().sum::<f64>();
    let tail = |ln_knee: f64| {
        let knee = libm::exp(ln_knee);
        let at_knee = share * libm::pow(knee / rank, -exponent);
        let steep = libm::log(at_knee / least) / libm::log((targets as f64 + 1.0) / knee);
        let bend = (knee as usize).clamp(first - 1, targets);
        let mut tail = power_law(share, rank, exponent, first, bend);
        tail.extend(power_law(at_knee, knee, steep.max(exponent), bend + 1, targets));
        tail
    };
    let ln_knee =
        find_zero(libm::log(rank), libm::log(targets as f64), |x| tail(x).iter().sum::<f64>() - rest)
            .ok_or(SynthError::TooSmall { what: "no knee makes the popularity add up" })?;
    shares.extend(tail(ln_knee));
    Ok(shares)
}

/// Returns the shares of [`Popularity::Curve`].
fn curve_shares(
    hottest: f64,
    points: &[PopularityPoint],
    targets: usize,
    least: f64,
) -> Result<Vec<f64>, SynthError> {
    let n = targets as f64;
    let mut ends: Vec<(usize, f64)> =
        points.iter().map(|point| ((point.targets * n).round() as usize, point.requests)).collect();
    ends.push((targets, 1.0));
    if !ends.is_sorted_by(|a, b| a.0 < b.0) || ends[0].0 < 2 {
        return Err(SynthError::TooSmall { what: "too few targets between two points of the popularity" });
    }
    let means: Vec<f64> =
        ends.windows(2).map(|pair| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0) as f64).collect();
    // Shares at the ends of the stretches: one before each stretch and one after the last.
    let mut bounds: Vec<f64> = means.windows(2).map(|pair| libm::sqrt(pair[0] * pair[1])).collect();
    let before = means[0] * bounds.first().map_or(2.0, |bound| means[0] / bound);
    let last = means[means.len() - 1];
    let behind = (last * bounds.last().map_or(0.5, |bound| last / bound)).max(least);
    bounds.insert(0, before);
    bounds.push(behind.min(last));
    let mut shares = top_shares(hottest, before, ends[0].0, ends[0].1)?;
    for (i, &mean) in means.iter().enumerate() {
        shares.extend(stretch_shares(bounds[i], bounds[i + 1], mean, ends[i + 1].0 - ends[i].0));
    }
    Ok(shares)
}

/// Returns `h (end/h)^((ln k / ln last)^g)` for the ranks k up to `last`. It is h at rank 1 and `end` at rank
/// `last`, and has the given sum.
fn top_shares(h: f64, end: f64, last: usize, sum: f64) -> Result<Vec<f64>, SynthError> {
    let ln_last = libm::log(last as f64);
    let ln_drop = libm::log(end / h);
    let shares = |ln_g: f64| -> Vec<f64> {
        let g = libm::exp(ln_g);
        let share = |k: usize| h * libm::exp(ln_drop * libm::pow(libm::log(k as f64) / ln_last, g));
        (1..=last).map(share).collect()
    };
    // A larger power falls later and has a larger sum.
    let ln_g = find_zero(-6.0, 6.0, |ln_g| shares(ln_g).iter().sum::<f64>() - sum)
        .filter(|_| end <= h)
        .ok_or(SynthError::TooSmall {
            what: "the hottest share and the first point of the popularity do not meet",
        })?;
    Ok(shares(ln_g))
}

/// Returns `n` shares that fall from about `high` to about `low` with the given mean.
fn stretch_shares(high: f64, low: f64, mean: f64, n: usize) -> Vec<f64> {
    let shares = |ln_g: f64| -> Vec<f64> {
        let g = libm::exp(ln_g);
        let share = |i: usize| low + (high - low) * libm::pow(1.0 - (i as f64 + 0.5) / n as f64, g);
        (0..n).map(share).collect()
    };
    // A larger power falls faster and has a smaller mean.
    let ln_g = find_zero(-12.0, 12.0, |ln_g| mean - shares(ln_g).iter().sum::<f64>() / n as f64);
    ln_g.map_or_else(|| vec![mean; n], shares)
}

/// Returns the zero of a rising function between two arguments; `None` if there is none.
fn find_zero(mut low: f64, mut high: f64, rising: impl Fn(f64) -> f64) -> Option<f64> {
    if rising(low) > 0.0 || rising(high) < 0.0 {
        return None;
    }
    // Each halving gives one bit. The sums are exact to about 40 bits.
    for _ in 0..44 {
        let middle = (low + high) / 2.0;
        if rising(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((low + high) / 2.0)
}

/// Returns the number of requests by rank. The numbers never rise, and their cumulative sums follow the
/// cumulative shares. `least` is the smallest number of requests of a target, 0 or 1.
///
/// If each share were rounded alone, a tail of targets with one or two requests would gain or lose whole
/// percents. Therefore all numbers are rounded down first. In each run of equal numbers, the first ones get
/// one more request, until the sum up to the end of the run is correct.
pub(super) fn round_to_counts(shares: &[f64], requests: u64, least: u64) -> Vec<u64> {
    let exact = |share: f64| share * requests as f64;
    // A share of exactly one request may be slightly below one because of rounding.
    let mut counts: Vec<u64> =
        shares.iter().map(|&share| ((exact(share) + 1e-6) as u64).max(least)).collect();
    let (mut start, mut sum_exact, mut sum) = (0, 0.0, 0_u64);
    while start < counts.len() {
        let floor = counts[start];
        let n = counts[start..].iter().take_while(|&&count| count == floor).count();
        sum_exact += shares[start..start + n].iter().map(|&share| exact(share)).sum::<f64>();
        let run = floor * n as u64;
        let missing = (sum_exact.round() as u64).saturating_sub(sum + run).min(n as u64);
        for count in &mut counts[start..start + missing as usize] {
            *count += 1;
        }
        sum += run + missing;
        start += n;
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_falling(values: &[f64]) -> bool {
        // Stretches meet within the rounding of their ends.
        values.windows(2).all(|pair| pair[1] <= pair[0] * 1.02)
    }

    #[test]
    fn a_curve_goes_through_its_points() {
        let points = [
            PopularityPoint { targets: 0.40, requests: 0.97 },
            PopularityPoint { targets: 0.50, requests: 0.98 },
            PopularityPoint { targets: 0.65, requests: 0.99 },
        ];
        let popularity = Popularity::Curve { hottest: 0.02, points: points.to_vec() };
        let shares = popularity.shares(30_000, 3_000_000).expect("a possible curve");
        assert!(is_falling(&shares));
        assert!((shares[0] - 0.02).abs() < 1e-6);
        for point in points {
            let sum: f64 = shares[..(point.targets * 30_000.0) as usize].iter().sum();
            assert!((sum - point.requests).abs() < 1e-6, "{point:?}: {sum}");
        }
    }

    #[test]
    fn a_knee_keeps_the_top_and_adds_up() {
        let popularity = Popularity::Knee { top: vec![(1, 0.014), (10, 0.0084)], exponent: 0.77 };
        let shares = popularity.shares(28_864, 3_000_000).expect("a possible curve");
        assert!(is_falling(&shares));
        assert!((shares[0] / 0.014 - 1.0).abs() < 1e-3);
        assert!((shares[9] / 0.0084 - 1.0).abs() < 1e-3);
        assert!((shares[99] / shares[9] - libm::pow(10.0, -0.77)).abs() < 1e-3);
        assert!(shares[28_863] * 3_000_000.0 > 0.9);
    }

    #[test]
    fn impossible_shapes_are_errors() {
        let curve = |hottest, targets| Popularity::Curve {
            hottest,
            points: vec![PopularityPoint { targets, requests: 0.97 }],
        };
        assert!(curve(0.02, 0.4).shares(10, 1_000).is_err());
        assert!(curve(0.02, 0.001).shares(1_000, 100_000).is_err());
        assert!(Popularity::Knee { top: vec![(1, 0.01)], exponent: 0.1 }.shares(20, 1_000).is_err());
    }

    proptest! {
        #[test]
        fn counts_fall_and_keep_the_sum(exponent in 0.0..1.6_f64, targets in 1_usize..3_000, requests in 1_u64..100_000) {
            let shares = Popularity::Zipf { exponent }.shares(targets, requests).expect("always possible");
            let counts = round_to_counts(&shares, requests, 0);
            prop_assert!(counts.is_sorted_by(|a, b| a >= b));
            prop_assert_eq!(counts.iter().sum::<u64>(), requests);
            let (mut due, mut sum) = (0.0, 0);
            for (share, count) in shares.iter().zip(&counts) {
                due += share * requests as f64;
                sum += count;
                prop_assert!(sum as f64 > due - 1.0, "cumulative {sum} below {due}");
            }
        }
    }
}
