//! WARD's simulations as experiments (Cherkasova and Karlsson, HPL-2001-2, sections 3.3 and 3.4).
//!
//! Nodes accept clients themselves: the log is dealt out to them in turn, and a request for another node's target is
//! handed over. Four strategies, all by the same policy with different tables: RR has none and serves everything where
//! it arrives; PART partitions what fits the cluster's memory; WARD has a core beside the partition, and both tables
//! are those of the log they run on (CARD); with *yesterday's* the table is that of the day before (dec-CARD).
//!
//! Left open by the paper, and chosen here: a node has up to `window` requests of its own in hand. The paper's server
//! takes its next request when it is free, whatever became of those it has handed over, and its queues are finite and
//! of unstated size; so the window is large by default, and `ward-window` sweeps it. The whole log is measured, cold
//! memories included; the receiving node pays nothing for a handoff; the dispatcher of CARD costs nothing, as in the
//! paper's own figures.

use std::sync::{Arc, OnceLock};

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, PolicyKind};
use larder_trace::ward::{
    Analysis, CoreChoice, Frequencies, Frequency, Stability, WardCluster, WardCosts, ward_analysis,
};
use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::{Traces, WorkloadSpec};
use crate::cost::{Costs, Ward01};
use crate::outcome::Outcome;
use crate::{Arrivals, CacheChoice, Scenario, SimNode, Workload, simulate};

/// The workload of an experiment: `recipe`, with `seed`, `scale` and `requests`, or `trace`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    recipe: Option<String>,
    trace: Option<String>,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "whole")]
    scale: f64,
    requests: Option<u64>,
}

const fn one() -> u64 {
    1
}

const fn whole() -> f64 {
    1.0
}

impl Asked {
    fn spec(&self) -> Result<WorkloadSpec, String> {
        let Self { seed, scale, requests, .. } = *self;
        match (&self.recipe, &self.trace) {
            (Some(recipe), None) => {
                Ok(WorkloadSpec::Synthetic { recipe: recipe.clone(), seed, scale, requests, hot: None })
            }
            (None, Some(path)) => Ok(WorkloadSpec::File { path: path.clone(), requests }),
            _ => Err("workload: 'recipe' or 'trace', one of them".to_owned()),
        }
    }
}

/// What the experiments set alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    workload: Asked,
    /// Memory of a node as a share of the working set, above 0 and at most 1.
    memory_share: f64,
    /// ForwardOH in us.
    forward_us: f64,
    /// Requests of its own that a node has in hand.
    #[serde(default = "usual_window")]
    window: u32,
}

const fn usual_window() -> u32 {
    1_024
}

impl Common {
    fn check(&self) -> Result<(), String> {
        self.workload.spec()?;
        let share = self.memory_share > 0.0 && self.memory_share <= 1.0;
        if !share {
            return Err("memory_share: above 0 and at most 1".to_owned());
        }
        if self.window == 0 { Err("window: at least 1".to_owned()) } else { Ok(()) }
    }

    fn spec(&self) -> Result<WorkloadSpec, PaperError> {
        self.workload.spec().map_err(PaperError::Builtin)
    }

    fn ward01(&self) -> Ward01 {
        Ward01 { forward_us: self.forward_us, ..Ward01::default() }
    }

    fn cluster(&self, nodes: u16, working_set: u64) -> WardCluster {
        let model = self.ward01();
        WardCluster {
            nodes,
            memory_per_node: Bytes((working_set as f64 * self.memory_share) as u64),
            costs: WardCosts {
                forward_us: model.forward_us,
                disk_us_per_byte: model.disk_overhead_us_per_byte(),
                origin: "ward01".to_owned(),
            },
        }
    }

