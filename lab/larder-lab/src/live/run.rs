//! One run: a scene under a policy, from a cold cluster to its figures.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use larder_core::PolicyKind;
use larder_load::users::UserPlan;
use larder_load::{Arrivals, Report, Stage, UserProgress, Users, UsersReport, Warning};
use serde::Serialize;

use super::busy::{self, Busy, Window};
use super::cluster::Cluster;
use super::scene::{Drive, Scene};
use larder::demo::cpu::CpuTime;

/// Share of all cores above which a run may have measured the machine.
const CPU_BUSY_MAX: f64 = 0.85;
/// Longest wait for a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the nodes are asked how busy they are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The `Host` of every request.
const HOST: &str = "lab";

/// What came of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// The policy.
    pub(crate) policy: String,
    /// Good replies per second.
    pub(crate) requests_per_s: f64,
    /// Connections made per second; `None` where clients keep theirs.
    pub(crate) connections_per_s: Option<f64>,
    /// Good pages per second; `None` where there are no pages.
    pub(crate) pages_per_s: Option<f64>,
    /// Hits among the replies of caches, 0 to 1; `None` if no cache answered.
    pub(crate) hit_ratio: Option<f64>,
    /// Latency of requests.
    pub(crate) mean_ms: f64,
    /// Median.
    pub(crate) p50_ms: f64,
    /// 99th percentile.
    pub(crate) p99_ms: f64,
    /// 90th percentile of pages, from due to the last object.
    pub(crate) page_p90_ms: Option<f64>,
    /// Requests of the busiest node over the mean of all.
    pub(crate) imbalance: f64,
    /// The nodes' devices.
    pub(crate) busy: Vec<Busy>,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Length of the measured part.
    pub(crate) seconds: f64,
    /// Share of all cores of this machine in use.
    pub(crate) cpu_busy: Option<f64>,
    /// Reasons to doubt it.
    pub(crate) warnings: Vec<String>,
    /// Why there are no figures.
    pub(crate) broken: Option<String>,
}

impl Scene {
    /// Runs it on a cluster of its own. `progress` is told how much of it is done, 0 to 1.
    ///
    /// # Errors
    /// The cluster does not come up, or the load generator cannot run.
    pub(crate) async fn run(
        &self,
        larder: &Path,
        policy: PolicyKind,
        progress: &(dyn Fn(f64) + Sync),
    ) -> anyhow::Result<Figures> {
        let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
        let cluster = Cluster::start(larder, &self.cluster(policy, folder.path())?, folder.path()).await?;
        let window = Arc::new(Window::default());
        let sampler = tokio::spawn(busy::sample(cluster.nodes.clone(), LOOK_EVERY, Arc::clone(&window)));
        let members = cluster.process_ids();
        let before = std::sync::OnceLock::new();
        let note = |measuring: bool, done: f64| {
            if measuring {
                before.get_or_init(|| CpuTime::now(&members));
            }
            window.open.store(measuring, Ordering::Release);
            progress(done);
        };
        let outcome = self.drive(&cluster, &note).await;
        let cpu = before.get().copied().flatten().and_then(|from| CpuTime::now(&members)?.busy_since(from));
        window.open.store(false, Ordering::Release);
        window.ended.store(true, Ordering::Release);
        let busy = sampler.await.context("the sampler of utilisations failed")?;
        cluster.stop().await;
        let mut figures = outcome?;
        figures.policy = policy.to_string();
        figures.busy = busy?;
        figures.cpu_busy = cpu.map(|cpu| cpu.all);
        if let Some(busy) = figures.cpu_busy.filter(|busy| *busy > CPU_BUSY_MAX) {
            figures
                .warnings
                .push(format!("this machine was {:.0} % busy and may have set the limit", busy * 100.0));
        }
        Ok(figures)
    }

