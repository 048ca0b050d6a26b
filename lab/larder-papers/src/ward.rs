//! WARD's simulations (Cherkasova and Karlsson, HPL-2001-2, sections 3.3 and 3.4).
//!
//! Nodes accept clients themselves: the log is dealt to them in turn, and a request for another node's target
//! is handed off. Four strategies use the same policy with different tables. RR has no table and serves
//! everything where it arrives. PART partitions the files that fit the cluster's memory. WARD has a core
//! beside the partition. Both tables are those of the log that they run on (CARD); with *yesterday's* the
//! table is that of the day before (dec-CARD).
//!
//! The paper leaves one point open: a node has up to `window` outstanding requests of its own. The paper's
//! server takes its next request when the previous one has ended, and has queues of unstated finite size for
//! its own requests and for those handed to it. It does not say whether a request that was handed off delays
//! the next one. If it does, the window is 1; if it does not, the window is large. The default of 1,024 was
//! chosen after `ward-window` had shown the results of each, so no agreement at 1,024 is a test of the paper.
//! That experiment judges the same claims at 1, 64 and 1,024. The whole log is measured, including cold
//! memories. The receiving node pays nothing for a handoff, and CARD's dispatcher costs nothing, as in the
//! paper's own figures.

mod core_size;
mod days;
mod sweep;

use std::sync::{Arc, OnceLock};

pub(super) use core_size::Core;
pub(super) use days::{Change, Days};
pub(super) use sweep::StrategySweep;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, PolicyKind};
use larder_trace::synth::Recipe;
use larder_trace::ward::{
    Analysis, CoreChoice, Frequencies, Frequency, WardCluster, WardCosts, ward_analysis,
};
use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::{Fit, Traces, WorkloadSpec};
use larder_sim::cost::{Costs, Ward01};
use larder_sim::outcome::Outcome;
use larder_sim::{Arrivals, CacheChoice, Scenario, SimNode, Workload, simulate};

/// The workload parameters of an experiment: `recipe` with `seed`, `scale`, `requests` and
/// `locality`, or `trace` with `requests` and `shuffled`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkloadParams {
    recipe: Option<String>,
    trace: Option<String>,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "whole")]
    scale: f64,
    requests: Option<u64>,
    /// Locality instead of the recipe's.
    locality: Option<f64>,
    /// Whether the requests of a trace are in random order.
    #[serde(default)]
    shuffled: bool,
}

const fn one() -> u64 {
    1
}

const fn whole() -> f64 {
    1.0
}

impl WorkloadParams {
    pub(super) fn spec(&self) -> Result<WorkloadSpec, String> {
        let Self { seed, scale, requests, locality, shuffled, .. } = *self;
        let fit = Fit { locality, ..Fit::default() };
        match (&self.recipe, &self.trace) {
            (Some(recipe), None) => {
                Ok(WorkloadSpec::Synthetic { recipe: recipe.clone(), seed, scale, requests, hot: None, fit })
            }
            (None, Some(path)) => Ok(WorkloadSpec::File { path: path.clone(), requests, shuffled }),
            _ => Err("workload: give exactly one of 'recipe' and 'trace'".to_owned()),
        }
    }

    /// Checks the parameters that can be checked before anything runs.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { scale, requests, .. } = *self;
        self.spec()?;
        if let Some(name) = &self.recipe {
            Recipe::by_name(name).map_err(|error| format!("workload: {error}"))?;
        } else if scale != whole() || self.seed != one() {
            return Err("workload: 'seed' and 'scale' are for a recipe, not for a trace".to_owned());
        }
        if self.locality.is_some_and(|locality| self.recipe.is_none() || !(0.0..1.0).contains(&locality)) {
            return Err("workload: 'locality' must be 0 to below 1, and is for a recipe".to_owned());
        }
        if self.shuffled && self.trace.is_none() {
            return Err("workload: 'shuffled' is for a trace: a recipe has 'locality'".to_owned());
        }
        let in_range = scale > 0.0 && scale <= 1.0;
        if !in_range {
            return Err(format!("workload: 'scale' must be above 0 and at most 1, not {scale}"));
        }
        match requests {
            Some(requests) if !(1..=REQUESTS_MAX).contains(&requests) => {
                Err(format!("workload: 'requests' must be 1 to {REQUESTS_MAX}, not {requests}"))
            }
            _ => Ok(()),
        }
    }
}

/// The largest number of requests in a workload.
const REQUESTS_MAX: u64 = u32::MAX as u64;
/// The largest number of x values or lines.
const VALUES_MAX: usize = 64;
/// The largest number of a node's own outstanding requests.
const WINDOW_MAX: u32 = 1 << 20;
/// The highest cost of a handoff, in us, as in [`Ward01`].
const FORWARD_US_MAX: f64 = 1e6;