    /// Runs a workload by a table, or by none.
    fn run(
        &self,
        workload: &Workload,
        cluster: &WardCluster,
        table: Option<RouteTable>,
    ) -> Result<Outcome, PaperError> {
        let settings = Settings {
            policy: PolicyKind::Ward,
            admission: Admission::Unlimited,
            table: table.map(Arc::new),
            ..Settings::default()
        };
        let nodes = usize::from(cluster.nodes);
        let scenario = Scenario {
            nodes: vec![SimNode::with_cache(cluster.memory_per_node); nodes],
            cache: CacheChoice::Kind(CacheKind::Lru),
            arrivals: Arrivals::Subtraces { window: self.window },
            costs: Costs::Ward01(self.ward01()),
            ..Scenario::lard98(nodes, settings)
        };
        Ok(simulate(workload, &scenario)?)
    }
}

fn frequencies(workload: &Workload) -> Frequencies {
    let rows = (0_u32..).zip(&workload.items).zip(workload.counts());
    Frequencies::from_rows(rows.map(|((target, item), requests)| Frequency {
        target,
        requests: u64::from(requests),
        bytes: item.bytes,
    }))
}

fn analyse(log: &Frequencies, cluster: &WardCluster, core: CoreChoice) -> Result<Analysis, PaperError> {
    ward_analysis(log, cluster, core).map_err(|error| PaperError::Builtin(error.to_string()))
}

fn table(analysis: &Analysis, workload: &Workload) -> Result<RouteTable, PaperError> {
    let table = analysis.route_table(|item| workload.items[item as usize].id);
    table.map_err(|error| PaperError::Builtin(error.to_string()))
}

fn working_set(workload: &Workload) -> u64 {
    workload.items.iter().map(|item| item.bytes).sum()
}

fn check_nodes(nodes: &[u16]) -> Result<(), String> {
    let good = !nodes.is_empty() && nodes.iter().all(|nodes| (1..=1_024).contains(nodes));
    if good { Ok(()) } else { Err("over_nodes: numbers from 1 to 1024".to_owned()) }
}

/// `ward-clusters`: RR, PART and WARD against the number of nodes.
///
/// `[params]`: `workload`, `memory_share`, `forward_us`, `window`, `over_nodes`. Metrics: `throughput`, `speedup`
/// (over one node with the same memory), `local_share` (requests served where they arrived), `local_expected` (the
/// same by ward-analysis), `hit_ratio`, `core_targets`.
#[derive(Debug)]
pub(super) struct Clusters;

#[derive(Deserialize)]
struct OverNodes {
    over_nodes: Vec<u16>,
}

#[derive(Debug)]
struct ClustersPlan {
    common: Common,
    over_nodes: Vec<u16>,
    /// Throughput of one node, found by the first job that needs it.
    single: OnceLock<Result<f64, PaperError>>,
}

const STRATEGIES: [&str; 3] = ["RR", "PART", "WARD"];

/// Splits a list off `[params]`; the rest is [`Common`].
fn split<T: serde::de::DeserializeOwned>(table: &toml::Table, key: &str) -> Result<(T, Common), String> {
    let mut rest = table.clone();
    let own: toml::Table = rest.remove(key).map(|value| (key.to_owned(), value)).into_iter().collect();
    let common: Common = params(&rest)?;
    common.check()?;
    Ok((params(&own)?, common))
}

impl Builtin for Clusters {
    fn name(&self) -> &'static str {
        "ward-clusters"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (OverNodes { over_nodes }, common) = split(table, "over_nodes")?;
        check_nodes(&over_nodes)?;
        Ok(Box::new(ClustersPlan { common, over_nodes, single: OnceLock::new() }))
    }
}

