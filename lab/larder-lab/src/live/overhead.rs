//! What the switch costs a request: the same replies by way of it and straight from the node, from 512 bytes to 2 MB
//! (HACC, figure 3: 1.4 ms and 0.0242 ms for each KB on a 200 MHz Pentium Pro).
//!
//! One client, one request at a time, on connections that are kept; everything is in the node's memory. The two ways
//! take turns, several times for each size, and the medians of the turns' median latencies are compared.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_core::Bytes;
use larder_load::Arrivals;
use serde::Serialize;

use super::cluster::{Cluster, ClusterPlan, Member};
use crate::validate::Line;

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
/// Turns of each way.
const TURNS: usize = 5;
/// Bytes in a turn, about; bounded by the numbers of requests below.
const TURN_BYTES: u64 = 192 << 20;
/// Requests in a turn, at least and at most.
const REQUESTS: (u64, u64) = (100, 2_000);

/// One size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Point {
    /// Of the reply.
    pub(crate) bytes: u64,
    /// Median latency straight from the node, in us.
    pub(crate) direct_us: f64,
    /// Median latency by way of the switch, in us.
    pub(crate) switch_us: f64,
}

impl Point {
    /// What the switch adds, in us.
    pub(crate) fn added_us(&self) -> f64 {
        self.switch_us - self.direct_us
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overhead {
    /// By size.
    pub(crate) points: Vec<Point>,
    /// What the switch adds to every reply, in us.
    pub(crate) fixed_us: f64,
    /// And to each KB (1,024 bytes) of it, in us.
    pub(crate) per_kb_us: f64,
    /// Largest distance of a point from that line, as a share of what the switch adds there.
    pub(crate) off_max: f64,
}

/// Measures all sizes. `say` is told what is being done.
///
/// # Errors
/// The cluster does not come up, or requests fail.
pub(crate) async fn measure(larder: &Path, say: &(dyn Fn(&str) + Sync)) -> anyhow::Result<Overhead> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let manifest = folder.path().join("manifest.tsv");
    let lines: String = SIZES.iter().map(|bytes| format!("{bytes}\t/{bytes}\n")).collect();
    std::fs::write(&manifest, lines).context("cannot write the list of targets")?;
    let tables = format!("[node.model]\nmanifest = \"{}\"\nspeed = 1e6\n", manifest.display());
    let member = Member { cache: Bytes::mib(64), groups: Vec::new(), tables };
    let plan = ClusterPlan {
        members: vec![member],
        cache_kind: "lru",
        switch: String::new(),
        tables: String::new(),
    };
    let cluster = Cluster::start(larder, &plan, folder.path()).await?;
    let node = *cluster.nodes.first().context("there is no node")?;
    let mut points = Vec::with_capacity(SIZES.len());
    for (place, bytes) in (0..).zip(SIZES) {
        say(&format!("replies of {}", Bytes(bytes)));
        let mut turns = [Vec::with_capacity(TURNS), Vec::with_capacity(TURNS)];
        for _ in 0..TURNS {
            for (way, turns) in [node, cluster.address].into_iter().zip(&mut turns) {
                turns.push(turn(way, place, bytes).await?);
            }
        }
        let [direct_us, switch_us] = turns.map(median);
        points.push(Point { bytes, direct_us, switch_us });
    }
    cluster.stop().await;
    Ok(Overhead::new(points))
}

/// Median latency of a turn, in us.
async fn turn(address: SocketAddr, place: u32, bytes: u64) -> anyhow::Result<f64> {
    let targets: Arc<[String]> = SIZES.iter().map(|bytes| format!("/{bytes}")).collect();
    let requests = (TURN_BYTES / bytes).clamp(REQUESTS.0, REQUESTS.1);
    let plan = larder_load::Plan {
        arrivals: Arrivals::Closed { clients: 1 },
        requests: Some(requests),
        warmup_requests: requests / 10,
        expected_sizes: Some(SIZES.to_vec().into()),
        ..larder_load::Plan::new(address, "lab", targets, vec![place].into())
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
    fn new(points: Vec<Point>) -> Self {
        let kb = |point: &Point| point.bytes as f64 / 1024.0;
        // What is not above 0 is noise, and has no share that an error could be of.
        let added: Vec<(f64, f64)> =
            points.iter().filter(|p| p.added_us() > 0.0).map(|p| (kb(p), p.added_us())).collect();
        let line = if added.len() < 2 { Line { base: 0.0, slope: 0.0 } } else { Line::through(&added) };
        let off = added.iter().map(|(kb, added)| (line.at(*kb) / added - 1.0).abs());
        let off_max = off.fold(0.0, f64::max);
        Self { points, fixed_us: line.base, per_kb_us: line.slope, off_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_cost_is_found() {
        let point = |bytes: u64| {
            let direct_us = 50.0 + bytes as f64 / 4_096.0;
            Point { bytes, direct_us, switch_us: direct_us + 30.0 + 0.25 * bytes as f64 / 1024.0 }
        };
        let overhead = Overhead::new(SIZES.map(point).to_vec());
        assert!((overhead.fixed_us - 30.0).abs() < 1e-6 && (overhead.per_kb_us - 0.25).abs() < 1e-9);
        assert!(overhead.off_max < 1e-9);
    }

    #[test]
    fn noise_gives_no_line_but_no_nonsense() {
        let noise = |bytes| Point { bytes, direct_us: 60.0, switch_us: 59.0 };
        let overhead = Overhead::new(SIZES.map(noise).to_vec());
        assert_eq!((overhead.fixed_us, overhead.per_kb_us, overhead.off_max), (0.0, 0.0, 0.0));
    }
}
