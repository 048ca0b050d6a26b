//! What a plan found: one value, printed as a table, written as JSON, drawn as a report.

use larder_trace::stats::Coverage;
use serde::Serialize;

use super::goal::Prices;

/// The layout of the JSON; changes when a field changes its meaning or goes.
pub const SCHEMA: &str = "larder-plan/1";

/// A figure and how far off it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Half the width of the interval that it lies in with 95 % confidence, bias included; 0 where the whole log was
    /// replayed.
    pub error: f64,
}

impl Estimate {
    /// A figure without sampling error.
    pub const fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// The lower end, at least 0.
    pub fn low(&self) -> f64 {
        (self.value - self.error).max(0.0)
    }

    /// The upper end.
    pub fn high(&self) -> f64 {
        self.value + self.error
    }

    /// Whether a value lies within.
    pub fn covers(&self, value: f64) -> bool {
        (self.value - value).abs() <= self.error + 1e-12
    }
}

/// A policy on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The policy.
    pub policy: String,
    /// Nodes.
    pub nodes: u16,
    /// Memory of each for contents, in bytes.
    pub memory_bytes: u64,
    /// The whole log was replayed; otherwise samples of it.
    pub exact: bool,
    /// Requests per second, saturated: S requests outstanding all the time.
    pub throughput: Estimate,
    /// Share of the requests that cause no read of their own, 0 to 1: answered from memory, or by a read that was
    /// under way.
    pub hit_ratio: Estimate,
    /// Bytes read from disk or origin for each request.
    pub origin_bytes: Estimate,
    /// Requests of the busiest node over the mean of all; 1 is even.
    pub imbalance: Estimate,
    /// Share of the time that a node's processor works, saturated, mean over the nodes.
    pub cpu_busy: f64,
    /// Share of the time that the switch works, saturated; 0 where the cost model's switch costs nothing.
    pub front_busy: f64,
    /// Median delay, saturated, in seconds.
    pub p50_s: f64,
    /// 99th percentile of the delay, saturated, in seconds.
    pub p99_s: f64,
    /// Requests of each node over the mean, by slot.
    pub node_shares: Vec<f64>,
    /// The same at a load below saturation, where it was asked for.
    pub at_load: Option<AtLoad>,
}

/// Delays at a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AtLoad {
    /// Requests per second that arrive, at random (Poisson), in the log's order.
    pub load: f64,
    /// The whole log was replayed for them; otherwise samples of it, even where the cell's other figures are exact.
    pub exact: bool,
    /// Median delay in seconds.
    pub p50_s: Estimate,
    /// 99th percentile in seconds.
    pub p99_s: Estimate,
    /// Share of the requests refused because the queue before the nodes was full or too slow.
    pub refused_share: f64,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogFacts {
    /// Requests that can be replayed.
    pub requests: u64,
    /// Of these, the first ones, which warm the memories and are not measured.
    pub warmup_requests: u64,
    /// Distinct targets.
    pub targets: u64,
    /// All targets' sizes together, in bytes.
    pub working_set_bytes: u64,
    /// Mean size of what a request asks for, in bytes.
    pub request_bytes_mean: f64,
    /// Share of the requests that go to the most requested target.
    pub hottest_share: f64,
    /// Share of the measured requests that are the first for their target: no policy hits on them.
    pub cold_share: f64,
    /// Memory that holds what 98 % of the requests ask for (the most requested targets), in bytes.
    pub core98_bytes: u64,
    /// From the first request to the last, in seconds; `None` without times.
    pub seconds: Option<f64>,
    /// Requests per second over the whole log.
    pub rate_mean: Option<f64>,
    /// Requests per second in the busiest minute.
    pub rate_peak: Option<f64>,
    /// How much memory covers which share of the requests.
    pub coverage: Vec<Coverage>,
}

/// How the figures came about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Method {
    /// Disjoint samples replayed for the grid; 0 if the whole log was.
    pub samples: usize,
    /// Share of the targets in each sample; 1 if the whole log was replayed.
    pub rate: f64,
    /// The share asked for, by the user or by the size of the grid; `rate` is above it where samples of that share would
    /// have had too few requests.
    pub rate_wanted: f64,
    /// Requests that a sample needs: 50 for each that may be outstanding in the largest cluster.
    pub sample_floor: u64,
    /// Requests in each sample, mean.
    pub sample_requests: u64,
    /// Targets that every sample holds, with every so-many-th of their requests.
    pub hot_targets: u64,
    /// Largest share of requests to targets that fit a node's memory but not its part in a sample.
    pub too_large_share: f64,
    /// Cells replayed whole besides, or with a larger sample where the log is too long.
    pub checked: Vec<Check>,
    /// Cost model by name.
    pub costs: String,
    /// What nodes evict first.
    pub cache: String,
    /// T_low and T_high.
    pub thresholds: (u32, u32),
    /// Runs simulated.
    pub runs: usize,
    /// Requests simulated, all runs together.
    pub requests_simulated: u64,
    /// The seed that samples and arrivals were drawn with.
    pub seed: u64,
}

