//! The result of a plan, which is printed as a table, written as JSON and drawn as a report.

use larder_trace::stats::Coverage;
use serde::Serialize;

use super::goal::Prices;
use crate::bound::Bound;

/// The version of the JSON schema. It changes when a field is removed or changes its meaning.
pub const SCHEMA: &str = "larder-plan/2";

/// An estimated value with its error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimated value.
    pub value: f64,
    /// Half the width of the 95 % confidence interval, bias included; 0 if the whole log was replayed.
    pub error: f64,
}

impl Estimate {
    /// Returns a value without sampling error.
    pub const fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// Returns the lower end of the interval, at least 0.
    pub fn low(&self) -> f64 {
        (self.value - self.error).max(0.0)
    }

    /// Returns the upper end of the interval.
    pub fn high(&self) -> f64 {
        self.value + self.error
    }

    /// Returns whether the interval contains a value.
    pub fn covers(&self, value: f64) -> bool {
        (self.value - value).abs() <= self.error + 1e-12
    }
}

/// The result of a policy on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The policy.
    pub policy: String,
    /// The number of nodes.
    pub nodes: u16,
    /// Memory per node for contents, in bytes.
    pub memory_bytes: u64,
    /// Whether the whole log was replayed; otherwise samples of it.
    pub exact: bool,
    /// Requests per second at saturation: S requests are outstanding all the time.
    pub throughput: Estimate,
    /// Share of the requests that cause no read of their own, 0 to 1. They are answered from memory, or by a
    /// read in progress.
    pub hit_ratio: Estimate,
    /// Bytes read from disk or origin per request.
    pub origin_bytes: Estimate,
    /// Requests of the busiest node relative to the mean; 1 if balanced.
    pub imbalance: Estimate,
    /// Utilisation of the nodes' processors at saturation, as the mean over the nodes.
    pub cpu_busy: f64,
    /// Utilisation of the switch at saturation; 0 if the cost model's switch costs nothing.
    pub front_busy: f64,
    /// Median delay at saturation, in seconds.
    pub p50_s: f64,
    /// 99th percentile of the delay at saturation, in seconds.
    pub p99_s: f64,
    /// Requests of each node relative to the mean, by slot.
    pub node_shares: Vec<f64>,
    /// Delays at a load below saturation, if they were computed.
    pub at_load: Option<LoadDelays>,
}

/// The delays at a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadDelays {
    /// The arrival rate in requests per second. Arrivals are a Poisson process in the log's order.
    pub load: f64,
    /// Whether the whole log was replayed for the delays; otherwise samples, even if the cell's other values
    /// are exact.
    pub exact: bool,
    /// Median delay in seconds.
    pub p50_s: Estimate,
    /// 99th percentile of the delay, in seconds.
    pub p99_s: Estimate,
    /// Share of the requests refused because the admission queue was full or too slow.
    pub refused_share: f64,
}

/// Facts about the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogFacts {
    /// Requests that can be replayed.
    pub requests: u64,
    /// The number of requests in the warm-up, which are not measured.
    pub warmup_requests: u64,
    /// Distinct targets.
    pub targets: u64,
    /// The size of all targets together, in bytes.
    pub working_set_bytes: u64,
    /// Mean size of a request's target, in bytes.
    pub request_bytes_mean: f64,
    /// Share of the requests for the most requested target.
    pub hottest_share: f64,
    /// Share of the measured requests that are the first for their target; no policy hits on them.
    pub cold_share: f64,
    /// Memory for the most requested targets that cover 98 % of the requests, in bytes.
    pub core98_bytes: u64,
    /// Time from the first request to the last, in seconds; `None` without times.
    pub seconds: Option<f64>,
    /// Request rate over the whole log, in requests per second.
    pub rate_mean: Option<f64>,
    /// Request rate in the busiest minute, in requests per second.
    pub rate_peak: Option<f64>,
    /// The memory that covers a given share of the requests.
    pub coverage: Vec<Coverage>,
}

/// The method behind the values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Method {
    /// The number of disjoint samples replayed for the grid; 0 if the whole log was replayed.
    pub samples: usize,
    /// Share of the targets in each sample; 1 if the whole log was replayed.
    pub rate: f64,
    /// The requested share, stated by the user or derived from the size of the grid. `rate` is larger if
    /// samples of this share would have too few requests.
    pub rate_wanted: f64,
    /// The number of requests that a sample needs: 50 per outstanding request of the largest cluster.
    pub sample_floor: u64,
    /// Mean number of requests per sample.
    pub sample_requests: u64,
    /// The number of hot targets. Every sample holds them, each with the sample's part of their requests.
    pub hot_targets: u64,
    /// The largest share of requests for targets that fit a node's memory but not its part in a sample.
    pub too_large_share: f64,
    /// The cells that were also replayed whole, or with a larger sample if the log is too long.
    pub checked: Vec<Check>,
    /// The name of the cost model.
    pub costs: String,
    /// The nodes' cache replacement policy.
    pub cache: String,
    /// T_low and T_high, in connections.
    pub thresholds: (u32, u32),
    /// The number of simulated runs.
    pub runs: usize,
    /// The number of simulated requests in all runs.
    pub requests_simulated: u64,
    /// The seed for samples and arrivals.
    pub seed: u64,
}