impl Plan for ClustersPlan {
    fn lines(&self) -> Vec<String> {
        STRATEGIES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "speedup", "local_share", "local_expected", "hit_ratio", "core_targets"]
    }

    fn jobs(&self) -> usize {
        self.over_nodes.len() * STRATEGIES.len()
    }

    fn key(&self, job: usize) -> String {
        let (nodes, strategy) = self.point(job);
        format!("{:?} {nodes} {strategy}", self.common)
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (nodes, strategy) = self.point(job);
        let workload = traces.workload(&self.common.spec()?)?;
        let single = self.single.get_or_init(|| {
            let cluster = self.common.cluster(1, working_set(&workload));
            Ok(self.common.run(&workload, &cluster, None)?.throughput)
        });
        let single = single.clone()?;
        let cluster = self.common.cluster(nodes, working_set(&workload));
        let core = match strategy {
            "RR" => None,
            "PART" => Some(CoreChoice::Targets(0)),
            _ => Some(CoreChoice::Best),
        };
        let analysis = match core {
            Some(core) => Some(analyse(&frequencies(&workload), &cluster, core)?),
            None => None,
        };
        let table = match &analysis {
            Some(analysis) => Some(table(analysis, &workload)?),
            None => None,
        };
        let outcome = self.common.run(&workload, &cluster, table)?;
        let values = [
            ("throughput", outcome.throughput),
            ("speedup", outcome.throughput / single),
            ("local_share", 1.0 - outcome.forwarded_share),
            ("local_expected", analysis.as_ref().map_or(1.0, |analysis| analysis.local_share)),
            ("hit_ratio", 1.0 - outcome.miss_ratio),
            ("core_targets", analysis.map_or(0.0, |analysis| analysis.core.targets as f64)),
        ];
        Ok(vec![Sample::new(strategy, f64::from(nodes), values)])
    }
}

impl ClustersPlan {
    fn point(&self, job: usize) -> (u16, &'static str) {
        (self.over_nodes[job / STRATEGIES.len()], STRATEGIES[job % STRATEGIES.len()])
    }
}

/// `ward-core`: throughput against the size of the core, as a multiple of the one that ward-analysis computes.
///
/// `[params]`: `workload`, `memory_share`, `window`, `nodes`, `over_forward_us` (a line each), `over_factors`. Metrics:
/// `throughput`, `of_best` (over the greatest of the line), `core_targets`, `core_share` (of the working set),
/// `overhead_s` (what ward-analysis predicts).
#[derive(Debug)]
pub(super) struct Core;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CorePlan {
    workload: Asked,
    memory_share: f64,
    #[serde(default = "usual_window")]
    window: u32,
    nodes: u16,
    over_forward_us: Vec<f64>,
    over_factors: Vec<f64>,
}

impl Builtin for Core {
    fn name(&self) -> &'static str {
        "ward-core"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: CorePlan = params(table)?;
        check_nodes(&[plan.nodes])?;
        if !plan.over_factors.iter().all(|factor| (0.0..=1e6).contains(factor)) {
            return Err("over_factors: numbers from 0 to 1,000,000".to_owned());
        }
        plan.common(0.0).check()?;
        Ok(Box::new(plan))
    }
}

impl CorePlan {
    fn common(&self, forward_us: f64) -> Common {
        let Self { ref workload, memory_share, window, .. } = *self;
        Common { workload: workload.clone(), memory_share, forward_us, window }
    }

    fn line(forward_us: f64) -> String {
        format!("{forward_us} us")
    }
}

impl Plan for CorePlan {
    fn lines(&self) -> Vec<String> {
        self.over_forward_us.iter().map(|forward_us| Self::line(*forward_us)).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "of_best", "core_targets", "core_share", "overhead_s"]
    }

    fn jobs(&self) -> usize {
        self.over_forward_us.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-core {self:?} {job}")
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let forward_us = self.over_forward_us[job];
        let common = self.common(forward_us);
        let workload = traces.workload(&common.spec()?)?;
        let all = working_set(&workload);
        let cluster = common.cluster(self.nodes, all);
        let log = frequencies(&workload);
        let best = analyse(&log, &cluster, CoreChoice::Best)?.core.targets as f64;
        let mut runs = Vec::new();
        for &factor in &self.over_factors {
            let targets = CoreChoice::Targets((best * factor).round() as u64);
            let analysis = analyse(&log, &cluster, targets)?;
            let outcome = common.run(&workload, &cluster, Some(table(&analysis, &workload)?))?;
            runs.push((factor, analysis, outcome.throughput));
        }
        let greatest = runs.iter().map(|run| run.2).fold(f64::MIN_POSITIVE, f64::max);
        let sample = |(factor, analysis, throughput): &(f64, Analysis, f64)| {
            let values = [
                ("throughput", *throughput),
                ("of_best", throughput / greatest),
                ("core_targets", analysis.core.targets as f64),
                ("core_share", analysis.core.bytes as f64 / all as f64),
                ("overhead_s", analysis.overheads.ward_us / 1e6),
            ];
            Sample::new(&Self::line(forward_us), *factor, values)
        };
        Ok(runs.iter().map(sample).collect())
    }
}

