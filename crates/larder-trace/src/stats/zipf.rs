//! The Zipf exponent: how steeply popularity falls with rank.
//!
//! The number of requests for the target of rank r is modelled as proportional to r^-a. A fit through all
//! targets would be a fit of the tail, which has almost all targets. Ranks are therefore put into bins of
//! equal width on the logarithmic axis, four per octave. Each bin is one point: its geometric mean rank and
//! its mean number of requests. The exponent a is the negated slope of the least-squares line through the
//! logarithms of the points. Targets with fewer than ten requests are left out, because their counts form
//! steps.

use serde::Serialize;

/// Smallest number of requests of a target in the fit.
const REQUESTS_MIN: u64 = 10;
/// Smallest number of targets for a fit.
const TARGETS_MIN: usize = 10;
/// Number of bins per doubling of the rank.
const BINS_PER_OCTAVE: f64 = 4.0;

/// A fitted Zipf exponent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Zipf {
    /// The exponent a in requests ~ rank^-a.
    pub exponent: f64,
    /// Share of the variance of the points that the line explains, 0 to 1.
    pub r_squared: f64,
    /// Number of ranks in the fit.
    pub ranks: u64,
    /// A description of the method.
    pub method: &'static str,
}

const METHOD: &str = "least squares of ln(requests) on ln(rank), one point per quarter octave of rank, \
                      targets with at least 10 requests";

/// Fits the exponent to the number of requests by rank, largest first. Returns `None` if there are too few
/// targets.
pub(super) fn fit(counts: &[u64]) -> Option<Zipf> {
    let ranks = counts.partition_point(|&requests| requests >= REQUESTS_MIN);
    if ranks < TARGETS_MIN {
        return None;
    }
    let points = points(&counts[..ranks]);
    let n = points.len() as f64;
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / n;
    let (x_mean, y_mean) = (mean(|p| p.0), mean(|p| p.1));
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in &points {
        let (x, y) = (x - x_mean, y - y_mean);
        xx += x * x;
        xy += x * y;
        yy += y * y;
    }
    let r_squared = if yy < 1e-12 { 1.0 } else { xy * xy / (xx * yy) };
    // The addition avoids a printed minus zero.
    Some(Zipf { exponent: -xy / xx + 0.0, r_squared, ranks: ranks as u64, method: METHOD })
}

/// Returns one point (ln rank, ln requests) per bin. Ten ranks have more than one bin, so that the points
/// never all have the same abscissa.
fn points(counts: &[u64]) -> Vec<(f64, f64)> {
    let bin_of = |rank: usize| (libm::log2(rank as f64) * BINS_PER_OCTAVE) as u64;
    let mut points = Vec::new();
    let mut start = 0;
    while start < counts.len() {
        let bin = bin_of(start + 1);
        let end = (start..counts.len()).find(|&i| bin_of(i + 1) != bin).unwrap_or(counts.len());
        let n = (end - start) as f64;
        let ln_rank = (start + 1..=end).map(|rank| libm::log(rank as f64)).sum::<f64>() / n;
        let requests = counts[start..end].iter().map(|&c| c as f64).sum::<f64>() / n;
        points.push((ln_rank, libm::log(requests)));
        start = end;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pure_power_law_gives_its_exponent() {
        for exponent in [0.0, 0.5, 0.77, 1.0, 1.4] {
            let counts: Vec<u64> =
                (1..=20_000).map(|rank| (1e7 * libm::pow(f64::from(rank), -exponent)) as u64).collect();
            let fitted = fit(&counts).expect("enough targets");
            assert!((fitted.exponent - exponent).abs() < 0.01, "{exponent}: {fitted:?}");
            assert!(fitted.r_squared > 0.999);
        }
    }

    #[test]
    fn too_few_popular_targets_give_no_fit() {
        assert_eq!(fit(&[100; 9]), None);
        assert_eq!(fit(&[9; 1_000]), None);
        assert_eq!(fit(&[]), None);
    }
}
