//! Comparison of a report with a baseline.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Report;

/// Change of a figure from the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Value in the baseline; `None` if it has none.
    pub before: Option<f64>,
    /// Value in the report; `None` if it has none.
    pub after: Option<f64>,
    /// `after / before`; `None` if it is not a number.
    pub ratio: Option<f64>,
}

impl Change {
    fn new(before: Option<f64>, after: Option<f64>) -> Self {
        let ratio = before.zip(after).and_then(|(before, after)| super::ratio(after, before));
        Self { before, after, ratio }
    }
}

/// Comparison of a report with a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Good replies per second.
    pub requests_per_s: Change,
    /// Body bytes per second.
    pub body_bytes_per_s: Change,
    /// Share of hits.
    pub hit_ratio: Change,
    /// Median latency, microseconds.
    pub latency_us_p50: Change,
    /// 99th percentile of the latency, microseconds.
    pub latency_us_p99: Change,
    /// Requests of the busiest node divided by the mean.
    pub imbalance_requests: Change,
    /// Share of requests that failed.
    pub failure_ratio: Change,
    /// Settings that differ, so that the reports are not comparable.
    pub differences: Vec<String>,
}

impl Report {
    /// Compares this report with `baseline`.
    pub fn compare(&self, baseline: &Self) -> Comparison {
        let change = |of: &dyn Fn(&Self) -> Option<f64>| Change::new(of(baseline), of(self));
        Comparison {
            requests_per_s: change(&|report| Some(report.requests_per_s)),
            body_bytes_per_s: change(&|report| Some(report.body_bytes_per_s)),
            hit_ratio: change(&|report| report.cache.hit_ratio),
            latency_us_p50: change(&|report| (report.ok > 0).then_some(report.latency.p50_us)),
            latency_us_p99: change(&|report| (report.ok > 0).then_some(report.latency.p99_us)),
            imbalance_requests: change(&|report| report.imbalance_requests),
            failure_ratio: change(&|report| {
                super::ratio(report.failed as f64, (report.ok + report.failed) as f64)
            }),
            differences: differences(baseline, self),
        }
    }
}

/// Lists the settings of the load that differ. The address may differ.
fn differences(one: &Report, two: &Report) -> Vec<String> {
    let (one, two) = (&one.setup, &two.setup);
    let mut found = Vec::new();
    let mut note = |name: &str, same: bool, before: String, after: String| {
        if !same {
            found.push(format!("{name}: {before}, now {after}"));
        }
    };
    let text = |value: Option<f64>| value.map_or("none".to_owned(), |value| value.to_string());
    note("load model", one.load_model == two.load_model, one.load_model.clone(), two.load_model.clone());
    note(
        "clients",
        one.clients == two.clients,
        text(one.clients.map(f64::from)),
        text(two.clients.map(f64::from)),
    );
    note("rate", one.rate == two.rate, text(one.rate), text(two.rate));
    note(
        "keep-alive",
        one.keep_alive == two.keep_alive,
        one.keep_alive.to_string(),
        two.keep_alive.to_string(),
    );
    note("targets", one.targets == two.targets, one.targets.to_string(), two.targets.to_string());
    let warmup =
        |setup: &super::Setup| format!("{} requests and {} s", setup.warmup_requests, setup.warmup_s);
    note("warm-up", warmup(one) == warmup(two), warmup(one), warmup(two));
    found
}

impl Comparison {
    /// Formats the comparison as a text table.
    pub fn render(&self) -> String {
        let mut text = format!("{:<22}{:>14}{:>14}{:>9}\n", "", "before", "after", "ratio");
        let rows = [
            ("requests/s", self.requests_per_s, 1.0),
            ("body MB/s", self.body_bytes_per_s, 1e-6),
            ("hit ratio", self.hit_ratio, 1.0),
            ("latency p50 ms", self.latency_us_p50, 1e-3),
            ("latency p99 ms", self.latency_us_p99, 1e-3),
            ("imbalance (requests)", self.imbalance_requests, 1.0),
            ("failed share", self.failure_ratio, 1.0),
        ];
        for (name, change, factor) in rows {
            let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{name:<22}{:>14}{:>14}{:>9}",
                cell(change.before.map(|value| value * factor)),
                cell(change.after.map(|value| value * factor)),
                cell(change.ratio)
            );
        }
        for difference in &self.differences {
            let _ = writeln!(text, "not the same load: {difference}");
        }
        text
    }
}
