//! Cumulative Zipf probabilities for any exponent and up to 10^300 files, in constant time.
//!
//! ```text
//! z(n, F) = H(n) / H(F),   H(x) = sum over k = 1..x of k^-alpha
//! ```
//!
//! `H` is continued to real `x` by the digamma and Hurwitz zeta functions, so a cache may hold 8,192.3 mean
//! files. Up to [`EXACT`] terms are summed. The rest is the Euler-Maclaurin formula between `EXACT` and `x`,
//! with the terms up to the fifth derivative. The first omitted term is alpha(alpha+1)..(alpha+6)
//! `EXACT`^(-alpha-7) / 1,209,600, which is less than 1e-12 for exponents up to 5.

/// The number of terms that are summed one by one.
const EXACT: f64 = 24.0;

/// The generalised harmonic numbers `H` for one exponent.
#[derive(Clone, Copy, Debug)]
pub struct HarmonicNumbers {
    alpha: f64,
    /// The sum of the first terms, less the formula's terms at their end.
    exact: f64,
}

impl HarmonicNumbers {
    /// Prepares the sums for an exponent of at least 0.
    pub fn new(alpha: f64) -> Self {
        let exact: f64 = (1..=EXACT as u32).rev().map(|k| f64::from(k).powf(-alpha)).sum();
        Self { alpha, exact: exact - ends(EXACT, alpha) }
    }

    /// Returns `H(x)` for `x >= 0`.
    pub fn at(&self, x: f64) -> f64 {
        if x >= EXACT {
            return self.far(x);
        }
        // H(x) = H(x + s) - sum over j = 1..s of (x + j)^-alpha
        let steps = (EXACT - x).ceil();
        let above: f64 = (1..=steps as u32).map(|j| (x + f64::from(j)).powf(-self.alpha)).sum();
        self.far(x + steps) - above
    }

    /// Returns `z(n, F)`: the share of the requests for the `n` most requested of `files`, 0 to 1.
    pub fn share(&self, n: f64, files: f64) -> f64 {
        if n >= files { 1.0 } else { self.at(n) / self.at(files) }
    }

    /// Returns `F` with `z(n, F) = hit_rate`, for a hit rate above 0 and at most 1. `None` if no number of
    /// files up to [`FILES_MAX`] has so low a hit rate.
    pub fn files_for(&self, n: f64, hit_rate: f64) -> Option<f64> {
        let wanted = self.at(n) / hit_rate;
        if self.at(FILES_MAX) < wanted {
            return None;
        }
        // H rises with F. Bisection finds ln F to the precision of doubles.
        let (mut low, mut high) = (n.ln(), FILES_MAX.ln());
        for _ in 0..64 {
            let middle = f64::midpoint(low, high);
            if self.at(middle.exp()) < wanted { low = middle } else { high = middle }
        }
        Some(high.exp())
    }

    /// Returns `H(x)` for `x >= EXACT`.
    fn far(&self, x: f64) -> f64 {
        self.exact + integral(x, self.alpha) + ends(x, self.alpha)
    }
}

/// Returns the integral of `t^-alpha` from `EXACT` to `x`, without loss of precision near alpha = 1.
fn integral(x: f64, alpha: f64) -> f64 {
    let (power, span) = (1.0 - alpha, (x / EXACT).ln());
    if power == 0.0 { span } else { EXACT.powf(power) * (power * span).exp_m1() / power }
}

/// Returns half the value at `x`, and the terms of the first, third and fifth derivative.
fn ends(x: f64, alpha: f64) -> f64 {
    let value = x.powf(-alpha);
    let first = alpha * value / x;
    let third = (alpha + 1.0) * (alpha + 2.0) * first / (x * x);
    let fifth = (alpha + 3.0) * (alpha + 4.0) * third / (x * x);
    value / 2.0 - first / 12.0 + third / 720.0 - fifth / 30_240.0
}

/// The largest number of files that [`HarmonicNumbers::files_for`] considers.
pub const FILES_MAX: f64 = 1e300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_to_eleven_digits() {
        for alpha in [0.0, 0.5, 0.77, 0.999_999, 1.0, 1.3, 2.0, 5.0] {
            for n in [1_u32, 2, 23, 24, 25, 100, 10_000, 1_000_000] {
                let direct: f64 = (1..=n).rev().map(|k| f64::from(k).powf(-alpha)).sum();
                let ours = HarmonicNumbers::new(alpha).at(f64::from(n));
                assert!((ours / direct - 1.0).abs() < 1e-11, "H({n}) at {alpha}: {ours} against {direct}");
            }
        }
    }

    #[test]
    fn known_constants_come_out() {
        // Euler's constant is the limit of H(n) - ln n; zeta(2) = pi^2 / 6.
        let euler = HarmonicNumbers::new(1.0).at(1e8) - 1e8_f64.ln() - 0.5e-8;
        assert!((euler - 0.577_215_664_901_532_9).abs() < 1e-12, "{euler}");
        let zeta2 = HarmonicNumbers::new(2.0).at(1e9) + 1e-9;
        assert!((zeta2 - std::f64::consts::PI.powi(2) / 6.0).abs() < 1e-12, "{zeta2}");
        assert!(HarmonicNumbers::new(1.0).at(0.0).abs() < 1e-12);
        // H(1/2) = 2 - 2 ln 2.
        assert!((HarmonicNumbers::new(1.0).at(0.5) - (2.0 - 2.0 * std::f64::consts::LN_2)).abs() < 1e-10);
    }

    #[test]
    fn files_are_found_for_a_hit_rate() {
        for alpha in [0.5, 0.77, 1.0, 1.2] {
            for hit_rate in [0.6, 0.75, 0.9, 0.995, 1.0] {
                let zipf = HarmonicNumbers::new(alpha);
                let files = zipf.files_for(8_192.0, hit_rate);
                let Some(files) = files else {
                    assert!(alpha > 1.0, "{alpha} {hit_rate}");
                    continue;
                };
                assert!((zipf.share(8_192.0, files) - hit_rate).abs() < 1e-9, "{alpha} {hit_rate}");
            }
        }
        assert_eq!(
            HarmonicNumbers::new(1.2).files_for(8_192.0, 0.5),
            None,
            "its 8,192 hottest files take more whatever comes after them"
        );
    }
}
