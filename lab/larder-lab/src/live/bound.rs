//! What two policies do at equal p99: a log replayed by ever more clients, and the throughput at which the 99th percentile
//! passes a bound.

use std::path::Path;

use larder_core::PolicyKind;
use serde::Serialize;

use super::bench::Row;
use super::scene::{Drive, Scene};
use super::table::replay;

/// Shares of S at which clients are tried, in 1/8.
const EIGHTHS: [u32; 7] = [1, 2, 3, 4, 5, 6, 8];

/// The scenes of one log: the same requests by ever more clients.
///
/// # Errors
/// The log cannot be read.
pub(crate) fn scenes(log: &Path, limit: usize, nodes: usize) -> anyhow::Result<Vec<Scene>> {
    let full = replay(log, limit, nodes)?;
    let with = |eighths: u32| {
        let mut scene = full.clone();
        if let Drive::Log { clients, .. } = &mut scene.drive {
            *clients = (*clients * eighths / 8).max(1);
        }
        scene
    };
    Ok(EIGHTHS.into_iter().map(with).collect())
}

/// Throughput of a policy at a bound of the 99th percentile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AtBound {
    /// The log.
    pub(crate) scene: String,
    /// The policy.
    pub(crate) policy: String,
    /// The bound.
    pub(crate) p99_ms: f64,
    /// Requests per second at it, between two runs by a straight line; `None` if every run was above the bound.
    pub(crate) requests_per_s: Option<f64>,
    /// Whether the most clients stay below the bound, so that there may be more.
    pub(crate) open: bool,
}

/// The throughput of each policy where its p99 is `p99_ms`.
pub(crate) fn at_bound(rows: &[Row], scene: &str, policy: PolicyKind, p99_ms: f64) -> AtBound {
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
    AtBound { scene: scene.to_owned(), policy: name, p99_ms, requests_per_s, open: above.is_none() }
}