/// `ward-window`: throughput of the three strategies against the requests of its own that a node has in hand.
///
/// `[params]`: `workload`, `memory_share`, `forward_us`, `nodes`, `over_window`. Metrics: `throughput`.
#[derive(Debug)]
pub(super) struct Window;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowPlan {
    workload: Asked,
    memory_share: f64,
    forward_us: f64,
    nodes: u16,
    over_window: Vec<u32>,
}

impl Builtin for Window {
    fn name(&self) -> &'static str {
        "ward-window"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: WindowPlan = params(table)?;
        check_nodes(&[plan.nodes])?;
        plan.over_window.iter().try_for_each(|&window| plan.common(window).check())?;
        Ok(Box::new(plan))
    }
}

impl WindowPlan {
    fn common(&self, window: u32) -> Common {
        let Self { ref workload, memory_share, forward_us, .. } = *self;
        Common { workload: workload.clone(), memory_share, forward_us, window }
    }
}

impl Plan for WindowPlan {
    fn lines(&self) -> Vec<String> {
        STRATEGIES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput"]
    }

    fn jobs(&self) -> usize {
        self.over_window.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-window {:?} {}", self.common(self.over_window[job]), self.nodes)
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let window = self.over_window[job];
        let common = self.common(window);
        let workload = traces.workload(&common.spec()?)?;
        let cluster = common.cluster(self.nodes, working_set(&workload));
        let log = frequencies(&workload);
        let mut samples = Vec::new();
        for (strategy, core) in
            STRATEGIES.into_iter().zip([None, Some(CoreChoice::Targets(0)), Some(CoreChoice::Best)])
        {
            let table = match core {
                Some(core) => Some(table(&analyse(&log, &cluster, core)?, &workload)?),
                None => None,
            };
            let throughput = common.run(&workload, &cluster, table)?.throughput;
            samples.push(Sample::new(strategy, f64::from(window), [("throughput", throughput)]));
        }
        Ok(samples)
    }
}

/// `ward-days`: today's requests by today's table and by yesterday's, against the number of nodes.
///
/// `[params]`: as `ward-clusters`. A node's memory is a share of the mean day's working set. Days that are parts, or
/// have fewer than [`DAY_REQUESTS_MIN`] requests, or follow such a day, are left out. Lines: `WARD, today`, `WARD,
/// yesterday`, `PART, today`. Metrics: `throughput` (mean over the days), `loss` and `loss_most` (what yesterday's
/// table loses against today's: mean and worst day, 0 to 1).
#[derive(Debug)]
pub(super) struct Days;

#[derive(Debug)]
struct DaysPlan {
    common: Common,
    over_nodes: Vec<u16>,
}

/// A day with fewer requests has no pattern to place by.
const DAY_REQUESTS_MIN: usize = 500;
const DAY_LINES: [&str; 3] = ["WARD, today", "WARD, yesterday", "PART, today"];

impl Builtin for Days {
    fn name(&self) -> &'static str {
        "ward-days"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (OverNodes { over_nodes }, common) = split(table, "over_nodes")?;
        check_nodes(&over_nodes)?;
        Ok(Box::new(DaysPlan { common, over_nodes }))
    }
}

