//! Runs the demo: every setting and every system, with a new cluster each time.

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use larder_core::peers::SharingSettings;
use larder_core::{Bytes, Settings};
use larder_load::{Progress, Warning};
use larder_trace::Stats;

use super::bench::{LoadSpec, RunResult, run_load};
use super::cluster::{PeersCluster, PeersClusterSpec, PeersSpec, SwitchSpec, TablesSpec};
use super::notes;
use super::predict::{ModelInput, predict};
use super::rates;
use super::result::{
    PeerFigures, PeersClusterInfo, PeersFigures, PeersReport, Prediction, Rates, SCHEMA, Sweep, SweepPoint,
    SystemReport, WholeRun,
};
use super::system::System;
use crate::demo::plan::Plan;
use crate::demo::policy_config;
use crate::report::number;

/// Utilization by other processes above which a run is doubtful, as a share of all cores.
const OTHERS_BUSY_MAX: f64 = 0.1;
/// Utilization of the load generator's thread above which it was the bottleneck.
const CLIENT_RUNNING_MAX: f64 = 0.8;
/// Memories of the sweep, as shares of the working set. The last point has the whole working set.
const MEMORY_SHARES: [f64; 5] = [0.03, 0.06, 0.12, 0.25, 0.5];
/// Memory that holds all targets with the minimum charge of each object, as a share of the working set.
const WHOLE_SHARE: f64 = 1.1;
/// Load steps of the sweep, from section 4.2 of the paper.
const LOAD_STEPS: [u32; 5] = [1, 2, 4, 8, 16];
/// The paper's T.
const OVERLOAD: u32 = 80;
/// Evaluations of the hit ratio that fit into the warm-up.
const EVALUATIONS: usize = 10;
/// Largest K that the switch accepts.
const REPLICATION_DECAY_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Smallest memory of a node, bytes.
const MEMORY_MIN: u64 = 64 << 10;

/// Memory of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MemorySize {
    /// A share of the trace's working set, above 0.
    Share(f64),
    /// A size.
    Size(Bytes),
}

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a memory size: write a size such as 16MB, or a share of the working set such as 12%"
            )
        };
        match text.strip_suffix('%') {
            Some(number) => {
                let percent: f64 = number.trim().parse().map_err(|_| wrong())?;
                (percent > 0.0 && percent <= 1_000.0)
                    .then_some(Self::Share(percent / 100.0))
                    .ok_or_else(wrong)
            }
            None => text.parse().map(Self::Size).map_err(|_| wrong()),
        }
    }
}

impl MemorySize {
    fn bytes(self, working_set: u64) -> Bytes {
        match self {
            Self::Share(share) => Bytes(((working_set as f64 * share) as u64).max(MEMORY_MIN)),
            Self::Size(size) => Bytes(size.get().max(MEMORY_MIN)),
        }
    }
}

/// Settings of the demo.
#[derive(Clone, Debug)]
pub(crate) struct PeersSetup {
    pub(crate) nodes: usize,
    pub(crate) systems: Vec<System>,
    pub(crate) memory: MemorySize,
    pub(crate) sweep: Option<Sweep>,
    pub(crate) load_step: u32,
    pub(crate) large_min: Bytes,
    pub(crate) cache_kind: String,
    pub(crate) clients: u32,
    pub(crate) seconds: Option<u64>,
    /// Whether the whole trace warms the memories, and is then repeated.
    pub(crate) warm: bool,
    pub(crate) seed: u64,
    pub(crate) t_low: u32,
    pub(crate) t_high: u32,
    pub(crate) speed: f64,
    pub(crate) runs: usize,
    /// Whether to measure the cost of requests and to predict with the model.
    pub(crate) model: bool,
}

/// Parameters that differ between points.
#[derive(Clone, Copy, Debug)]
struct PointSetting {
    memory: Bytes,
    load_step: u32,
}

/// Result of one run.
#[derive(Clone, Debug)]
struct SystemRun {
    figures: PeersFigures,
    latency_cdf: Vec<(f64, f64)>,
    warnings: Vec<Warning>,
}

/// A demo that is ready to run.
pub(crate) struct PeersDemo {
    pub(super) setup: PeersSetup,
    pub(super) plan: Plan,
    bar: ProgressBar,
}

