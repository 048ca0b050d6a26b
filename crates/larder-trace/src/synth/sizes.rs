//! Target sizes: a lognormal body with a Pareto tail, assigned to ranks so that the published figures result.
//!
//! The body is lognormal with mu 7.640 and sigma 1.705. The tail is Pareto with shape 1.383 and scale 2,924
//! bytes (Casalicchio and Colajanni, WWW 2001, section 4). 7 % of the targets are in the tail; the paper
//! leaves this open.
//!
//! Sizes are quantiles of the distribution at even steps, not draws. A few large targets have much of the
//! total size. With random draws the total would vary by tens of percent from seed to seed.
//!
//! Sizes are distributed at random over the stretches between published coverage points. Within a stretch the
//! order is random, modified by the *tilt*. At 0, size and popularity are independent. At 1, sizes rise
//! strictly with rank, so popular targets are small. At -1, they fall. If a mean reply or a share of
//! transferred bytes is published, the tilt is found by bisection. Finally, the sizes between two coverage
//! points are scaled so that their sum is exact to the byte.

use super::rng::Stream;

const BODY_MU: f64 = 7.640;
const BODY_SIGMA: f64 = 1.705;
const TAIL_SHAPE: f64 = 1.383;
const TAIL_SCALE: f64 = 2_924.0;
/// Share of the targets in the tail.
const TAIL_SHARE: f64 = 0.07;

/// The relation of size and popularity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeGoal {
    /// This tilt, -1 to 1.
    Tilt(f64),
    /// The tilt that gives this mean reply, in bytes.
    ReplyMean(f64),
    /// The tilt that gives the targets up to a coverage point this share of the transferred bytes.
    TransferredShare {
        /// The coverage point, as an index into the recipe's coverage.
        point: usize,
        /// The share, 0 to 1.
        share: f64,
    },
}

/// The requirements for the sizes by rank.
pub(super) struct SizePlan<'a> {
    /// Requests by rank.
    pub(super) counts: &'a [u64],
    /// Stretches of ranks: the end of each (exclusive) and the sum of its sizes. The last stretch ends at the
    /// last rank. If empty, sizes are not scaled.
    pub(super) stretches: &'a [(usize, u64)],
    /// The relation of size and popularity.
    pub(super) goal: SizeGoal,
}

/// Returns the sizes by rank.
pub(super) fn assign_sizes(plan: &SizePlan<'_>, random: &mut Stream) -> Vec<u64> {
    let n = plan.counts.len();
    let mut drawn = quantiles(n);
    random.shuffle(&mut drawn);
    let noise: Vec<f64> = (0..n).map(|_| random.unit()).collect();
    let ends: Vec<usize> = plan.stretches.iter().map(|stretch| stretch.0).collect();
    let tilted = match plan.goal {
        SizeGoal::TransferredShare { point, .. } => ends.get(point).copied().unwrap_or(n),
        SizeGoal::Tilt(_) | SizeGoal::ReplyMean(_) => n,
    };
    let attempt = |tilt: f64| {
        let mut sizes = drawn.clone();
        let mut start = 0;
        for &end in ends.iter().chain(std::iter::once(&n)) {
            permute_sizes(
                &mut sizes[start..end],
                &noise[start..end],
                start,
                if end <= tilted { tilt } else { 0.0 },
            );
            start = end;
        }
        scale_sizes(&sizes, plan.stretches)
    };
    let measured = |sizes: &[u64]| match plan.goal {
        SizeGoal::Tilt(_) => 0.0,
        SizeGoal::ReplyMean(mean) => sum_transferred(plan.counts, sizes) / sum_requests(plan.counts) - mean,
        SizeGoal::TransferredShare { share, .. } => {
            sum_transferred(&plan.counts[..tilted], &sizes[..tilted]) / sum_transferred(plan.counts, sizes)
                - share
        }
    };
    if let SizeGoal::Tilt(tilt) = plan.goal {
        return attempt(tilt);
    }
    // A larger tilt makes popular targets smaller. The measured value then falls in small steps, because
    // sizes swap ranks. The best of all attempts is used.
    let (mut low, mut high) = (-1.0, 1.0);
    let mut best = attempt(0.0);
    for _ in 0..24 {
        let tilt = (low + high) / 2.0;
        let tried = attempt(tilt);
        let excess = measured(&tried);
        if excess.abs() < measured(&best).abs() {
            best = tried;
        }
        if excess > 0.0 {
            low = tilt;
        } else {
            high = tilt;
        }
    }
    best
}

/// Returns the number of requests.
fn sum_requests(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64
}

/// Returns the number of transferred bytes.
fn sum_transferred(counts: &[u64], sizes: &[u64]) -> f64 {
    counts.iter().zip(sizes).map(|(&count, &size)| count as f64 * size as f64).sum()
}