/// The parameters that the experiments share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommonParams {
    workload: WorkloadParams,
    /// Memory of a node as a share of the working set, above 0 and at most 1.
    memory_share: f64,
    /// ForwardOH in us.
    forward_us: f64,
    /// Outstanding requests of its own per node.
    #[serde(default = "usual_window")]
    window: u32,
}

const fn usual_window() -> u32 {
    1_024
}

impl CommonParams {
    fn check(&self) -> Result<(), String> {
        self.workload.check()?;
        check_share(self.memory_share)?;
        check_forward("forward_us", self.forward_us)?;
        check_window("window", self.window)
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

    /// Runs a workload with a table, or without one.
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

fn check_share(share: f64) -> Result<(), String> {
    let good = share > 0.0 && share <= 1.0;
    if good { Ok(()) } else { Err(format!("memory_share: must be above 0 and at most 1, not {share}")) }
}

fn check_forward(key: &str, us: f64) -> Result<(), String> {
    let good = (0.0..=FORWARD_US_MAX).contains(&us);
    if good { Ok(()) } else { Err(format!("{key}: must be 0 to 1,000,000 us, not {us}")) }
}

fn check_window(key: &str, window: u32) -> Result<(), String> {
    let good = (1..=WINDOW_MAX).contains(&window);
    if good { Ok(()) } else { Err(format!("{key}: must be 1 to {WINDOW_MAX}, not {window}")) }
}

fn check_nodes(key: &str, nodes: u16) -> Result<(), String> {
    let good = (1..=1_024).contains(&nodes);
    if good { Ok(()) } else { Err(format!("{key}: must be 1 to 1,024, not {nodes}")) }
}

/// Checks that a list has values, not too many, each of them valid, and none twice, because results are found
/// by them.
fn check_list<T: Copy + PartialEq>(
    key: &str,
    values: &[T],
    check: impl Fn(&str, T) -> Result<(), String>,
) -> Result<(), String> {
    if values.is_empty() || values.len() > VALUES_MAX {
        return Err(format!("{key}: must be 1 to {VALUES_MAX} numbers, not {}", values.len()));
    }
    values.iter().try_for_each(|value| check(key, *value))?;
    let twice = values.iter().enumerate().any(|(place, value)| values[..place].contains(value));
    if twice { Err(format!("{key}: has a number twice")) } else { Ok(()) }
}

/// `ward-clusters`: RR, PART and WARD against the number of nodes.
///
/// `[params]`: `workload`, `memory_share`, `forward_us`, `window`, `over_nodes`. Metrics: `throughput`,
/// `speedup` (over one node with the same memory), `speedup_per_node` (speedup divided by the number of
/// nodes), `local_share` (requests served where they arrived), `local_expected` (the local share predicted by
/// ward-analysis), `hit_ratio`, `core_targets`.
#[derive(Debug)]
pub(super) struct Clusters;

#[derive(Deserialize)]
struct NodeCounts {
    over_nodes: Vec<u16>,
}

#[derive(Debug)]
struct ClustersPlan {
    common: CommonParams,
    over_nodes: Vec<u16>,
    /// Throughput of one node, computed by the first job that needs it.
    single: OnceLock<Result<f64, PaperError>>,
}

const STRATEGIES: [&str; 3] = ["RR", "PART", "WARD"];

/// Returns the core of a strategy; `None` for the strategy without a table.
fn core_of(strategy: &str) -> Option<CoreChoice> {
    match strategy {
        "RR" => None,
        "PART" => Some(CoreChoice::Targets(0)),
        _ => Some(CoreChoice::Best),
    }
}

/// Splits a list off `[params]`; the rest is [`CommonParams`].
fn split<T: serde::de::DeserializeOwned>(
    table: &toml::Table,
    key: &str,
) -> Result<(T, CommonParams), String> {
    let mut rest = table.clone();
    let own: toml::Table = rest.remove(key).map(|value| (key.to_owned(), value)).into_iter().collect();
    let common: CommonParams = params(&rest)?;
    common.check()?;
    Ok((params(&own)?, common))
}

impl Builtin for Clusters {
    fn name(&self) -> &'static str {
        "ward-clusters"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (NodeCounts { over_nodes }, common) = split(table, "over_nodes")?;
        check_list("over_nodes", &over_nodes, check_nodes)?;
        Ok(Box::new(ClustersPlan { common, over_nodes, single: OnceLock::new() }))
    }
}

impl Plan for ClustersPlan {
    fn lines(&self) -> Vec<String> {
        STRATEGIES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec![
            "throughput",
            "speedup",
            "speedup_per_node",
            "local_share",
            "local_expected",
            "hit_ratio",
            "core_targets",
        ]
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
        let analysis = match core_of(strategy) {
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
            ("speedup_per_node", outcome.throughput / single / f64::from(nodes)),
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

#[cfg(test)]
mod tests;