impl PeersDemo {
    pub(crate) fn new(setup: PeersSetup, plan: Plan) -> Self {
        let style = ProgressStyle::with_template("{msg:40} [{bar:30}] {percent:>3} %  {per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(plan.order.len() as u64).with_style(style.progress_chars("=> "));
        Self { setup, plan, bar }
    }

    /// Measures the cost of a request, and then runs every system under every setting.
    pub(crate) async fn run(&self) -> anyhow::Result<PeersReport> {
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
        let manifest = folder.path().join("manifest.tsv");
        self.plan.write_manifest(&manifest, &[])?;
        let mut warnings = Vec::new();
        let rates = self.measure_rates(&manifest, folder.path(), &mut warnings).await?;
        let alpha = Stats::of_trace(&self.plan.trace(usize::MAX)).zipf.map(|zipf| zipf.exponent);
        let mut points = Vec::new();
        for setting in self.settings() {
            let spec = self.spec(&manifest, setting);
            let runs = self.run_all(&spec, setting, rates.as_ref(), folder.path()).await?;
            let mut point = self.point(setting, &runs, &mut warnings);
            if let (Some(rates), Some(alpha)) = (&rates, alpha) {
                point.model = self.predict(rates, alpha, &point, &mut warnings);
            }
            points.push(point);
        }
        self.bar.finish_and_clear();
        let mut report = PeersReport {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            trace: self.plan.info.clone(),
            cluster: self.info(),
            rates,
            sweep: self.setup.sweep,
            points,
            notes: Vec::new(),
            warnings,
        };
        report.notes = notes::write_notes(&report);
        Ok(report)
    }

    /// Measures the cost of requests. A failure is only a warning, because the demo works without the model.
    async fn measure_rates(
        &self,
        manifest: &Path,
        folder: &Path,
        warnings: &mut Vec<String>,
    ) -> anyhow::Result<Option<Rates>> {
        if !self.setup.model {
            return Ok(None);
        }
        self.bar.set_message("the cost of a request");
        let spec =
            self.spec(manifest, PointSetting { memory: Bytes::mib(1), load_step: self.setup.load_step });
        match rates::measure(&spec, &self.plan, folder).await {
            Ok(rates) => {
                self.print_line(&format!(
                    "a request costs {} us at a node and {} us at the clients; forwarding costs the nodes {} us more",
                    number(rates.local_us),
                    number(rates.client_us),
                    number(rates.forward_us)
                ));
                Ok(Some(rates))
            }
            Err(error) => {
                warnings.push(format!(
                    "the model is left out, because the cost of a request is unknown: {error:#}"
                ));
                Ok(None)
            }
        }
    }

    /// Runs all systems under one setting. The systems take turns within each round.
    async fn run_all(
        &self,
        spec: &PeersClusterSpec,
        setting: PointSetting,
        rates: Option<&Rates>,
        folder: &Path,
    ) -> anyhow::Result<Vec<Vec<SystemRun>>> {
        let mut runs: Vec<Vec<SystemRun>> = vec![Vec::new(); self.setup.systems.len()];
        for round in 0..self.setup.runs {
            for (system, runs) in self.setup.systems.iter().zip(&mut runs) {
                let mut label = system.to_string();
                match self.setup.sweep {
                    Some(Sweep::Memory) => label += &format!(", {}", setting.memory),
                    Some(Sweep::LoadStep) => label += &format!(", step {}", setting.load_step),
                    None => {}
                }
                if self.setup.runs > 1 {
                    label += &format!(" ({} of {})", round + 1, self.setup.runs);
                }
                self.bar.set_message(label.clone());
                let run = self.run_one(*system, spec, rates, folder).await;
                let run = run.with_context(|| format!("while running {label}"))?;
                self.print_line(&summary_line(&label, &run.figures));
                runs.push(run);
            }
        }
        Ok(runs)
    }

    async fn run_one(
        &self,
        system: System,
        spec: &PeersClusterSpec,
        rates: Option<&Rates>,
        folder: &Path,
    ) -> anyhow::Result<SystemRun> {
        let mut spec = spec.clone();
        if self.setup.warm && system.starts_alone() {
            self.preload(system, &mut spec, folder)?;
        }
        match system {
            System::Trad => {}
            System::Peers(how) => self.prepare_tables(how, &mut spec, rates, folder)?,
            System::Switch(policy) => {
                spec.switch.config =
                    policy_config::config(policy.name(), &self.plan, spec.nodes, spec.memory, folder)?;
            }
        }
        let cluster = PeersCluster::start(system, &spec, folder).await?;
        let load = LoadSpec {
            targets: self.plan.targets.clone(),
            sizes: self.plan.sizes.clone(),
            order: self.plan.order.clone(),
            warmup: self.plan.warmup,
            repeat: self.setup.warm,
            clients: self.setup.clients,
            measured: self.setup.seconds.map(Duration::from_secs),
        };
        self.bar.reset();
        let note = |at: &Progress| self.bar.set_position(at.finished);
        let result = run_load(&cluster, &load, &note).await?;
        cluster.stop().await;
        let warnings =
            result.report.warnings.iter().filter(|warning| is_relevant(warning)).cloned().collect();
        Ok(SystemRun {
            latency_cdf: result.report.latency.curve.iter().map(|at| (at.us / 1e3, at.quantile)).collect(),
            figures: compute_figures(&result, self.setup.nodes),
            warnings,
        })
    }

    /// Preloads the memories of nodes that work independently, because reading all targets would take
    /// minutes. The memories of nodes that would cooperate start empty. They fill them together, and no
    /// object is cached twice.
    fn preload(&self, system: System, spec: &mut PeersClusterSpec, folder: &Path) -> anyhow::Result<()> {
        let kind = spec.cache_kind.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        let object_max = Bytes(spec.large_min.get().saturating_sub(1));
        let judged = (spec.nodes, self.window() as usize);
        if system != System::Trad
            && self.plan.peak_miss_share(kind, spec.memory, object_max, judged) > cooperation_threshold()
        {
            return Ok(());
        }
        spec.manifest = folder.join(format!("warm-{}.tsv", spec.memory.get()));
        spec.preload = true;
        self.plan.write_manifest(&spec.manifest, &self.plan.final_contents(kind, spec.memory, object_max))
    }

    fn settings(&self) -> Vec<PointSetting> {
        let setup = &self.setup;
        let working_set = self.plan.info.working_set_bytes;
        let memory = setup.memory.bytes(working_set);
        match setup.sweep {
            None => vec![PointSetting { memory, load_step: setup.load_step }],
            Some(Sweep::LoadStep) => LOAD_STEPS.map(|load_step| PointSetting { memory, load_step }).to_vec(),
            Some(Sweep::Memory) => {
                let shares = MEMORY_SHARES.into_iter().chain([WHOLE_SHARE]);
                let memory = |share| MemorySize::Share(share).bytes(working_set);
                shares
                    .map(|share| PointSetting { memory: memory(share), load_step: setup.load_step })
                    .collect()
            }
        }
    }

    fn spec(&self, manifest: &Path, setting: PointSetting) -> PeersClusterSpec {
        let setup = &self.setup;
        PeersClusterSpec {
            nodes: setup.nodes,
            memory: setting.memory,
            cache_kind: setup.cache_kind.clone(),
            large_min: setup.large_min,
            manifest: PathBuf::from(manifest),
            preload: false,
            disk_speed: setup.speed,
            peers: PeersSpec {
                overload: OVERLOAD,
                load_step: setting.load_step,
                window: Some(self.window()),
                table: None,
                tables: TablesSpec::default(),
            },
            switch: SwitchSpec {
                t_low: setup.t_low,
                t_high: setup.t_high,
                seed: setup.seed,
                replication_decay: self.replication_decay(),
                config: None,
            },
        }
    }

    /// Returns the number of requests between two evaluations. With cold memories it is at least 20 and lets
    /// nodes evaluate several times during the warm-up. Otherwise it is the default.
    fn window(&self) -> u32 {
        const DEFAULT: u32 = 1_000;
        if self.setup.warm {
            return DEFAULT;
        }
        let each = self.plan.warmup / self.setup.nodes.max(1) / EVALUATIONS;
        u32::try_from(each).unwrap_or(u32::MAX).clamp(20, DEFAULT)
    }

    /// Returns LARD's K, divided by the speed of the modelled disks.
    fn replication_decay(&self) -> Duration {
        let k = Settings::default().replication_decay.as_secs_f64() / self.setup.speed;
        Duration::try_from_secs_f64(k).unwrap_or(Duration::MAX).min(REPLICATION_DECAY_MAX)
    }

    fn point(
        &self,
        setting: PointSetting,
        runs: &[Vec<SystemRun>],
        warnings: &mut Vec<String>,
    ) -> SweepPoint {
        let medians: Vec<&SystemRun> = runs.iter().map(|runs| median(runs)).collect();
        let each = self.setup.systems.iter().zip(&medians);
        let trad = each.clone().find(|(system, _)| **system == System::Trad);
        let trad = trad.map(|(_, run)| run.figures.requests_per_s).filter(|speed| *speed > 0.0);
        for (system, run) in each.clone() {
            warn(*system, run, warnings);
        }
        let systems = each.zip(runs).map(|((system, median), runs)| SystemReport {
            system: system.to_string(),
            about: system.describe(),
            over_trad: trad.map(|trad| median.figures.requests_per_s / trad),
            median: median.figures.clone(),
            runs: runs.iter().map(|run| run.figures.clone()).collect(),
            latency_cdf: median.latency_cdf.clone(),
        });
        SweepPoint {
            memory_bytes: setting.memory.get(),
            memory_share: setting.memory.get() as f64 / self.plan.info.working_set_bytes.max(1) as f64,
            load_step: setting.load_step,
            systems: systems.collect(),
            model: None,
        }
    }

    fn predict(
        &self,
        rates: &Rates,
        alpha: f64,
        point: &SweepPoint,
        warnings: &mut Vec<String>,
    ) -> Option<Prediction> {
        let (trad, press) = (point.system("trad")?, point.system("press")?);
        let input = ModelInput {
            rates,
            nodes: self.setup.nodes,
            cores: cores() as f64,
            memory: Bytes(point.memory_bytes),
            alpha,
            reply_bytes_mean: self.plan.info.reply_bytes_mean,
            trad: &trad.median,
            press: &press.median,
        };
        predict(&input)
            .map_err(|why| {
                warnings
                    .push(format!("{} of memory: the model is left out: {why}", Bytes(point.memory_bytes)));
            })
            .ok()
    }

    fn info(&self) -> PeersClusterInfo {
        let setup = &self.setup;
        PeersClusterInfo {
            nodes: setup.nodes,
            cache_kind: setup.cache_kind.clone(),
            large_min_bytes: setup.large_min.get(),
            node_model: format!(
                "the disk of the LARD paper (28 ms to the first block, 410 us for each 4 KB, 14 ms for each 44 KB beyond \
                 the first, one read at a time), {} times as fast as in 1998",
                setup.speed
            ),
            speed: setup.speed,
            clients: setup.clients,
            overload: OVERLOAD,
            window: self.window(),
            cores: cores(),
            seconds: setup.seconds,
            warm: setup.warm,
            seed: setup.seed,
            runs: setup.runs,
        }
    }

    /// Prints a line above the progress bar, or alone if stderr is not a terminal.
    pub(super) fn print_line(&self, line: &str) {
        self.bar.suspend(|| {
            // Messages to a closed stderr are dropped.
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }
}

fn summary_line(label: &str, figures: &PeersFigures) -> String {
    format!(
        "{label}: {} requests/s, {:.1} % from memory, {:.1} % forwarded, {:.1} s",
        number(figures.requests_per_s.round()),
        figures.hit_ratio * 100.0,
        figures.forwarded * 100.0,
        figures.seconds
    )
}

/// Returns the share of misses above which nodes of PRESS cooperate.
fn cooperation_threshold() -> f64 {
    f64::from(SharingSettings::default().on_permille) / 1e3
}

/// Returns the number of processors that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Whether a warning of the load generator matters here. Throughput is measured while every client has
/// requests, a run may end before the trace, and clients share processors with all nodes.
fn is_relevant(warning: &Warning) -> bool {
    match warning {
        Warning::LongTail { .. } | Warning::Interrupted => false,
        Warning::SaturatedClient { running, .. } => *running > CLIENT_RUNNING_MAX,
        _ => true,
    }
}

fn warn(system: System, run: &SystemRun, warnings: &mut Vec<String>) {
    let PeersFigures { cpu_busy, cpu_own, .. } = run.figures;
    if let Some((busy, own)) = cpu_busy.zip(cpu_own)
        && busy - own > OTHERS_BUSY_MAX
    {
        warnings.push(format!(
            "{system}: other processes used {:.0} % of the processors during the run",
            (busy - own) * 100.0
        ));
    }
    warnings.extend(run.warnings.iter().map(|warning| format!("{system}: {warning}")));
}

fn compute_figures(result: &RunResult, nodes: usize) -> PeersFigures {
    let (report, cache) = (&result.report, &result.report.cache);
    let (activity, served) = (result.measured.activity.as_ref(), result.measured.served.max(1) as f64);
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let each_us = |time: Duration| time.as_secs_f64() * 1e6 / served;
    let (named, reads) = (cache.hits + cache.misses, result.measured.disk_reads);
    let (local, local_hits) = (named - cache.passed_on, cache.hits.saturating_sub(cache.passed_on_hits));
    let busy_s = result.measured.disk_busy.as_secs_f64();
    PeersFigures {
        requests_per_s: report.requests_per_s_busy.unwrap_or(report.requests_per_s),
        requests: report.ok,
        hits: cache.hits,
        misses: cache.misses,
        local,
        local_hits,
        errors: report.failed,
        hit_ratio_local: share(local_hits, local),
        hit_ratio: share(cache.hits, named),
        forwarded: share(cache.passed_on, named),
        peers: activity.map(|activity| PeerFigures {
            load_broadcasts: activity.loads as f64 / served,
            cache_broadcasts: activity.changes as f64 / served,
            messages: activity.messages as f64 / served,
            message_bytes: activity.message_bytes as f64 / served,
            decisions: activity
                .decisions
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(why, count)| (why.clone(), share(*count, activity.decision_count())))
                .collect(),
            sharing: activity.sharing,
            tables: activity.tables,
        }),
        disk_reads: reads as f64 / served,
        read_ms: (reads > 0).then(|| busy_s * 1e3 / reads as f64),
        disk_busy: (busy_s / nodes as f64 / report.measured_s.max(1e-9)).min(1.0),
        latency_ms_p50: report.latency.p50_us / 1e3,
        latency_ms_p99: report.latency.p99_us / 1e3,
        imbalance: report.imbalance_requests.unwrap_or(1.0),
        cpu_us_nodes: each_us(result.measured.cpu.nodes),
        cpu_us_switch: each_us(result.measured.cpu.switch),
        cpu_us_clients: report.generator.cpu_us_per_request,
        cpu_busy: result.measured.busy.map(|busy| busy.0),
        cpu_own: result.measured.busy.map(|busy| busy.1),
        seconds: report.measured_s,
        whole: whole_run(result),
    }
}

fn whole_run(result: &RunResult) -> WholeRun {
    let activity = result.whole.activity.clone().unwrap_or_default();
    WholeRun {
        sent: result.report.finished,
        served: result.whole.served,
        decided: activity.decision_count(),
        forwarded: activity.forwarded,
        taken: activity.taken,
        loads_told: activity.loads,
        changes_told: activity.changes,
    }
}

/// Returns the run with the median throughput. For an even number, returns the slower of the two middle runs.
fn median(runs: &[SystemRun]) -> &SystemRun {
    let mut order: Vec<&SystemRun> = runs.iter().collect();
    order.sort_by(|a, b| a.figures.requests_per_s.total_cmp(&b.figures.requests_per_s));
    order[(order.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_a_share() {
        assert_eq!("12%".parse(), Ok(MemorySize::Share(0.12)));
        assert_eq!("16MB".parse(), Ok(MemorySize::Size("16MB".parse().unwrap())));
        assert_eq!(MemorySize::Share(0.5).bytes(1_000_000), Bytes(500_000));
        assert_eq!(MemorySize::Share(0.001).bytes(1_000_000), Bytes(MEMORY_MIN));
        for wrong in ["", "0%", "-1%", "x%", "NaN%", "sixteen"] {
            assert!(wrong.parse::<MemorySize>().is_err(), "{wrong}");
        }
    }
}