    async fn drive(&self, cluster: &Cluster, note: &(dyn Fn(bool, f64) + Sync)) -> anyhow::Result<Figures> {
        let nodes_expected = u32::try_from(self.machines.caches.len()).ok();
        match &self.drive {
            Drive::Log { plan, clients } => {
                let load = larder_load::Plan {
                    arrivals: Arrivals::Closed { clients: *clients },
                    warmup_requests: plan.warmup as u64,
                    timeout: REQUEST_TIMEOUT,
                    expected_sizes: Some(Arc::clone(&plan.sizes)),
                    nodes_expected,
                    ..larder_load::Plan::new(
                        cluster.address,
                        HOST,
                        Arc::clone(&plan.targets),
                        Arc::clone(&plan.order),
                    )
                };
                let total = plan.order.len().max(1) as f64;
                let report =
                    larder_load::run(load, &|at| note(at.measuring, at.finished as f64 / total)).await;
                Ok(Figures::of(&report.context("the load generator failed")?))
            }
            Drive::Users { script, clients, time_scale, keep, warmup, duration } => {
                let stage = Stage {
                    time_scale: *time_scale,
                    keep: *keep,
                    timeout: REQUEST_TIMEOUT,
                    // Where a program stands in for a document, the sizes are the program's.
                    check_sizes: !self.machines.programs.is_empty(),
                    nodes_expected,
                    ..Stage::new(cluster.address, HOST)
                };
                let plan = UserPlan {
                    script: script.clone(),
                    stage,
                    users: Users::Closed { clients: *clients },
                    warmup: *warmup,
                    duration: *duration,
                };
                let span = duration.as_secs_f64().max(1e-3);
                let progress = |at: UserProgress| {
                    note(at.measuring && at.elapsed < *duration, at.elapsed.as_secs_f64() / span);
                };
                let report = larder_load::users::run(plan, &progress).await;
                Ok(Figures::of_users(&report.context("the load generator failed")?))
            }
        }
    }
}

/// What the tables say by themselves.
fn known(warning: &Warning) -> bool {
    matches!(warning, Warning::Failures { .. })
}

impl Figures {
    /// A run that came to nothing.
    pub(crate) fn broken(policy: PolicyKind, why: &anyhow::Error) -> Self {
        Self { policy: policy.to_string(), broken: Some(format!("{why:#}")), ..Self::default() }
    }

    fn of(report: &Report) -> Self {
        Self {
            requests_per_s: report.requests_per_s_busy.unwrap_or(report.requests_per_s),
            hit_ratio: report.cache.hit_ratio,
            mean_ms: report.latency.mean_us / 1e3,
            p50_ms: report.latency.p50_us / 1e3,
            p99_ms: report.latency.p99_us / 1e3,
            imbalance: report.imbalance_requests.unwrap_or(1.0),
            errors: report.failed,
            seconds: report.measured_s,
            warnings: report
                .warnings
                .iter()
                .filter(|warning| !known(warning))
                .map(ToString::to_string)
                .collect(),
            ..Self::default()
        }
    }

    fn of_users(report: &UsersReport) -> Self {
        let of_requests = Self::of(&report.requests);
        let own = report.warnings.iter().map(ToString::to_string);
        Self {
            warnings: of_requests.warnings.iter().cloned().chain(own).collect(),
            requests_per_s: report.hits_per_s,
            connections_per_s: Some(report.connections_per_s),
            pages_per_s: Some(report.pages.per_s),
            page_p90_ms: Some(report.pages.latency.p90_us / 1e3),
            seconds: report.window_s,
            ..of_requests
        }
    }

    /// Least and greatest utilisation of a node over the measured part: the mean over its intervals.
    pub(crate) fn busy_range(&self) -> (f64, f64) {
        let whole = || self.busy.iter().map(|busy| busy.cpu.max(busy.disk));
        let greatest = whole().fold(0.0, f64::max);
        (whole().fold(greatest, f64::min), greatest)
    }
}