/// A cell of the sampled grid that was replayed better, and how far the samples had been off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The policy.
    pub policy: String,
    /// Nodes.
    pub nodes: u16,
    /// Memory of each, in bytes.
    pub memory_bytes: u64,
    /// Whether the whole log was replayed.
    pub exact: bool,
    /// Share of the targets that was replayed: 1 for the whole log.
    pub rate: f64,
    /// What the samples said.
    pub sampled_throughput: Estimate,
    /// What the check said.
    pub throughput: f64,
    /// What the samples said.
    pub sampled_hit_ratio: Estimate,
    /// What the check said.
    pub hit_ratio: f64,
}

/// What no policy exceeds with so much memory in all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CeilingRow {
    /// Nodes.
    pub nodes: u16,
    /// Memory of each, in bytes.
    pub memory_bytes: u64,
    /// Hit ratio that one memory of that size cannot exceed even if it knows the future (PFOO-U); where samples were
    /// replayed their mean. Reads that several requests share are not counted in it.
    pub clairvoyant_hit_ratio: f64,
    /// Hit ratio of memory without limit.
    pub unbounded_hit_ratio: f64,
    /// Requests per second of evenly busy nodes with the clairvoyant memory; `None` where the cost model has no such
    /// formula.
    pub clairvoyant_throughput: Option<f64>,
    /// The same without limit of memory.
    pub unbounded_throughput: Option<f64>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The policy.
    pub policy: String,
    /// Nodes.
    pub nodes: u16,
    /// Memory of each, in bytes.
    pub memory_bytes: u64,
    /// Why this cluster, in words.
    pub why_cluster: String,
    /// Why this policy, in words.
    pub why_policy: String,
    /// Whether sending requests where their target is in memory pays on this cluster.
    pub locality_pays: bool,
    /// Against the usual policies on the same cluster.
    pub gains: Vec<Gain>,
    /// Price of a million requests, where prices are known.
    pub price_per_million: Option<f64>,
}

/// The recommendation against another policy on the same cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The other policy.
    pub over: String,
    /// Throughput over its throughput.
    pub throughput_ratio: Estimate,
    /// Hit ratio less its hit ratio, in points of percent.
    pub hit_points: f64,
    /// Bytes from origin over its bytes from origin.
    pub origin_ratio: f64,
}

/// A cluster where knowing contents gains less than 5 % in throughput and less than 5 points in hits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoGain {
    /// Nodes.
    pub nodes: u16,
    /// Memory of each, in bytes.
    pub memory_bytes: u64,
    /// Throughput of the best policy that looks at contents over the best that does not.
    pub ratio: f64,
    /// Why.
    pub why: String,
}

/// How much the recommended cell's figures move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// What was varied.
    pub what: String,
    /// The lowest and the highest throughput.
    pub throughput: (f64, f64),
    /// The lowest and the highest hit ratio.
    pub hit_ratio: (f64, f64),
}

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Names the layout of this document: "larder-plan/1".
    pub schema: &'static str,
    /// The goal as stated; `None`: the knee.
    pub goal: Option<String>,
    /// Prices as stated.
    pub prices: Option<Prices>,
    /// Requests per second that goals and delays speak of, and where the number comes from.
    pub load: Option<(f64, String)>,
    /// The log.
    pub log: LogFacts,
    /// How the figures came about.
    pub method: Method,
    /// The answer; `None` if no cell honours the goal.
    pub recommendation: Option<Recommendation>,
    /// What to know about the goal that no cell honours.
    pub unreached: Option<String>,
    /// Where locality does not pay.
    pub no_gain: Vec<NoGain>,
    /// How sure the recommended cell is.
    pub spreads: Vec<Spread>,
    /// Reasons to doubt the figures.
    pub warnings: Vec<String>,
    /// Every policy on every cluster, policies first, then nodes, then memory.
    pub cells: Vec<Cell>,
    /// The ceilings of every cluster.
    pub ceilings: Vec<CeilingRow>,
}

impl Plan {
    /// A cell of the grid.
    pub fn cell(&self, policy: &str, nodes: u16, memory_bytes: u64) -> Option<&Cell> {
        let is = |cell: &&Cell| {
            (cell.policy.as_str(), cell.nodes, cell.memory_bytes) == (policy, nodes, memory_bytes)
        };
        self.cells.iter().find(is)
    }

    /// The recommended cell.
    pub fn recommended(&self) -> Option<&Cell> {
        let it = self.recommendation.as_ref()?;
        self.cell(&it.policy, it.nodes, it.memory_bytes)
    }
}
