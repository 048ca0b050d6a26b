//! Throughput of policies at equal p99: a log is replayed by growing numbers of clients, and the throughput at which the 99th
//! percentile passes a bound is interpolated.

use std::path::Path;

use larder_core::PolicyKind;
use serde::Serialize;

use super::policies::replay;
use super::runner::Row;
use super::scenario::{LoadSource, Scenario};

/// Numbers of clients, in eighths of S.
const EIGHTHS: [u32; 7] = [1, 2, 3, 4, 5, 6, 8];

/// The scenarios of a log: the same requests by growing numbers of clients.
///
/// # Errors
/// The log cannot be read.
pub(crate) fn scenarios(log: &Path, limit: usize, nodes: usize) -> anyhow::Result<Vec<Scenario>> {
    let full_load = replay(log, limit, nodes)?;
    let with = |eighths: u32| {
        let mut scenario = full_load.clone();
        if let LoadSource::Log { clients, .. } = &mut scenario.load {
            *clients = (*clients * eighths / 8).max(1);
        }
        scenario
    };
    Ok(EIGHTHS.into_iter().map(with).collect())
}

/// Throughput of a policy at a bound of the 99th percentile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ThroughputAtP99 {
    /// Label of the scenario.
    pub(crate) scene: String,
    /// The policy.
    pub(crate) policy: String,
    /// The bound on the 99th percentile.
    pub(crate) p99_ms: f64,
    /// Requests per second at the bound, interpolated linearly between two runs; `None` if all runs were above the bound.
    pub(crate) requests_per_s: Option<f64>,
    /// Whether even the largest number of clients stayed below the bound, so that the throughput may be higher.
    pub(crate) open: bool,
}

/// Computes the throughput of a policy at a p99 of `p99_ms`.
pub(crate) fn at_bound(rows: &[Row], scene: &str, policy: PolicyKind, p99_ms: f64) -> ThroughputAtP99 {
    let name = policy.to_string();
    let mut points: Vec<(f64, f64)> = rows
        .iter()
        .filter(|row| row.scene == scene && row.figures.policy == name)
        .map(|row| (row.figures.p99_ms, row.figures.requests_per_s))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let below = points.iter().rev().find(|point| point.0 <= p99_ms).copied();
    let above = points.iter().find(|point| point.0 > p99_ms).copied();
    let requests_per_s = match (below, above) {
        (Some(low), Some(high)) => {
            Some(low.1 + (high.1 - low.1) * (p99_ms - low.0) / (high.0 - low.0).max(f64::MIN_POSITIVE))
        }
        (Some(low), None) => Some(low.1),
        (None, _) => None,
    };
    ThroughputAtP99 { scene: scene.to_owned(), policy: name, p99_ms, requests_per_s, open: above.is_none() }
}
