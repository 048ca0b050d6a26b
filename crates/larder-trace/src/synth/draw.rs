//! Distributions to draw from, computed by `libm` so that the same stream gives the same values on every machine.
//!
//! Heavy tails are cut off: a Pareto distribution of shape 1.33 has no variance, and one draw in a million would
//! decide a run. Cut off means conditional on the rest (`X` given `X <= most`), not heaped at the limit; the means
//! given here are those of the cut distributions.

use super::rng::Stream;

/// The Pareto distribution `P(X > x) = (scale / x)^shape`, cut off at `most`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pareto {
    /// The exponent of the tail, above 0.
    pub shape: f64,
    /// The smallest value, above 0.
    pub scale: f64,
    /// The largest value, above `scale`; infinity for no limit.
    pub most: f64,
}

impl Pareto {
    /// Where the distribution function takes the value `p`, 0 to 1 with 1 excluded.
    pub fn quantile(&self, p: f64) -> f64 {
        let within = 1.0 - libm::pow(self.scale / self.most, self.shape);
        self.scale * libm::pow(1.0 - p * within, -1.0 / self.shape)
    }

    /// A draw.
    pub fn draw(&self, chance: &mut Stream) -> f64 {
        self.quantile(chance.unit())
    }

    /// The mean; infinite for a shape of at most 1 without a limit.
    pub fn mean(&self) -> f64 {
        let (shape, ratio) = (self.shape, self.scale / self.most);
        if (shape - 1.0).abs() < 1e-12 {
            return -self.scale * libm::log(ratio) / (1.0 - ratio);
        }
        let cut = (1.0 - libm::pow(ratio, shape - 1.0)) / (1.0 - libm::pow(ratio, shape));
        self.scale * shape / (shape - 1.0) * cut
    }
}

/// The inverse Gaussian distribution with mean `mu` and variance `mu^3 / lambda`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InverseGaussian {
    /// The mean, above 0.
    pub mu: f64,
    /// The shape, above 0.
    pub lambda: f64,
}

impl InverseGaussian {
    /// A draw, by the transformation with two roots (Michael, Schucany and Haas, The American Statistician 30, 1976).
    pub fn draw(&self, chance: &mut Stream) -> f64 {
        let (mu, lambda) = (self.mu, self.lambda);
        let y = libm::pow(normal(chance), 2.0);
        let root = libm::sqrt(4.0 * mu * lambda * y + mu * mu * y * y);
        let x = mu + mu / (2.0 * lambda) * (mu * y - root);
        if chance.unit() * (mu + x) <= mu { x } else { mu * mu / x }
    }
}

/// A draw of the standard normal distribution (Box and Muller).
pub fn normal(chance: &mut Stream) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - chance.unit()));
    radius * libm::cos(std::f64::consts::TAU * chance.unit())
}

/// A draw of the exponential distribution with this mean.
pub fn exponential(mean: f64, chance: &mut Stream) -> f64 {
    -mean * libm::log(1.0 - chance.unit())
}

/// Ranks from 0, the share of rank r in proportion to `(r + 1)^-exponent`.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// Share of the ranks up to each.
    cumulative: Vec<f64>,
}

