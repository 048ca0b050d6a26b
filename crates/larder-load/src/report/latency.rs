//! Distributions of durations in reports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tally::LatencyHistogram;

/// Quantiles of the curve, dense at the tail of the distribution.
const CURVE: [f64; 24] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995,
    0.999, 0.9995, 0.9999, 0.99999, 1.0,
];

/// A distribution of durations in microseconds, with a relative error of at most 0.1 %.
///
/// Without samples all figures are 0. A duration above an hour counts as an hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Smallest.
    pub min_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// Largest.
    pub max_us: f64,
    /// Quantile curve, for plots.
    pub curve: Vec<QuantilePoint>,
}

/// A point of a quantile curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuantilePoint {
    /// The quantile, from 0 to 1.
    pub quantile: f64,
    /// The value of the quantile, in microseconds.
    pub us: f64,
}

impl Latency {
    pub(crate) fn new(latencies: &LatencyHistogram) -> Self {
        let histogram = &latencies.0;
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let curve = CURVE.into_iter().map(|quantile| QuantilePoint { quantile, us: at(quantile) }).collect();
        Self {
            samples: histogram.len(),
            min_us: histogram.min() as f64 / 1e3,
            mean_us: histogram.mean() / 1e3,
            stdev_us: histogram.stdev() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: histogram.max() as f64 / 1e3,
            curve,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn percentiles_have_an_error_of_at_most_a_thousandth() {
        let mut latencies = LatencyHistogram::new();
        for ms in 1..=1_000 {
            latencies.record(Duration::from_millis(ms));
        }
        let latency = Latency::new(&latencies);
        let near =
            |found: f64, ms: f64| assert!((found / (ms * 1e3) - 1.0).abs() < 1e-3, "{found} for {ms} ms");
        near(latency.p50_us, 500.0);
        near(latency.p99_us, 990.0);
        near(latency.p99_9_us, 999.0);
        near(latency.max_us, 1_000.0);
        near(latency.mean_us, 500.5);
        assert_eq!(latency.samples, 1_000);
        assert!(latency.curve.is_sorted_by(|a, b| a.us <= b.us));
    }

    #[test]
    fn an_empty_distribution_is_zero_without_a_curve() {
        assert_eq!(Latency::new(&LatencyHistogram::new()), Latency::default());
    }

    #[test]
    fn more_than_an_hour_counts_as_an_hour() {
        let mut latencies = LatencyHistogram::new();
        latencies.record(Duration::from_secs(100_000));
        let hour = Latency::new(&latencies).max_us / 3.6e9;
        assert!((hour - 1.0).abs() < 1e-3);
    }
}