/// Returns `n` sizes in rising order: evenly spaced quantiles of body and tail.
pub(super) fn quantiles(n: usize) -> Vec<f64> {
    let tail = (n as f64 * TAIL_SHARE).round() as usize;
    let midpoint = |i: usize, n: usize| (i as f64 + 0.5) / n as f64;
    let body =
        (0..n - tail).map(|i| libm::exp(BODY_MU + BODY_SIGMA * normal_quantile(midpoint(i, n - tail))));
    let tail = (0..tail).map(|i| TAIL_SCALE * libm::pow(1.0 - midpoint(i, tail), -1.0 / TAIL_SHAPE));
    let mut sizes: Vec<f64> = body.chain(tail).collect();
    sizes.sort_by(f64::total_cmp);
    sizes
}

/// Returns the quantile `p` of the standard normal distribution, by bisection to 2^-44.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..48 {
        let middle: f64 = (low + high) / 2.0;
        if 0.5 * libm::erfc(-middle * std::f64::consts::FRAC_1_SQRT_2) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Permutes the sizes of a stretch: the rank with the k-th smallest score gets the k-th smallest size. The
/// score is a blend of noise and the logarithm of the rank. `first` is the first rank of the stretch.
fn permute_sizes(sizes: &mut [f64], noise: &[f64], first: usize, tilt: f64) {
    let ln = |rank: usize| libm::log((rank + 1) as f64);
    let (from, width) = (ln(first), ln(first + sizes.len()) - ln(first));
    let mut scored: Vec<(f64, usize)> = noise
        .iter()
        .enumerate()
        .map(|(i, &noise)| {
            let along = (ln(first + i) - from) / width;
            let pull = if tilt < 0.0 { 1.0 - along } else { along };
            ((1.0 - tilt.abs()) * noise + tilt.abs() * pull, i)
        })
        .collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut rising = sizes.to_vec();
    rising.sort_by(f64::total_cmp);
    for (size, (_, i)) in rising.into_iter().zip(scored) {
        sizes[i] = size;
    }
}

/// Scales the sizes of each stretch to its sum. Sizes are whole bytes, at least one for each target.
fn scale_sizes(sizes: &[f64], stretches: &[(usize, u64)]) -> Vec<u64> {
    let whole = |size: f64| (size as u64).max(1);
    if stretches.is_empty() {
        return sizes.iter().map(|&size| whole(size)).collect();
    }
    let mut fitted: Vec<u64> = Vec::with_capacity(sizes.len());
    let mut start = 0;
    for &(end, sum) in stretches {
        let stretch = &sizes[start..end];
        let factor = sum as f64 / stretch.iter().sum::<f64>();
        fitted.extend(stretch.iter().map(|&size| whole(size * factor)));
        // Rounding down leaves less than one byte for each target. The largest target gets the difference.
        let missing = sum.saturating_sub(fitted[start..].iter().sum());
        if let Some(largest) = fitted[start..].iter_mut().max() {
            *largest += missing;
        }
        start = end;
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_have_the_distributions_figures() {
        assert!(normal_quantile(0.5).abs() < 1e-9);
        assert!((normal_quantile(0.975) - 1.959_964).abs() < 1e-5);
        let sizes = quantiles(50_000);
        let mean = sizes.iter().sum::<f64>() / 50_000.0;
        // 93 % have a mean of 8,897 and 7 % a mean of 10,558, minus the part beyond the last quantiles.
        assert!((8_700.0..9_100.0).contains(&mean), "{mean}");
        assert!(sizes.is_sorted());
    }

    #[test]
    fn stretches_get_their_bytes() {
        let counts: Vec<u64> = (1..=1_000).rev().collect();
        let stretches = [(100, 400_000), (1_000, 30_000_000)];
        let plan = SizePlan { counts: &counts, stretches: &stretches, goal: SizeGoal::Tilt(0.2) };
        let sizes = assign_sizes(&plan, &mut Stream::new(1, "sizes"));
        assert_eq!(sizes[..100].iter().sum::<u64>(), 400_000);
        assert_eq!(sizes[100..].iter().sum::<u64>(), 30_000_000);
    }

    #[test]
    fn the_mean_reply_is_met() {
        let counts: Vec<u64> = (1..=5_000_u64).map(|rank| 1_000_000 / rank).collect();
        let stretches = [(5_000, 100_000_000)];
        for mean in [8_000.0, 20_000.0, 40_000.0] {
            let plan = SizePlan { counts: &counts, stretches: &stretches, goal: SizeGoal::ReplyMean(mean) };
            let sizes = assign_sizes(&plan, &mut Stream::new(1, "sizes"));
            let got = sum_transferred(&counts, &sizes) / sum_requests(&counts);
            assert!((got / mean - 1.0).abs() < 0.02, "{got} for {mean}");
        }
    }
}
