//! Samples the utilisation of each node's processor and disk during the measured part of a run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use larder::ask::AdminClient;

/// State of the measured part, set by the load generator and read by the sampler.
#[derive(Debug, Default)]
pub(crate) struct MeasurementWindow {
    /// Whether the measured part is in progress.
    pub(crate) open: AtomicBool,
    /// Whether the run has ended.
    pub(crate) ended: AtomicBool,
}

/// A node's counters, from `/.larder/load`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Counters {
    uptime_us: u64,
    cpu_busy_us: Option<u64>,
    cpus: Option<u32>,
    disk_busy_us: Option<u64>,
    disks: Option<u32>,
}

/// A node's utilisation over the measured part: shares of time, 0 to 1.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Utilisation {
    /// Utilisation of the processor.
    pub(crate) cpu: f64,
    /// Utilisation of the disk.
    pub(crate) disk: f64,
    /// Minimum over the intervals of the busier of both devices.
    pub(crate) least: f64,
    /// Maximum over the intervals of the busier of both devices.
    pub(crate) greatest: f64,
    /// Number of intervals.
    pub(crate) intervals: usize,
}

/// Samples the nodes' counters at each `interval` of the measured part, until the run has ended.
///
/// # Errors
/// If a node does not reply.
pub(crate) async fn sample(
    nodes: Vec<SocketAddr>,
    interval: Duration,
    window: Arc<MeasurementWindow>,
) -> anyhow::Result<Vec<Utilisation>> {
    let mut clients: Vec<AdminClient> = nodes.into_iter().map(AdminClient::new).collect();
    let mut samples: Vec<Vec<Counters>> = vec![Vec::new(); clients.len()];
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !window.ended.load(Ordering::Acquire) {
        ticks.tick().await;
        if window.open.load(Ordering::Acquire) {
            for (client, samples) in clients.iter_mut().zip(&mut samples) {
                samples.push(client.get("/.larder/load").await?);
            }
        }
    }
    Ok(samples.iter().map(|samples| utilisation(samples)).collect())
}

/// Computes the utilisation from the samples of a node.
fn utilisation(samples: &[Counters]) -> Utilisation {
    let shares = |from: &Counters, to: &Counters| {
        let span = to.uptime_us.saturating_sub(from.uptime_us).max(1) as f64;
        let share = |from: Option<u64>, to: Option<u64>, devices: Option<u32>| {
            let busy_us = to.unwrap_or(0).saturating_sub(from.unwrap_or(0)) as f64;
            (busy_us / span / f64::from(devices.unwrap_or(1).max(1))).min(1.0)
        };
        let cpu = share(from.cpu_busy_us, to.cpu_busy_us, to.cpus);
        (cpu, share(from.disk_busy_us, to.disk_busy_us, to.disks))
    };
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Utilisation::default() };
    let (cpu, disk) = shares(first, last);
    let each = || samples.windows(2).map(|pair| shares(&pair[0], &pair[1])).map(|(cpu, disk)| cpu.max(disk));
    let greatest = each().fold(0.0, f64::max);
    Utilisation { cpu, disk, least: each().fold(greatest, f64::min), greatest, intervals: samples.len() - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busier_device_counts_in_each_interval() {
        let at = |uptime_us, cpu, disk| Counters {
            uptime_us,
            cpu_busy_us: Some(cpu),
            cpus: Some(1),
            disk_busy_us: Some(disk),
            disks: Some(2),
        };
        let seen = [at(0, 0, 0), at(1_000, 500, 0), at(2_000, 600, 1_600), at(3_000, 700, 1_700)];
        let busy = utilisation(&seen);
        assert!((busy.cpu - 700.0 / 3_000.0).abs() < 1e-9);
        assert!((busy.disk - 1_700.0 / 6_000.0).abs() < 1e-9);
        assert!((busy.least - 0.1).abs() < 1e-9 && (busy.greatest - 0.8).abs() < 1e-9, "{busy:?}");
        assert_eq!(super::utilisation(&[]).intervals, 0);
    }
}
