//! Runs the demo: every policy, every run, one cluster after another.

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
use super::result::{ClusterInfo, DemoReport, Figures, NodeLoad, PolicyReport, SCHEMA};
use super::sample::{Signals, idle, imbalance, sample};
use super::signals;
use crate::report::number;

/// Share of all cores above which a run may have measured the machine.
const CPU_BUSY_MAX: f64 = 0.85;
/// Fewer samples of the loads say little.
const SAMPLES_MIN: usize = 50;
/// Longest time the switch takes for its K.
const REPLICATION_DECAY_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Most points of the throughput curve.
const THROUGHPUT_POINTS: usize = 40;
/// Longest wait for a reply. A modelled disk may have a long queue in a slow demo.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// The `Host` of every request; part of the target that is hashed.
pub const HOST: &str = "demo";

/// What the demo is to do.
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
    /// Seed of placement.
    pub seed: u64,
    /// Clients that each keep one request outstanding.
    pub clients: u32,
    /// T_low.
    pub t_low: u32,
    /// T_high.
    pub t_high: u32,
    /// How many times faster than in 1998 the modelled store is.
    pub speed: f64,
    /// Whether only disks are modelled, and no processors.
    pub disk_only: bool,
    /// Runs of each policy.
    pub runs: usize,
}

/// A demo ready to run.
pub struct Demo {
    setup: Setup,
    plan: Plan,
    bar: ProgressBar,
}

/// One run's outcome.
#[derive(Clone, Debug)]
struct Run {
    figures: Figures,
    node_loads: Vec<NodeLoad>,
    latency_cdf: Vec<(f64, f64)>,
    throughput: Vec<(f64, f64)>,
    warnings: Vec<Warning>,
    samples: usize,
}

/// A spinner on stderr for work of unknown length; invisible where stderr is no terminal.
pub fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

