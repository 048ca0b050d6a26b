//! One run: the load on a cluster, and what the cluster counted and used meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use larder_load::{Arrivals, Progress, Report, StopHandle};

use super::cluster::Cluster;
use super::watch::{Between, Watch};
use crate::demo::HOST;

/// Longest wait for a reply. A modelled disk may have a long queue in a slow demo.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Between two looks at whether the measured part has begun.
const LOOK: Duration = Duration::from_millis(5);

/// What is asked of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) targets: Arc<[String]>,
    pub(super) sizes: Arc<[u64]>,
    pub(super) order: Arc<[u32]>,
    /// The first requests, which are not measured.
    pub(super) warmup: usize,
    /// The order begins again at its end.
    pub(super) again: bool,
    pub(super) clients: u32,
    /// Longest measured part; none: to the end of the order.
    pub(super) measured: Option<Duration>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// What the clients have seen.
    pub(super) report: Report,
    /// What the cluster did in the measured part.
    pub(super) measured: Between,
    /// What it did since its start.
    pub(super) whole: Between,
}

/// Runs a load.
///
/// # Errors
/// The load cannot be made, or a node does not answer for itself.
pub(super) async fn drive(
    cluster: &Cluster,
    load: &Load,
    progress: &(dyn Fn(&Progress) + Sync),
) -> anyhow::Result<Seen> {
    let (measuring, ended, stop) = (AtomicBool::new(false), AtomicBool::new(false), StopHandle::default());
    let note = |at: Progress| {
        measuring.store(at.measuring, Ordering::Release);
        progress(&at);
    };
    let asking = async {
        let report = larder_load::run(plan(cluster, load, &stop)?, &note).await;
        ended.store(true, Ordering::Release);
        report.context("the load generator failed")
    };
    let mut asked = cluster.asked();
    let watching = async {
        while !measuring.load(Ordering::Acquire) && !ended.load(Ordering::Acquire) {
            tokio::time::sleep(LOOK).await;
        }
        let first = Watch::look(&mut asked, cluster).await?;
        let began = tokio::time::Instant::now();
        while let Some(limit) = load.measured
            && !ended.load(Ordering::Acquire)
        {
            if began.elapsed() >= limit {
                stop.stop();
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(first)
    };
    let (report, first) = tokio::try_join!(asking, watching)?;
    let last = Watch::look(&mut cluster.asked(), cluster).await?;
    let whole = last.since(&Watch::default());
    let measured = last.since(&first);
    Ok(Seen { report, measured, whole })
}

fn plan(cluster: &Cluster, load: &Load, stop: &StopHandle) -> anyhow::Result<larder_load::Plan> {
    let (first, others) = cluster.addresses.split_first().context("there is nobody to ask")?;
    let requests = if load.again { 1 << 53 } else { load.order.len() as u64 };
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
