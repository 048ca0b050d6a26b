//! Latency that the switch adds: the same replies through the switch and directly from the node, from 512 bytes to 2 MB (HACC,
//! figure 3: 1.4 ms and 0.0242 ms for each KB on a 200 MHz Pentium Pro).
//!
//! One client sends one request at a time on a kept-alive connection, and the node has all contents in memory. Both paths are
//! measured alternately in several rounds for each size, and the medians of the rounds' median latencies are compared.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_core::Bytes;
use larder_load::Arrivals;
use serde::Serialize;

use super::cluster::{Cluster, ClusterPlan, NodePlan};
use crate::validate::LinearFit;

/// Sizes of replies.
const SIZES: [u64; 13] = [
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
];
/// Rounds for each size.
const ROUNDS: usize = 5;
/// Approximate bytes of a round, within the limits on requests below.
const ROUND_BYTES: u64 = 192 << 20;
/// Minimum and maximum requests of a round.
const REQUESTS: (u64, u64) = (100, 2_000);

/// Latencies for one reply size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SizeLatency {
    /// Size of the reply.
    pub(crate) bytes: u64,
    /// Median latency directly from the node, in us.
    pub(crate) direct_us: f64,
    /// Median latency through the switch, in us.
    pub(crate) switch_us: f64,
}

impl SizeLatency {
    /// Latency that the switch adds, in us.
    pub(crate) fn added_us(&self) -> f64 {
        self.switch_us - self.direct_us
    }
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overhead {
    /// Latencies by size.
    pub(crate) points: Vec<SizeLatency>,
    /// Latency that the switch adds to each reply, in us.
    pub(crate) fixed_us: f64,
    /// Latency that the switch adds for each KB (1,024 bytes), in us.
    pub(crate) per_kb_us: f64,
    /// Largest relative error of the linear fit.
    pub(crate) off_max: f64,
}

/// Measures all sizes. `show` is called with the current step.
///
/// # Errors
/// If the cluster does not start or requests fail.
pub(crate) async fn measure(larder: &Path, show: &(dyn Fn(&str) + Sync)) -> anyhow::Result<Overhead> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let manifest = folder.path().join("manifest.tsv");
    let lines: String = SIZES.iter().map(|bytes| format!("{bytes}\t/{bytes}\n")).collect();
    std::fs::write(&manifest, lines).context("cannot write the list of targets")?;
    let tables = format!("[node.model]\nmanifest = \"{}\"\nspeed = 1e6\n", manifest.display());
    let member = NodePlan { cache: Bytes::mib(64), groups: Vec::new(), tables };
    let plan = ClusterPlan {
        members: vec![member],
        cache_kind: "lru",
        switch: String::new(),
        tables: String::new(),
    };
    let cluster = Cluster::start(larder, &plan, folder.path()).await?;
    let node = *cluster.nodes.first().context("there is no node")?;
    let mut points = Vec::with_capacity(SIZES.len());
    for (index, bytes) in (0..).zip(SIZES) {
        show(&format!("replies of {}", Bytes(bytes)));
        let mut medians = [Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS)];
        for _ in 0..ROUNDS {
            for (address, medians) in [node, cluster.address].into_iter().zip(&mut medians) {
                medians.push(measure_round(address, index, bytes).await?);
            }
        }
        let [direct_us, switch_us] = medians.map(median);
        points.push(SizeLatency { bytes, direct_us, switch_us });
    }
    cluster.stop().await;
    Ok(Overhead::new(points))
}

/// Measures the median latency of a round, in us.
async fn measure_round(address: SocketAddr, index: u32, bytes: u64) -> anyhow::Result<f64> {
    let targets: Arc<[String]> = SIZES.iter().map(|bytes| format!("/{bytes}")).collect();
    let requests = (ROUND_BYTES / bytes).clamp(REQUESTS.0, REQUESTS.1);
    let plan = larder_load::Plan {
        arrivals: Arrivals::Closed { clients: 1 },
        requests: Some(requests),
        warmup_requests: requests / 10,
        expected_sizes: Some(SIZES.to_vec().into()),
        ..larder_load::Plan::new(address, "lab", targets, vec![index].into())
    };
    let report = larder_load::run(plan, &|_| {}).await.context("the load generator failed")?;
    if report.failed > 0 {
        bail!("{} of {requests} requests for {bytes} bytes failed", report.failed);
    }
    Ok(report.latency.p50_us)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Overhead {
    fn new(points: Vec<SizeLatency>) -> Self {
        let kb = |point: &SizeLatency| point.bytes as f64 / 1024.0;
        // Values that are not positive are noise, and relative errors are not defined for them.
        let added: Vec<(f64, f64)> =
            points.iter().filter(|p| p.added_us() > 0.0).map(|p| (kb(p), p.added_us())).collect();
        let line =
            if added.len() < 2 { LinearFit { base: 0.0, slope: 0.0 } } else { LinearFit::through(&added) };
        let off = added.iter().map(|(kb, added)| (line.at(*kb) / added - 1.0).abs());
        let off_max = off.fold(0.0, f64::max);
        Self { points, fixed_us: line.base, per_kb_us: line.slope, off_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_cost_is_found() {
        let point = |bytes: u64| {
            let direct_us = 50.0 + bytes as f64 / 4_096.0;
            SizeLatency { bytes, direct_us, switch_us: direct_us + 30.0 + 0.25 * bytes as f64 / 1024.0 }
        };
        let overhead = Overhead::new(SIZES.map(point).to_vec());
        assert!((overhead.fixed_us - 30.0).abs() < 1e-6 && (overhead.per_kb_us - 0.25).abs() < 1e-9);
        assert!(overhead.off_max < 1e-9);
    }

    #[test]
    fn noise_gives_a_cost_of_zero() {
        let noise = |bytes| SizeLatency { bytes, direct_us: 60.0, switch_us: 59.0 };
        let overhead = Overhead::new(SIZES.map(noise).to_vec());
        assert_eq!((overhead.fixed_us, overhead.per_kb_us, overhead.off_max), (0.0, 0.0, 0.0));
    }
}