impl Plan for DaysPlan {
    fn lines(&self) -> Vec<String> {
        DAY_LINES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "loss", "loss_most"]
    }

    fn jobs(&self) -> usize {
        self.over_nodes.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-days {:?} {}", self.common, self.over_nodes[job])
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let nodes = self.over_nodes[job];
        let trace = traces.trace(&self.common.spec()?)?;
        let days =
            trace.days().into_iter().filter(|day| day.is_whole && day.requests.len() >= DAY_REQUESTS_MIN);
        let days: Vec<_> =
            days.map(|day| (day.number, Workload::from_trace(&trace.part(day.requests)))).collect();
        let sets: u64 = days.iter().map(|(_, day)| working_set(day)).sum();
        let cluster = self.common.cluster(nodes, sets / days.len().max(1) as u64);
        let mut sums = [0.0; 3];
        let (mut losses, mut loss_most, mut count) = (0.0, f64::NEG_INFINITY, 0.0);
        for pair in days.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0) {
            let (yesterday, today) = (&pair[0].1, &pair[1].1);
            let run = |of: &Workload, core| -> Result<f64, PaperError> {
                let analysis = analyse(&frequencies(of), &cluster, core)?;
                Ok(self.common.run(today, &cluster, Some(table(&analysis, of)?))?.throughput)
            };
            let of_day = [
                run(today, CoreChoice::Best)?,
                run(yesterday, CoreChoice::Best)?,
                run(today, CoreChoice::Targets(0))?,
            ];
            let loss = 1.0 - of_day[1] / of_day[0];
            losses += loss;
            loss_most = f64::max(loss_most, loss);
            sums.iter_mut().zip(of_day).for_each(|(sum, throughput)| *sum += throughput);
            count += 1.0;
        }
        if count == 0.0 {
            return Err(PaperError::Builtin(
                "the workload has no two whole days after each other".to_owned(),
            ));
        }
        let sample = |(line, sum): (&str, f64)| {
            let mut values = vec![("throughput", sum / count)];
            if line == DAY_LINES[1] {
                values.extend([("loss", losses / count), ("loss_most", loss_most)]);
            }
            Sample::new(line, f64::from(nodes), values)
        };
        Ok(DAY_LINES.into_iter().zip(sums).map(sample).collect())
    }
}

/// `ward-stability`: how a log changes from day to day.
///
/// `[params]`: `workload`. Lines and metrics: `new files` with `files` (share of the day's files that no day before
/// asked for) and `requests` (share of the day's requests to them); `new core-90 %` with `requests` (share of the day's
/// requests to files of its core-90 % that were not in that of the day before). Days with fewer than
/// [`DAY_REQUESTS_MIN`] requests, and comparisons with them, are left out.
#[derive(Debug)]
pub(super) struct Change;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangePlan {
    workload: Asked,
}

impl Builtin for Change {
    fn name(&self) -> &'static str {
        "ward-stability"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: ChangePlan = params(table)?;
        plan.workload.spec()?;
        Ok(Box::new(plan))
    }
}

impl Plan for ChangePlan {
    fn lines(&self) -> Vec<String> {
        vec!["new files".to_owned(), "new core-90 %".to_owned()]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["files", "requests"]
    }

    fn jobs(&self) -> usize {
        1
    }

    fn key(&self, _job: usize) -> String {
        format!("ward-stability {self:?}")
    }

    fn run(&self, _job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let spec = self.workload.spec().map_err(PaperError::Builtin)?;
        let stability = Stability::of(&*traces.trace(&spec)?);
        let has_pattern = |requests: u64| requests >= DAY_REQUESTS_MIN as u64;
        let new = stability.days.iter().filter(|day| has_pattern(day.requests)).map(|day| {
            let values = [("files", day.new_targets_share), ("requests", day.new_requests_share)];
            Sample::new("new files", day.day as f64, values)
        });
        let is_thin =
            |number: u64| stability.days.iter().any(|day| day.day == number && !has_pattern(day.requests));
        let changes = stability.core90.iter().flat_map(|core| &core.days);
        let core = changes
            .filter(|day| has_pattern(day.requests) && !is_thin(day.day - 1))
            .map(|day| Sample::new("new core-90 %", day.day as f64, [("requests", day.new_share)]));
        Ok(new.chain(core).collect())
    }
}

#[cfg(test)]
mod tests;
