//! One run of a load on a cluster, with the cluster's counters during the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use larder_load::{Arrivals, Progress, Report, StopHandle};

use super::cluster::PeersCluster;
use super::watch::{ClusterDelta, ClusterSample};
use crate::demo::HOST;

/// Longest wait for a reply. In a slow demo a modelled disk may have a long queue.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Poll interval of the wait for the measured part.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The load on a cluster.
#[derive(Clone, Debug)]
pub(super) struct LoadSpec {
    pub(super) targets: Arc<[String]>,
    pub(super) sizes: Arc<[u64]>,
    pub(super) order: Arc<[u32]>,
    /// Number of leading requests that are not measured.
    pub(super) warmup: usize,
    /// Whether the requests start again at their end.
    pub(super) repeat: bool,
    pub(super) clients: u32,
    /// Longest measured part; `None` means to the end of the requests.
    pub(super) measured: Option<Duration>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) struct RunResult {
    /// Report of the load generator.
    pub(super) report: Report,
    /// Counters of the cluster in the measured part.
    pub(super) measured: ClusterDelta,
    /// Counters of the cluster since its start.
    pub(super) whole: ClusterDelta,
}

/// Runs a load on a cluster.
///
/// # Errors
/// Returns an error if the load cannot be generated or a node does not answer.
pub(super) async fn run_load(
    cluster: &PeersCluster,
    load: &LoadSpec,
    progress: &(dyn Fn(&Progress) + Sync),
) -> anyhow::Result<RunResult> {
    let (measuring, ended, stop) = (AtomicBool::new(false), AtomicBool::new(false), StopHandle::default());
    let note = |at: Progress| {
        measuring.store(at.measuring, Ordering::Release);
        progress(&at);
    };
    let loading = async {
        let report = larder_load::run(plan(cluster, load, &stop)?, &note).await;
        ended.store(true, Ordering::Release);
        report.context("the load generator failed")
    };
    let mut clients = cluster.admin_clients();
    let sampling = async {
        while !measuring.load(Ordering::Acquire) && !ended.load(Ordering::Acquire) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let first = ClusterSample::take(&mut clients, cluster).await?;
        let began = tokio::time::Instant::now();
        while let Some(limit) = load.measured
            && !ended.load(Ordering::Acquire)
        {
            if began.elapsed() >= limit {
                stop.stop();
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(first)
    };
    let (report, first) = tokio::try_join!(loading, sampling)?;
    let last = ClusterSample::take(&mut cluster.admin_clients(), cluster).await?;
    let whole = last.since(&ClusterSample::default());
    let measured = last.since(&first);
    Ok(RunResult { report, measured, whole })
}

fn plan(cluster: &PeersCluster, load: &LoadSpec, stop: &StopHandle) -> anyhow::Result<larder_load::Plan> {
    let (first, others) = cluster.addresses.split_first().context("there is no node to send requests to")?;
    let requests = if load.repeat { 1 << 53 } else { load.order.len() as u64 };
    Ok(larder_load::Plan {
        other_addresses: others.to_vec(),
        requests: Some(requests),
        arrivals: Arrivals::Closed { clients: load.clients },
        warmup_requests: load.warmup as u64,
        timeout: REQUEST_TIMEOUT,
        expected_sizes: Some(Arc::clone(&load.sizes)),
        timeline_interval: Duration::from_millis(100),
        stop: stop.clone(),
        ..larder_load::Plan::new(*first, HOST, Arc::clone(&load.targets), Arc::clone(&load.order))
    })
}