impl Demo {
    /// A demo of the requests of `plan`.
    pub fn new(setup: Setup, plan: Plan) -> Self {
        let total = plan.order.len() * setup.policies.len() * setup.runs;
        let style = ProgressStyle::with_template("{msg:32} [{bar:30}] {percent:>3} %  {per_sec}  {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total as u64).with_style(style.progress_chars("=> "));
        Self { setup, plan, bar }
    }

    /// Runs every policy as often as asked, the policies in turn within each round.
    ///
    /// # Errors
    /// A cluster does not come up, or the load generator cannot run.
    pub async fn run(&self) -> anyhow::Result<DemoReport> {
        let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
        let manifest = folder.path().join("manifest.tsv");
        self.plan.write_manifest(&manifest, &[])?;
        let spec = self.spec(manifest);
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); self.setup.policies.len()];
        for round in 0..self.setup.runs {
            for (policy, runs) in self.setup.policies.iter().zip(&mut runs) {
                let label = match self.setup.runs {
                    1 => policy.clone(),
                    many => format!("{policy} ({} of {many})", round + 1),
                };
                self.bar.set_message(label.clone());
                let cache = Bytes(self.setup.cache_bytes);
                let config = signals::config(policy, &self.plan, self.setup.nodes, cache, folder.path())?;
                let spec = ClusterSpec { config, ..spec.clone() };
                let run = self.one(&spec, policy).await.with_context(|| format!("while running {policy}"))?;
                self.say_done(&label, &run);
                runs.push(run);
            }
        }
        self.bar.finish_and_clear();
        Ok(self.report(&runs))
    }

    async fn one(&self, spec: &ClusterSpec, policy: &str) -> anyhow::Result<Run> {
        let cluster = Cluster::start(spec, policy).await?;
        let signals = Arc::new(Signals::default());
        let sampler = tokio::spawn(sample(cluster.admin, cluster.process_ids(), Arc::clone(&signals)));
        let base = self.bar.position();
        let note = |progress: Progress| self.note(&progress, base, &signals);
        let outcome = larder_load::run(self.load_plan(&cluster), &note).await;
        signals.ended.store(true, Ordering::Release);
        let samples = sampler.await.context("the sampler of node loads failed")??;
        cluster.stop().await;
        let report = outcome.context("the load generator failed")?;
        self.bar.set_position(base + self.plan.order.len() as u64);
        let node_loads = samples.node_loads(self.idle_below());
        Ok(Run {
            figures: figures(&report, &node_loads, samples.cpu_busy),
            latency_cdf: report.latency.curve.iter().map(|point| (point.us / 1e3, point.quantile)).collect(),
            throughput: throughput(&report),
            // The tail counts: a node that is still busy when the others have finished has been given too much.
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

    /// Loads are sampled while every client has work: at the end, when clients find no more requests, the load sinks
    /// whatever the policy does.
    fn note(&self, progress: &Progress, base: u64, signals: &Signals) {
        let left = progress.total.map_or(u64::MAX, |total| total.saturating_sub(progress.finished));
        let measuring = progress.measuring && left > u64::from(self.setup.clients);
        signals.measuring.store(measuring, Ordering::Release);
        self.bar.set_position(base + progress.finished);
    }

    fn idle_below(&self) -> u32 {
        (self.setup.t_low * 2).div_ceil(5)
    }

    /// One line for each run, above the progress bar or, where stderr is no terminal, instead of it.
    fn say_done(&self, label: &str, run: &Run) {
        let figures = &run.figures;
        let line = format!(
            "{label}: {} requests/s, {:.1} % hits, {:.1} s",
            number(figures.requests_per_s.round()),
            figures.hit_ratio * 100.0,
            figures.seconds
        );
        self.bar.suspend(|| {
            // Talk that nobody can hear is no failure.
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

    /// The paper's K, on a clock that runs as much faster as the modelled nodes do.
    fn replication_decay(&self) -> Duration {
        let k = Settings::default().replication_decay.as_secs_f64() / self.setup.speed;
        Duration::try_from_secs_f64(k).unwrap_or(Duration::MAX).min(REPLICATION_DECAY_MAX)
    }

    fn report(&self, runs: &[Vec<Run>]) -> DemoReport {
        let setup = &self.setup;
        let medians: Vec<&Run> = runs.iter().map(|runs| median(runs)).collect();
        let speed = |run: &Run| run.figures.requests_per_s;
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

    fn warnings(&self, medians: &[&Run]) -> Vec<String> {
        let mut warnings = Vec::new();
        for (policy, run) in self.setup.policies.iter().zip(medians) {
            let Figures { cpu_busy, cpu_own, .. } = run.figures;
            if let Some(busy) = cpu_busy.filter(|busy| *busy > CPU_BUSY_MAX) {
                warnings.push(format!(
                    "{policy}: the processors were {:.0} % busy ({:.0} % with the demo), so this machine may have set \
                     the limit and not the policy; use a smaller --speed",
                    busy * 100.0,
                    cpu_own.unwrap_or(0.0) * 100.0
                ));
            }
            if run.samples < SAMPLES_MIN {
                warnings.push(format!(
                    "{policy}: imbalance and idle time rest on {} samples of the nodes' loads only",
                    run.samples
                ));
            }
            warnings.extend(run.warnings.iter().map(|warning| format!("{policy}: {warning}")));
        }
        warnings
    }
}

fn figures(report: &Report, node_loads: &[NodeLoad], cpu: Option<CpuBusy>) -> Figures {
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

/// The run with the median throughput; of an even number the slower of the two in the middle.
fn median(runs: &[Run]) -> &Run {
    let mut order: Vec<&Run> = runs.iter().collect();
    order.sort_by(|a, b| a.figures.requests_per_s.total_cmp(&b.figures.requests_per_s));
    order[(order.len() - 1) / 2]
}

/// Throughput of the measured part, up to the moment the first client ran out of requests.
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

    fn run(requests_per_s: f64) -> Run {
        let figures = Figures { requests_per_s, ..super::super::result::tests::sample().policies[0].median };
        Run {
            figures,
            node_loads: vec![],
            latency_cdf: vec![],
            throughput: vec![],
            warnings: vec![],
            samples: 0,
        }
    }

    #[test]
    fn the_median_run_counts() {
        let of = |speeds: &[f64]| {
            let runs: Vec<Run> = speeds.iter().map(|speed| run(*speed)).collect();
            median(&runs).figures.requests_per_s
        };
        assert_eq!((of(&[5.0]), of(&[9.0, 1.0, 4.0]), of(&[4.0, 2.0])), (5.0, 4.0, 2.0));
    }
}