impl Ranks {
    /// `count` ranks, at least 1. An exponent of 0 makes them equal.
    pub fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=count.max(1))
            .map(|rank| {
                sum += libm::pow(rank as f64, -exponent);
                sum
            })
            .collect();
        for share in &mut cumulative {
            *share /= sum;
        }
        Self { cumulative }
    }

    /// A draw. O(log n).
    pub fn draw(&self, chance: &mut Stream) -> usize {
        let at = chance.unit();
        self.cumulative.partition_point(|share| *share <= at).min(self.cumulative.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn sample(draw: impl Fn(&mut Stream) -> f64) -> (f64, f64, f64) {
        let mut chance = Stream::new(3, "sample");
        let mut values: Vec<f64> = (0..DRAWS).map(|_| draw(&mut chance)).collect();
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / DRAWS as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / DRAWS as f64;
        (mean, values[DRAWS / 2], variance)
    }

    #[test]
    fn the_inverse_gaussian_has_its_mean_median_and_variance() {
        // Requests per session. The variance is mu^3 / lambda = 6.08. The median is where the distribution function
        // phi(sqrt(l/x)(x/m - 1)) + exp(2 l/m) phi(-sqrt(l/x)(x/m + 1)) is one half: 3.160.
        let (mu, lambda) = (3.86, 9.46);
        let phi = |x: f64| 0.5 * libm::erfc(-x / 2.0_f64.sqrt());
        let at = |x: f64| {
            let root = (lambda / x).sqrt();
            phi(root * (x / mu - 1.0)) + (2.0 * lambda / mu).exp() * phi(-root * (x / mu + 1.0))
        };
        let (mean, median, variance) = sample(|chance| InverseGaussian { mu, lambda }.draw(chance));
        // The standard error of the mean is 0.0055.
        assert!((mean - mu).abs() < 0.025, "{mean}");
        assert!((at(median) - 0.5).abs() < 0.005, "{median}");
        assert!((variance - mu.powi(3) / lambda).abs() < 0.25, "{variance}");
    }

    #[test]
    fn the_pareto_has_its_mean_and_median() {
        // Think times and objects per page, cut off and not.
        for (shape, scale, most) in [(1.4, 2.0, 100.0), (1.33, 1.0, 100.0), (2.5, 3.0, f64::INFINITY)] {
            let pareto = Pareto { shape, scale, most };
            let (mean, median, _) = sample(|chance| pareto.draw(chance));
            let within = 1.0 - (scale / most).powf(shape);
            let half = scale * (1.0 - 0.5 * within).powf(-1.0 / shape);
            assert!((mean / pareto.mean() - 1.0).abs() < 0.02, "{pareto:?}: {mean}");
            assert!((median / half - 1.0).abs() < 0.01, "{pareto:?}: {median}");
        }
        // The closed form without a limit: shape k / (shape - 1).
        let plain = Pareto { shape: 1.4, scale: 2.0, most: f64::INFINITY };
        assert!((plain.mean() - 7.0).abs() < 1e-9);
        assert!(
            (Pareto { shape: 1.0, scale: 1.0, most: std::f64::consts::E }.mean() - 1.581_976_7).abs() < 1e-6
        );
        assert!(Pareto { most: 9.0, ..plain }.quantile(0.999_999) <= 9.0);
    }

    #[test]
    fn normal_and_exponential_have_their_moments() {
        let (mean, median, variance) = sample(normal);
        assert!(mean.abs() < 0.01 && median.abs() < 0.01 && (variance - 1.0).abs() < 0.02);
        let (mean, median, variance) = sample(|chance| exponential(4.0, chance));
        assert!((mean - 4.0).abs() < 0.04 && (median - 4.0 * 2.0_f64.ln()).abs() < 0.04, "{mean} {median}");
        assert!((variance - 16.0).abs() < 0.5, "{variance}");
    }

    #[test]
    fn ranks_have_their_shares() {
        let (ranks, mut chance) = (Ranks::new(4, 1.0), Stream::new(5, "ranks"));
        let mut counts = [0.0; 4];
        for _ in 0..DRAWS {
            counts[ranks.draw(&mut chance)] += 1.0 / DRAWS as f64;
        }
        let sum = 1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0;
        for (rank, count) in counts.into_iter().enumerate() {
            assert!((count - 1.0 / ((rank + 1) as f64 * sum)).abs() < 0.005, "{rank}: {count}");
        }
    }

    #[test]
    fn draws_are_the_same_on_every_machine() {
        // The bits as this code makes them: a change of them changes every result that rests on a seed.
        let mut chance = Stream::new(42, "draws");
        let gauss = InverseGaussian { mu: 3.86, lambda: 9.46 };
        let pareto = Pareto { shape: 1.33, scale: 1.0, most: 100.0 };
        let bits = (0..1_000).fold(0_u64, |bits, _| {
            let sum = gauss.draw(&mut chance) + pareto.draw(&mut chance) + exponential(1.0, &mut chance);
            bits.rotate_left(5) ^ sum.to_bits()
        });
        insta::assert_snapshot!("draws_42", format!("{bits:016x}"));
    }
}
