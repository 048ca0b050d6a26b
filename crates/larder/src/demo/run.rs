//! Runs the demo: every policy and every run, with a new cluster each time.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use larder_core::{Bytes, Settings};
use larder_load::{Arrivals, Progress, Report, StopHandle, Warning};

use super::cluster::{Cluster, ClusterSpec};
use super::cpu::CpuBusy;
use super::plan::Plan;
use super::policy_config;
use super::result::{ClusterInfo, DemoReport, Figures, NodeLoad, PolicyReport, SCHEMA};
use super::sample::{SamplerControl, idle, imbalance, sample};
use crate::report::number;

/// Utilization of all cores above which the machine may have been the bottleneck.
const CPU_BUSY_MAX: f64 = 0.85;
/// Least number of load samples.
const SAMPLES_MIN: usize = 50;
/// Largest K that the switch accepts.
const REPLICATION_DECAY_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Most points of the throughput curve.
const THROUGHPUT_POINTS: usize = 40;
/// Longest wait for a reply. In a slow demo a modelled disk may have a long queue.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// The `Host` of every request. It is part of the hashed target.
pub const HOST: &str = "demo";

/// Settings of the demo.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The executable of larder.
    pub larder: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// Memory of each node.
    pub cache_bytes: u64,
    /// Replacement policy of the nodes' memory.
    pub cache_kind: String,
    /// The policies, in the order of the report.
    pub policies: Vec<String>,
    /// Seed of the placement.
    pub seed: u64,
    /// Clients that each keep one request outstanding.
    pub clients: u32,
    /// T_low.
    pub t_low: u32,
    /// T_high.
    pub t_high: u32,
    /// Speed of the modelled store relative to 1998.
    pub speed: f64,
    /// Whether only disks are modelled, and no processors.
    pub disk_only: bool,
    /// Runs of each policy.
    pub runs: usize,
}

/// A demo that is ready to run.
pub struct Demo {
    setup: Setup,
    plan: Plan,
    bar: ProgressBar,
}

/// Result of one run.
#[derive(Clone, Debug)]
struct PolicyRun {
    figures: Figures,
    node_loads: Vec<NodeLoad>,
    latency_cdf: Vec<(f64, f64)>,
    throughput: Vec<(f64, f64)>,
    warnings: Vec<Warning>,
    samples: usize,
}

/// Returns a spinner on stderr for work of unknown length. It is hidden if stderr is not a terminal.
pub fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

