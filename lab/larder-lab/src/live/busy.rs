//! How busy each node's processor and disk are while a run is measured: asked of the nodes, second by second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use larder::ask::Asked;

/// What the load generator tells the sampler.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The measured part has begun and not ended.
    pub(crate) open: AtomicBool,
    /// The run has ended.
    pub(crate) ended: AtomicBool,
}

/// A node's counters; what `/.larder/load` says.
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
pub(crate) struct Busy {
    /// The processor, over the whole of it.
    pub(crate) cpu: f64,
    /// The disk, over the whole of it.
    pub(crate) disk: f64,
    /// The busier of the two in the interval in which that was least.
    pub(crate) least: f64,
    /// The same where it was greatest.
    pub(crate) greatest: f64,
    /// Intervals looked at.
    pub(crate) intervals: usize,
}

/// Looks at the nodes at every `interval` of the measured part, until the run has ended.
///
/// # Errors
/// A node does not answer.
pub(crate) async fn sample(
    nodes: Vec<SocketAddr>,
    interval: Duration,
    window: Arc<Window>,
) -> anyhow::Result<Vec<Busy>> {
    let mut asked: Vec<Asked> = nodes.into_iter().map(Asked::new).collect();
    let mut seen: Vec<Vec<Counters>> = vec![Vec::new(); asked.len()];
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !window.ended.load(Ordering::Acquire) {
        ticks.tick().await;
        if window.open.load(Ordering::Acquire) {
            for (asked, seen) in asked.iter_mut().zip(&mut seen) {
                seen.push(asked.get("/.larder/load").await?);
            }
        }
    }
    Ok(seen.iter().map(|seen| busy(seen)).collect())
}

fn busy(seen: &[Counters]) -> Busy {
    let shares = |from: &Counters, to: &Counters| {
        let span = to.uptime_us.saturating_sub(from.uptime_us).max(1) as f64;
        let share = |from: Option<u64>, to: Option<u64>, many: Option<u32>| {
            let spent = to.unwrap_or(0).saturating_sub(from.unwrap_or(0)) as f64;
            (spent / span / f64::from(many.unwrap_or(1).max(1))).min(1.0)
        };
        let cpu = share(from.cpu_busy_us, to.cpu_busy_us, to.cpus);
        (cpu, share(from.disk_busy_us, to.disk_busy_us, to.disks))
    };
    let (Some(first), Some(last)) = (seen.first(), seen.last()) else { return Busy::default() };
    let (cpu, disk) = shares(first, last);
    let each = || seen.windows(2).map(|pair| shares(&pair[0], &pair[1])).map(|(cpu, disk)| cpu.max(disk));
    let greatest = each().fold(0.0, f64::max);
    Busy { cpu, disk, least: each().fold(greatest, f64::min), greatest, intervals: seen.len() - 1 }
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
        let busy = busy(&seen);
        assert!((busy.cpu - 700.0 / 3_000.0).abs() < 1e-9);
        assert!((busy.disk - 1_700.0 / 6_000.0).abs() < 1e-9);
        assert!((busy.least - 0.1).abs() < 1e-9 && (busy.greatest - 0.8).abs() < 1e-9, "{busy:?}");
        assert_eq!(super::busy(&[]).intervals, 0);
    }
}
