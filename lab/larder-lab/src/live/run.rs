//! Runs a scenario under a policy on a new cluster and computes its figures.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use larder_core::PolicyKind;
use larder_load::users::UserPlan;
use larder_load::{Arrivals, Report, UserProgress, UserSettings, Users, UsersReport, Warning};
use serde::Serialize;

use super::cluster::Cluster;
use super::scenario::{LoadSource, Scenario};
use super::utilisation::{self, MeasurementWindow, Utilisation};
use larder::demo::cpu::CpuTime;

/// Maximum utilisation of this machine's cores. Above it, the machine may have limited the run.
const CPU_BUSY_MAX: f64 = 0.85;
/// Timeout of requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Period of sampling the nodes' utilisation.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The `Host` field of all requests.
const HOST: &str = "lab";

/// The figures of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// The policy.
    pub(crate) policy: String,
    /// Good replies per second.
    pub(crate) requests_per_s: f64,
    /// Connections opened per second; `None` for the replay of a log.
    pub(crate) connections_per_s: Option<f64>,
    /// Good pages per second; `None` for the replay of a log.
    pub(crate) pages_per_s: Option<f64>,
    /// Hit ratio of the caches, 0 to 1; `None` if no cache replied.
    pub(crate) hit_ratio: Option<f64>,
    /// Mean latency of requests.
    pub(crate) mean_ms: f64,
    /// Median latency.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the latency.
    pub(crate) p99_ms: f64,
    /// 90th percentile of the latency of pages, from the due time to the last object.
    pub(crate) page_p90_ms: Option<f64>,
    /// Requests of the busiest node divided by the mean of all nodes.
    pub(crate) imbalance: f64,
    /// Utilisation of the nodes.
    pub(crate) busy: Vec<Utilisation>,
    /// Failed requests.
    pub(crate) errors: u64,
    /// Length of the measured part, in seconds.
    pub(crate) seconds: f64,
    /// Utilisation of this machine's cores, 0 to 1.
    pub(crate) cpu_busy: Option<f64>,
    /// Reasons to doubt the figures.
    pub(crate) warnings: Vec<String>,
    /// Error of a run without figures.
    pub(crate) broken: Option<String>,
}

impl Scenario {
    /// Runs the scenario on a new cluster. `progress` is called with the completed share, 0 to 1.
    ///
    /// # Errors
    /// If the cluster does not start or the load generator fails.
    pub(crate) async fn run(
        &self,
        larder: &Path,
        policy: PolicyKind,
        progress: &(dyn Fn(f64) + Sync),
    ) -> anyhow::Result<Figures> {
        let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
        let cluster = Cluster::start(larder, &self.cluster(policy, folder.path())?, folder.path()).await?;
        let window = Arc::new(MeasurementWindow::default());
        let sampler =
            tokio::spawn(utilisation::sample(cluster.nodes.clone(), SAMPLE_INTERVAL, Arc::clone(&window)));
        let members = cluster.process_ids();
        let before = std::sync::OnceLock::new();
        let note = |measuring: bool, done: f64| {
            if measuring {
                before.get_or_init(|| CpuTime::now(&members));
            }
            window.open.store(measuring, Ordering::Release);
            progress(done);
        };
        let outcome = self.generate_load(&cluster, &note).await;
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

    /// Runs the load generator. `note` is called with whether the run is measured now, and the completed share.
    async fn generate_load(
        &self,
        cluster: &Cluster,
        note: &(dyn Fn(bool, f64) + Sync),
    ) -> anyhow::Result<Figures> {
        let nodes_expected = u32::try_from(self.machines.caches.len()).ok();
        match &self.load {
            LoadSource::Log { plan, clients } => {
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
                Ok(Figures::from_report(&report.context("the load generator failed")?))
            }
            LoadSource::Users { script, clients, time_scale, keep, warmup, duration } => {
                let settings = UserSettings {
                    time_scale: *time_scale,
                    keep: *keep,
                    timeout: REQUEST_TIMEOUT,
                    // Where a program stands in for a document, the sizes are the program's.
                    check_sizes: !self.machines.programs.is_empty(),
                    nodes_expected,
                    ..UserSettings::new(cluster.address, HOST)
                };
                let plan = UserPlan {
                    script: script.clone(),
                    settings,
                    users: Users::Closed { clients: *clients },
                    warmup: *warmup,
                    duration: *duration,
                };
                let span = duration.as_secs_f64().max(1e-3);
                let progress = |at: UserProgress| {
                    note(at.measuring && at.elapsed < *duration, at.elapsed.as_secs_f64() / span);
                };
                let report = larder_load::users::run(plan, &progress).await;
                Ok(Figures::from_users_report(&report.context("the load generator failed")?))
            }
        }
    }
}

/// Whether the tables show the warning's fact themselves.
fn is_in_tables(warning: &Warning) -> bool {
    matches!(warning, Warning::Failures { .. })
}

impl Figures {
    /// Figures of a failed run.
    pub(crate) fn failed(policy: PolicyKind, why: &anyhow::Error) -> Self {
        Self { policy: policy.to_string(), broken: Some(format!("{why:#}")), ..Self::default() }
    }

    fn from_report(report: &Report) -> Self {
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
                .filter(|warning| !is_in_tables(warning))
                .map(ToString::to_string)
                .collect(),
            ..Self::default()
        }
    }

    fn from_users_report(report: &UsersReport) -> Self {
        let of_requests = Self::from_report(&report.requests);
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

    /// Minimum and maximum over the nodes of the busier device's utilisation.
    pub(crate) fn busy_range(&self) -> (f64, f64) {
        let whole = || self.busy.iter().map(|busy| busy.cpu.max(busy.disk));
        let greatest = whole().fold(0.0, f64::max);
        (whole().fold(greatest, f64::min), greatest)
    }
}
