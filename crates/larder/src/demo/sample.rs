//! Samples the nodes' loads from the switch's admin interface during the measured part.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Deserialize;
use tokio::time::MissedTickBehavior;

use super::cpu::{CpuBusy, CpuTime};
use super::result::NodeLoad;
use crate::ask::AdminClient;

/// Sample interval. The loads are counters of the dispatcher, so a sample is exact at its instant.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// Interval at which processor times are read, which takes a file for each process.
const CPU_EVERY: Duration = Duration::from_millis(200);

/// Control of the sampler by the load generator.
#[derive(Debug, Default)]
pub(crate) struct SamplerControl {
    /// Whether the warm-up has ended and every client still has requests.
    pub(crate) measuring: AtomicBool,
    /// Whether the run has ended.
    pub(crate) ended: AtomicBool,
}

/// Samples of the measured part.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    names: Vec<String>,
    /// The load of each node in each sample.
    loads: Vec<Vec<u32>>,
    /// Utilization of the cores from the first to the last sample.
    pub(crate) cpu_busy: Option<CpuBusy>,
}

#[derive(Deserialize)]
struct NodeLoadRow {
    name: String,
    load: u32,
}

/// Waits for the measured part, and samples it until the run ends.
///
/// The processor time of `processes` is separated from that of other processes.
pub(crate) async fn sample(
    admin: SocketAddr,
    processes: Vec<u32>,
    control: Arc<SamplerControl>,
) -> anyhow::Result<Samples> {
    let mut admin = AdminClient::new(admin);
    let mut samples = Samples::default();
    let mut cpu: Option<(Option<CpuTime>, Option<CpuTime>)> = None;
    let mut cpu_at = None;
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !control.ended.load(Ordering::Acquire) {
        ticks.tick().await;
        if !control.measuring.load(Ordering::Acquire) {
            continue;
        }
        samples.add(query_loads(&mut admin).await?);
        let is_recent = cpu_at.is_some_and(|at: Instant| at.elapsed() < CPU_EVERY);
        if !is_recent {
            let now = CpuTime::now(&processes);
            cpu.get_or_insert((now, now)).1 = now;
            cpu_at = Some(Instant::now());
        }
    }
    if samples.names.is_empty() {
        // The run was shorter than the sample interval. This sample at least contains the names.
        samples.add(query_loads(&mut admin).await?);
    }
    samples.cpu_busy = cpu.and_then(|(first, last)| last?.busy_since(first?));
    Ok(samples)
}

async fn query_loads(admin: &mut AdminClient) -> anyhow::Result<Vec<NodeLoadRow>> {
    admin.get("/nodes").await.context("cannot read the switch's admin interface")
}

impl Samples {
    /// Returns the number of samples.
    pub(crate) fn count(&self) -> usize {
        self.loads.first().map_or(0, Vec::len)
    }

    fn add(&mut self, rows: Vec<NodeLoadRow>) {
        if self.names.is_empty() {
            self.names = rows.iter().map(|row| row.name.clone()).collect();
            self.loads = vec![Vec::new(); rows.len()];
        }
        for (loads, row) in self.loads.iter_mut().zip(rows) {
            loads.push(row.load);
        }
    }

    /// Returns the load of each node. A node with a load below `idle_below` counts as idle.
    pub(crate) fn node_loads(&self, idle_below: u32) -> Vec<NodeLoad> {
        let each = self.names.iter().zip(&self.loads);
        each.map(|(name, loads)| {
            let count = loads.len().max(1) as f64;
            NodeLoad {
                name: name.clone(),
                mean: loads.iter().map(|load| f64::from(*load)).sum::<f64>() / count,
                max: loads.iter().copied().max().unwrap_or(0),
                idle_fraction: loads.iter().filter(|load| **load < idle_below).count() as f64 / count,
            }
        })
        .collect()
    }
}

/// Returns the largest mean load over the mean of all loads; 1 without any load.
pub(crate) fn imbalance(loads: &[NodeLoad]) -> f64 {
    let mean = loads.iter().map(|node| node.mean).sum::<f64>() / loads.len().max(1) as f64;
    let most = loads.iter().map(|node| node.mean).fold(0.0, f64::max);
    if mean > 0.0 { most / mean } else { 1.0 }
}

/// Returns the mean share of time that a node was idle.
pub(crate) fn idle(loads: &[NodeLoad]) -> f64 {
    loads.iter().map(|node| node.idle_fraction).sum::<f64>() / loads.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(loads: [u32; 2]) -> Vec<NodeLoadRow> {
        let row = |(i, load)| NodeLoadRow { name: format!("node-{i}"), load };
        (0..).zip(loads).map(row).collect()
    }

    #[test]
    fn loads_are_averaged_over_time() {
        let mut samples = Samples::default();
        for loads in [[20, 0], [30, 10], [40, 20], [30, 9]] {
            samples.add(rows(loads));
        }
        let loads = samples.node_loads(10);
        assert_eq!((loads[0].mean, loads[0].max, loads[0].idle_fraction), (30.0, 40, 0.0));
        assert_eq!((loads[1].mean, loads[1].idle_fraction), (9.75, 0.5));
        assert!((imbalance(&loads) - 30.0 / 19.875).abs() < 1e-9);
        assert!((idle(&loads) - 0.25).abs() < 1e-9);
        assert!((imbalance(&[]) - 1.0).abs() < 1e-9);
    }
}