impl Demo {
    /// Creates a demo that replays `plan`.
    pub fn new(setup: Setup, plan: Plan) -> Self {
        let total = plan.order.len() * setup.policies.len() * setup.runs;
        let style = ProgressStyle::with_template("{msg:32} [{bar:30}] {percent:>3} %  {per_sec}  {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total as u64).with_style(style.progress_chars("=> "));
        Self { setup, plan, bar }
    }

    /// Runs every policy. The policies take turns within each round.
    ///
    /// # Errors
    /// Returns an error if a cluster does not start, or the load generator fails.
    pub async fn run(&self) -> anyhow::Result<DemoReport> {
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
        let manifest = folder.path().join("manifest.tsv");
        self.plan.write_manifest(&manifest, &[])?;
        let spec = self.spec(manifest);
        let mut runs: Vec<Vec<PolicyRun>> = vec![Vec::new(); self.setup.policies.len()];
        for round in 0..self.setup.runs {
            for (policy, runs) in self.setup.policies.iter().zip(&mut runs) {
                let label = match self.setup.runs {
                    1 => policy.clone(),
                    many => format!("{policy} ({} of {many})", round + 1),
                };
                self.bar.set_message(label.clone());
                let cache = Bytes(self.setup.cache_bytes);
                let config =
                    policy_config::config(policy, &self.plan, self.setup.nodes, cache, folder.path())?;
                let spec = ClusterSpec { config, ..spec.clone() };
                let run =
                    self.run_one(&spec, policy).await.with_context(|| format!("while running {policy}"))?;
                self.print_summary(&label, &run);
                runs.push(run);
            }
        }
        self.bar.finish_and_clear();
        Ok(self.report(&runs))
    }

    async fn run_one(&self, spec: &ClusterSpec, policy: &str) -> anyhow::Result<PolicyRun> {
        let cluster = Cluster::start(spec, policy).await?;
        let control = Arc::new(SamplerControl::default());
        let sampler = tokio::spawn(sample(cluster.admin, cluster.process_ids(), Arc::clone(&control)));
        let base = self.bar.position();
        let note = |progress: Progress| self.update_progress(&progress, base, &control);
        let outcome = larder_load::run(self.load_plan(&cluster), &note).await;
        control.ended.store(true, Ordering::Release);
        let samples = sampler.await.context("the sampler of node loads failed")??;
        cluster.stop().await;
        let report = outcome.context("the load generator failed")?;
        self.bar.set_position(base + self.plan.order.len() as u64);
        let node_loads = samples.node_loads(self.idle_below());
        Ok(PolicyRun {
            figures: compute_figures(&report, &node_loads, samples.cpu_busy),
            latency_cdf: report.latency.curve.iter().map(|point| (point.us / 1e3, point.quantile)).collect(),
            throughput: throughput(&report),
            // The long tail is relevant here: a node that is busy when the others have finished was given too
            // much.
            warnings: report
                .warnings
                .into_iter()
                .filter(|w| !matches!(w, Warning::LongTail { .. }))
                .collect(),
            samples: samples.count(),
            node_loads,
        })
    }

    fn load_plan(&self, cluster: &Cluster) -> larder_load::Plan {
        let plan = &self.plan;
        larder_load::Plan {
            arrivals: Arrivals::Closed { clients: self.setup.clients },
            warmup_requests: plan.warmup as u64,
            timeout: REQUEST_TIMEOUT,
            expected_sizes: Some(Arc::clone(&plan.sizes)),
            nodes_expected: u32::try_from(self.setup.nodes).ok(),
            timeline_interval: Duration::from_millis(100),
            stop: StopHandle::default(),
            ..larder_load::Plan::new(
                cluster.address,
                HOST,
                Arc::clone(&plan.targets),
                Arc::clone(&plan.order),
            )
        }
    }

    /// Updates the progress bar and the sampler. Loads are sampled while every client has requests. Later the
    /// load falls under any policy.
    fn update_progress(&self, progress: &Progress, base: u64, control: &SamplerControl) {
        let left = progress.total.map_or(u64::MAX, |total| total.saturating_sub(progress.finished));
        let measuring = progress.measuring && left > u64::from(self.setup.clients);
        control.measuring.store(measuring, Ordering::Release);
        self.bar.set_position(base + progress.finished);
    }

    fn idle_below(&self) -> u32 {
        (self.setup.t_low * 2).div_ceil(5)
    }

    /// Prints one line for each run above the progress bar, or alone if stderr is not a terminal.
    fn print_summary(&self, label: &str, run: &PolicyRun) {
        let figures = &run.figures;
        let line = format!(
            "{label}: {} requests/s, {:.1} % hits, {:.1} s",
            number(figures.requests_per_s.round()),
            figures.hit_ratio * 100.0,
            figures.seconds
        );
        self.bar.suspend(|| {
            // Messages to a closed stderr are dropped.
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }

    fn spec(&self, manifest: PathBuf) -> ClusterSpec {
        let setup = &self.setup;
        ClusterSpec {
            larder: setup.larder.clone(),
            nodes: setup.nodes,
            cache_bytes: setup.cache_bytes,
            cache_kind: setup.cache_kind.clone(),
            manifest,
            speed: setup.speed,
            disk_only: setup.disk_only,
            seed: setup.seed,
            t_low: setup.t_low,
            t_high: setup.t_high,
            replication_decay: self.replication_decay(),
            config: None,
        }
    }

    /// Returns the paper's K, divided by the speed of the modelled nodes.
    fn replication_decay(&self) -> Duration {
        let k = Settings::default().replication_decay.as_secs_f64() / self.setup.speed;
        Duration::try_from_secs_f64(k).unwrap_or(Duration::MAX).min(REPLICATION_DECAY_MAX)
    }

    fn report(&self, runs: &[Vec<PolicyRun>]) -> DemoReport {
        let setup = &self.setup;
        let medians: Vec<&PolicyRun> = runs.iter().map(|runs| median(runs)).collect();
        let speed = |run: &PolicyRun| run.figures.requests_per_s;
        let wrr = setup.policies.iter().position(|policy| policy == "wrr").map(|i| speed(medians[i]));
        let each = setup.policies.iter().zip(runs).zip(&medians);
        let policies = each.map(|((policy, runs), median)| PolicyReport {
            policy: policy.clone(),
            median: median.figures,
            ratio_to_wrr: wrr.filter(|wrr| *wrr > 0.0).map(|wrr| speed(median) / wrr),
            runs: runs.iter().map(|run| run.figures).collect(),
            node_loads: median.node_loads.clone(),
            latency_cdf: median.latency_cdf.clone(),
            throughput: median.throughput.clone(),
        });
        DemoReport {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            trace: self.plan.info.clone(),
            cluster: ClusterInfo {
                nodes: setup.nodes,
                cache_bytes: setup.cache_bytes,
                cache_kind: setup.cache_kind.clone(),
                node_model: node_model(setup),
                speed: setup.speed,
                clients: setup.clients,
                t_low: setup.t_low,
                t_high: setup.t_high,
                replication_decay_s: self.replication_decay().as_secs_f64(),
                hash_function: "XXH3-64",
                seed: setup.seed,
                runs: setup.runs,
                idle_below: self.idle_below(),
            },
            policies: policies.collect(),
            warnings: self.warnings(&medians),
        }
    }

    fn warnings(&self, medians: &[&PolicyRun]) -> Vec<String> {
        let mut warnings = Vec::new();
        for (policy, run) in self.setup.policies.iter().zip(medians) {
            let Figures { cpu_busy, cpu_own, .. } = run.figures;
            if let Some(busy) = cpu_busy.filter(|busy| *busy > CPU_BUSY_MAX) {
                warnings.push(format!(
                    "{policy}: the processors were {:.0} % busy ({:.0} % with the demo), so this machine may limit the result and not the policy; use a lower \
             --speed",
                    busy * 100.0,
                    cpu_own.unwrap_or(0.0) * 100.0
                ));
            }
            if run.samples < SAMPLES_MIN {
                warnings.push(format!(
                    "{policy}: imbalance and idle time are based on only {} samples of the nodes' loads",
                    run.samples
                ));
            }
            warnings.extend(run.warnings.iter().map(|warning| format!("{policy}: {warning}")));
        }
        warnings
    }
}

fn compute_figures(report: &Report, node_loads: &[NodeLoad], cpu: Option<CpuBusy>) -> Figures {
    Figures {
        requests_per_s: report.requests_per_s,
        requests_per_s_busy: report.requests_per_s_busy,
        hit_ratio: report.cache.hit_ratio.unwrap_or(0.0),
        latency_ms_p50: report.latency.p50_us / 1e3,
        latency_ms_p99: report.latency.p99_us / 1e3,
        load_imbalance: imbalance(node_loads),
        idle_fraction: idle(node_loads),
        errors: report.failed,
        seconds: report.measured_s,
        cpu_busy: cpu.map(|cpu| cpu.all),
        cpu_own: cpu.map(|cpu| cpu.own),
    }
}

fn node_model(setup: &Setup) -> String {
    let processor = if setup.disk_only {
        "; no processor is modelled, so all nodes share this machine's"
    } else {
        " and its processor (290 us for a reply and 40 us for each 512 bytes of it, one at a time)"
    };
    format!(
        "the disk of the LARD paper (28 ms to the first block, 410 us for each 4 KB, 14 ms for each 44 KB beyond the \
         first, one read at a time){processor}, {} times as fast as in 1998",
        setup.speed
    )
}

/// Returns the run with the median throughput. For an even number, returns the slower of the two middle runs.
fn median(runs: &[PolicyRun]) -> &PolicyRun {
    let mut order: Vec<&PolicyRun> = runs.iter().collect();
    order.sort_by(|a, b| a.figures.requests_per_s.total_cmp(&b.figures.requests_per_s));
    order[(order.len() - 1) / 2]
}

/// Returns the throughput of the measured part until the first client has no more requests.
fn throughput(report: &Report) -> Vec<(f64, f64)> {
    let timeline = &report.timeline;
    let width = timeline.interval_s;
    let from = timeline.measured_from_s.unwrap_or(0.0);
    let until = timeline.dry_from_s.unwrap_or(f64::INFINITY);
    let rows = timeline.rows.iter().enumerate().map(|(i, row)| (i as f64 * width, row.ok));
    let rows: Vec<(f64, u64)> = rows.filter(|(start, _)| *start >= from && start + width <= until).collect();
    let joined = rows.len().div_ceil(THROUGHPUT_POINTS).max(1);
    let points = rows.chunks_exact(joined).map(|rows| {
        let length = width * rows.len() as f64;
        let count: u64 = rows.iter().map(|row| row.1).sum();
        (rows[0].0 - from + length / 2.0, count as f64 / length)
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(requests_per_s: f64) -> PolicyRun {
        let figures = Figures { requests_per_s, ..super::super::result::tests::sample().policies[0].median };
        PolicyRun {
            figures,
            node_loads: vec![],
            latency_cdf: vec![],
            throughput: vec![],
            warnings: vec![],
            samples: 0,
        }
    }

    #[test]
    fn the_median_run_is_reported() {
        let of = |speeds: &[f64]| {
            let runs: Vec<PolicyRun> = speeds.iter().map(|speed| run(*speed)).collect();
            median(&runs).figures.requests_per_s
        };
        assert_eq!((of(&[5.0]), of(&[9.0, 1.0, 4.0]), of(&[4.0, 2.0])), (5.0, 4.0, 2.0));
    }
}
