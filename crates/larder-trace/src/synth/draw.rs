//! Random distributions. `libm` computes them, so that a stream gives the same values on every machine.
//!
//! Heavy tails are truncated. A Pareto distribution of shape 1.33 has no variance, and one draw in a million
//! would decide a run. Truncation means the distribution of `X` under the condition `X <= most`. The means
//! are those of the truncated distributions.

use super::rng::Stream;

/// The Pareto distribution `P(X > x) = (scale / x)^shape`, truncated at `most`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pareto {
    /// Exponent of the tail, above 0.
    pub shape: f64,
    /// Smallest value, above 0.
    pub scale: f64,
    /// Largest value, above `scale`. Infinity means no truncation.
    pub most: f64,
}

impl Pareto {
    /// Returns the quantile of `p`, which is at least 0 and below 1.
    pub fn quantile(&self, p: f64) -> f64 {
        let within = 1.0 - libm::pow(self.scale / self.most, self.shape);
        self.scale * libm::pow(1.0 - p * within, -1.0 / self.shape)
    }

    /// Draws a value.
    pub fn draw(&self, random: &mut Stream) -> f64 {
        self.quantile(random.unit())
    }

    /// Returns the mean. It is infinite for a shape of at most 1 without truncation.
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
    /// Mean, above 0.
    pub mu: f64,
    /// Shape, above 0.
    pub lambda: f64,
}

impl InverseGaussian {
    /// Draws a value, by the transformation with multiple roots (Michael, Schucany and Haas, The American
    /// Statistician 30, 1976).
    pub fn draw(&self, random: &mut Stream) -> f64 {
        let (mu, lambda) = (self.mu, self.lambda);
        let y = libm::pow(normal(random), 2.0);
        let root = libm::sqrt(4.0 * mu * lambda * y + mu * mu * y * y);
        let x = mu + mu / (2.0 * lambda) * (mu * y - root);
        if random.unit() * (mu + x) <= mu { x } else { mu * mu / x }
    }
}

/// Draws a value of the standard normal distribution (Box and Muller).
pub fn normal(random: &mut Stream) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - random.unit()));
    radius * libm::cos(std::f64::consts::TAU * random.unit())
}

/// Draws a value of the exponential distribution with this mean.
pub fn exponential(mean: f64, random: &mut Stream) -> f64 {
    -mean * libm::log(1.0 - random.unit())
}

/// A distribution over ranks from 0. The probability of rank r is proportional to `(r + 1)^-exponent`.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// Probability of the ranks up to each rank.
    cumulative: Vec<f64>,
}

impl Ranks {
    /// Creates a distribution over `count` ranks, at least 1. With an exponent of 0 all ranks are equally
    /// likely.
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

    /// Draws a rank in O(log n).
    pub fn draw(&self, random: &mut Stream) -> usize {
        let at = random.unit();
        self.cumulative.partition_point(|share| *share <= at).min(self.cumulative.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    /// Returns the mean, the median and the variance of many draws.
    fn sample(draw: impl Fn(&mut Stream) -> f64) -> (f64, f64, f64) {
        let mut random = Stream::new(3, "sample");
        let mut values: Vec<f64> = (0..DRAWS).map(|_| draw(&mut random)).collect();
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / DRAWS as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / DRAWS as f64;
        (mean, values[DRAWS / 2], variance)
    }

    #[test]
    fn the_inverse_gaussian_has_its_mean_median_and_variance() {
        // The distribution of requests per session. Its variance is mu^3 / lambda = 6.08. The median is where
        // the distribution function phi(sqrt(l/x)(x/m - 1)) + exp(2 l/m) phi(-sqrt(l/x)(x/m + 1)) is one
        // half: 3.160.
        let (mu, lambda) = (3.86, 9.46);
        let phi = |x: f64| 0.5 * libm::erfc(-x / 2.0_f64.sqrt());
        let at = |x: f64| {
            let root = (lambda / x).sqrt();
            phi(root * (x / mu - 1.0)) + (2.0 * lambda / mu).exp() * phi(-root * (x / mu + 1.0))
        };
        let (mean, median, variance) = sample(|random| InverseGaussian { mu, lambda }.draw(random));
        // The standard error of the mean is 0.0055.
        assert!((mean - mu).abs() < 0.025, "{mean}");
        assert!((at(median) - 0.5).abs() < 0.005, "{median}");
        assert!((variance - mu.powi(3) / lambda).abs() < 0.25, "{variance}");
    }

    #[test]
    fn the_pareto_has_its_mean_and_median() {
        // The distributions of think times and of objects per page, with and without truncation.
        for (shape, scale, most) in [(1.4, 2.0, 100.0), (1.33, 1.0, 100.0), (2.5, 3.0, f64::INFINITY)] {
            let pareto = Pareto { shape, scale, most };
            let (mean, median, _) = sample(|random| pareto.draw(random));
            let within = 1.0 - (scale / most).powf(shape);
            let half = scale * (1.0 - 0.5 * within).powf(-1.0 / shape);
            assert!((mean / pareto.mean() - 1.0).abs() < 0.02, "{pareto:?}: {mean}");
            assert!((median / half - 1.0).abs() < 0.01, "{pareto:?}: {median}");
        }
        // Without truncation, the mean is shape * scale / (shape - 1).
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
        let (mean, median, variance) = sample(|random| exponential(4.0, random));
        assert!((mean - 4.0).abs() < 0.04 && (median - 4.0 * 2.0_f64.ln()).abs() < 0.04, "{mean} {median}");
        assert!((variance - 16.0).abs() < 0.5, "{variance}");
    }

    #[test]
    fn ranks_have_their_shares() {
        let (ranks, mut random) = (Ranks::new(4, 1.0), Stream::new(5, "ranks"));
        let mut counts = [0.0; 4];
        for _ in 0..DRAWS {
            counts[ranks.draw(&mut random)] += 1.0 / DRAWS as f64;
        }
        let sum = 1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0;
        for (rank, count) in counts.into_iter().enumerate() {
            assert!((count - 1.0 / ((rank + 1) as f64 * sum)).abs() < 0.005, "{rank}: {count}");
        }
    }

    #[test]
    fn draws_are_the_same_on_every_machine() {
        // The bits that this code gives. If they change, every result that depends on a seed changes.
        let mut random = Stream::new(42, "draws");
        let gauss = InverseGaussian { mu: 3.86, lambda: 9.46 };
        let pareto = Pareto { shape: 1.33, scale: 1.0, most: 100.0 };
        let bits = (0..1_000).fold(0_u64, |bits, _| {
            let sum = gauss.draw(&mut random) + pareto.draw(&mut random) + exponential(1.0, &mut random);
            bits.rotate_left(5) ^ sum.to_bits()
        });
        insta::assert_snapshot!("draws_42", format!("{bits:016x}"));
    }
}