/// A cell of the sampled grid that was replayed with a larger sample, and the deviation of the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The policy.
    pub policy: String,
    /// The number of nodes.
    pub nodes: u16,
    /// Memory per node, in bytes.
    pub memory_bytes: u64,
    /// Whether the whole log was replayed.
    pub exact: bool,
    /// Share of the targets that was replayed; 1 for the whole log.
    pub rate: f64,
    /// The throughput from the samples, in requests per second.
    pub sampled_throughput: Estimate,
    /// The throughput from the check, in requests per second.
    pub throughput: f64,
    /// The hit ratio from the samples.
    pub sampled_hit_ratio: Estimate,
    /// The hit ratio from the check.
    pub hit_ratio: f64,
}

/// The upper bound of all policies on a cluster, from the whole log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BoundRow {
    /// The number of nodes.
    pub nodes: u16,
    /// Memory per node, in bytes.
    pub memory_bytes: u64,
    /// The bound of the requests that end before the last arrival, as cells count them.
    #[serde(flatten)]
    pub bound: Bound,
}

/// The recommended policy and cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The policy.
    pub policy: String,
    /// The number of nodes.
    pub nodes: u16,
    /// Memory per node, in bytes.
    pub memory_bytes: u64,
    /// The reason for this cluster.
    pub why_cluster: String,
    /// The reason for this policy.
    pub why_policy: String,
    /// Whether content-aware distribution pays on this cluster.
    pub locality_pays: bool,
    /// The comparison with the usual policies on the same cluster.
    pub gains: Vec<Gain>,
    /// Price of a million requests, if prices are known.
    pub price_per_million: Option<f64>,
}

/// The comparison of the recommendation with another policy on the same cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The other policy.
    pub over: String,
    /// Ratio of the throughputs.
    pub throughput_ratio: Estimate,
    /// Difference of the hit ratios, in percentage points.
    pub hit_points: f64,
    /// Ratio of the bytes read from origin.
    pub origin_ratio: f64,
}

/// The effect of a change of policy on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyChange {
    /// The number of nodes.
    pub nodes: u16,
    /// Memory per node, in bytes.
    pub memory_bytes: u64,
    /// Whether the new policy gains at least 5 % of throughput or 5 points of hits, and loses at most as much of
    /// the other, in comparison with the old policy and with each alternative. The low ends of the ranges count.
    pub pays: bool,
    /// The comparison with the alternative that serves most of those over which the new policy does not gain so
    /// much; `None` if there is no such alternative.
    pub rival: Option<Gain>,
    /// The comparison of the new policy with the old one.
    #[serde(flatten)]
    pub gain: Gain,
}

/// A cluster on which content-aware policies gain less than 5 % in throughput and less than 5 points in hits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LowGainCluster {
    /// The number of nodes.
    pub nodes: u16,
    /// Memory per node, in bytes.
    pub memory_bytes: u64,
    /// Throughput of the best content-aware policy relative to the best content-blind policy.
    pub ratio: f64,
    /// The reason for the low gain.
    pub why: String,
}

/// The range of the recommended cell's values when an input varies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The varied input.
    pub what: String,
    /// The lowest and the highest throughput.
    pub throughput: (f64, f64),
    /// The lowest and the highest hit ratio.
    pub hit_ratio: (f64, f64),
}

/// The result of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The version of the JSON schema: "larder-plan/2".
    pub schema: &'static str,
    /// The goal as stated; `None` for the knee.
    pub goal: Option<String>,
    /// Prices as stated.
    pub prices: Option<Prices>,
    /// The load for goals and delays in requests per second, and its source.
    pub load: Option<(f64, String)>,
    /// The facts about the log.
    pub log: LogFacts,
    /// The method of the plan.
    pub method: Method,
    /// The recommendation; `None` if no cell meets the goal.
    pub recommendation: Option<Recommendation>,
    /// Advice for a goal that no cell meets.
    pub unreached: Option<String>,
    /// The clusters on which locality does not pay.
    pub no_gain: Vec<LowGainCluster>,
    /// The sensitivity of the recommended cell.
    pub spreads: Vec<Spread>,
    /// Warnings about the reliability of the values.
    pub warnings: Vec<String>,
    /// Every policy on every cluster, ordered by policy, then nodes, then memory.
    pub cells: Vec<Cell>,
    /// The upper bound of every cluster.
    pub bounds: Vec<BoundRow>,
}

impl Plan {
    /// Returns a cell of the grid.
    pub fn cell(&self, policy: &str, nodes: u16, memory_bytes: u64) -> Option<&Cell> {
        let is = |cell: &&Cell| {
            (cell.policy.as_str(), cell.nodes, cell.memory_bytes) == (policy, nodes, memory_bytes)
        };
        self.cells.iter().find(is)
    }

    /// Returns the upper bound of a cluster.
    pub fn bound(&self, nodes: u16, memory_bytes: u64) -> Option<&Bound> {
        let row = self.bounds.iter().find(|row| (row.nodes, row.memory_bytes) == (nodes, memory_bytes));
        row.map(|row| &row.bound)
    }

    /// Returns the recommended cell.
    pub fn recommended(&self) -> Option<&Cell> {
        let it = self.recommendation.as_ref()?;
        self.cell(&it.policy, it.nodes, it.memory_bytes)
    }
}
