//! Results of `larder demo`, which are printed as a table, written as JSON and drawn as a report.

use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the JSON. The version rises when a field changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "larder-demo/1";

/// All results of `larder demo`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DemoReport {
    /// Name and version of this document: "larder-demo/1".
    pub schema: &'static str,
    /// Version of larder.
    pub version: &'static str,
    /// The replayed trace.
    pub trace: TraceInfo,
    /// The cluster.
    pub cluster: ClusterInfo,
    /// One entry for each policy, in the requested order.
    pub policies: Vec<PolicyReport>,
    /// Reasons to doubt the figures; empty for a valid demo.
    pub warnings: Vec<String>,
}

/// The replayed trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TraceInfo {
    /// The log file, or the recipe and seed of a synthetic trace.
    pub source: String,
    /// Requests replayed under each policy, warm-up included.
    pub requests: usize,
    /// The first requests, which warm the caches and are not measured.
    pub warmup_requests: usize,
    /// Distinct targets among the requests.
    pub targets: usize,
    /// Sum of the targets' sizes (a target's size is its largest reply).
    pub working_set_bytes: u64,
    /// Mean size of the replies replayed.
    pub reply_bytes_mean: f64,
    /// Share of the hottest target in the requests, 0 to 1.
    pub hottest_share: f64,
    /// Distinct targets that are first requested in the measured part. No policy can hit on these requests.
    pub cold_misses: usize,
}

/// The cluster to which the trace was replayed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ClusterInfo {
    /// Number of nodes, each a process of its own.
    pub nodes: usize,
    /// Memory cache of each node.
    pub cache_bytes: u64,
    /// Replacement policy of the caches.
    pub cache_kind: String,
    /// Description of the modelled disks and processors.
    pub node_model: String,
    /// Speed relative to the model of 1998.
    pub speed: f64,
    /// Clients that each keep one request outstanding (closed loop).
    pub clients: u32,
    /// T_low.
    pub t_low: u32,
    /// T_high.
    pub t_high: u32,
    /// K of `lard-r`: the paper's 20 s divided by `speed`.
    pub replication_decay_s: f64,
    /// Hash of the targets.
    pub hash_function: &'static str,
    /// Seed of placement and of synthetic traces.
    pub seed: u64,
    /// Runs of each policy, interleaved. The figures are those of the run with the median throughput.
    pub runs: usize,
    /// A node counts as idle while its load is below this (40 % of T_low, as in the LARD paper).
    pub idle_below: u32,
}

/// Results of one policy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PolicyReport {
    /// Name of the policy.
    pub policy: String,
    /// The run with the median throughput.
    pub median: Figures,
    /// Throughput relative to `wrr`, if `wrr` ran.
    pub ratio_to_wrr: Option<f64>,
    /// All runs, in order.
    pub runs: Vec<Figures>,
    /// Loads of the nodes in the median run.
    pub node_loads: Vec<NodeLoad>,
    /// Latency distribution of the median run: (milliseconds, share of requests at or below).
    pub latency_cdf: Vec<(f64, f64)>,
    /// Throughput over the measured part of the median run: (seconds, requests per second).
    pub throughput: Vec<(f64, f64)>,
}

/// Figures of the measured part of one run.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Figures {
    /// Completed requests per second of the whole cluster, from the first measured request to the last byte
    /// of the last one.
    pub requests_per_s: f64,
    /// Completed requests per second without the end of the run. In that phase clients have no more requests
    /// while the slowest node still works.
    pub requests_per_s_busy: Option<f64>,
    /// Share of requests answered from a node's memory, from 0 to 1, according to the nodes' Cache-Status.
    pub hit_ratio: f64,
    /// Median latency.
    pub latency_ms_p50: f64,
    /// 99th percentile of the latency.
    pub latency_ms_p99: f64,
    /// Largest time-averaged node load divided by the mean of all nodes' time-averaged loads; 1 is even.
    pub load_imbalance: f64,
    /// Share of time that a node was idle, mean of all nodes, from 0 to 1.
    pub idle_fraction: f64,
    /// Requests that failed.
    pub errors: u64,
    /// Length of the measured part.
    pub seconds: f64,
    /// Utilization of all cores by all processes, from 0 to 1; `null` if it cannot be read.
    pub cpu_busy: Option<f64>,
    /// Utilization of all cores by the demo's own processes (nodes, switch and load), from 0 to 1.
    pub cpu_own: Option<f64>,
}

/// The load of one node over the measured part.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NodeLoad {
    /// Name of the node.
    pub name: String,
    /// Mean active requests over the samples.
    pub mean: f64,
    /// Largest number of active requests in a sample.
    pub max: u32,
    /// Share of the samples with a load below `idle_below`.
    pub idle_fraction: f64,
}

impl DemoReport {
    /// Returns the report of a policy.
    pub fn policy(&self, name: &str) -> Option<&PolicyReport> {
        self.policies.iter().find(|policy| policy.policy == name)
    }

    /// Returns the report of the policy with the highest throughput.
    pub fn best(&self) -> Option<&PolicyReport> {
        let by_speed = |a: &&PolicyReport, b: &&PolicyReport| {
            a.median.requests_per_s.total_cmp(&b.median.requests_per_s)
        };
        self.policies.iter().max_by(by_speed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns two policies with invented figures. `lard-r` has twice the throughput of `wrr`.
    pub(crate) fn sample() -> DemoReport {
        let figures = |requests_per_s: f64, hit_ratio: f64| Figures {
            requests_per_s,
            requests_per_s_busy: None,
            hit_ratio,
            latency_ms_p50: 12.5,
            latency_ms_p99: 480.0,
            load_imbalance: 1.08,
            idle_fraction: 0.01,
            errors: 0,
            seconds: 10.0,
            cpu_busy: Some(0.5),
            cpu_own: Some(0.4),
        };
        let policy = |name: &str, median: Figures, ratio: f64| PolicyReport {
            policy: name.to_owned(),
            median,
            ratio_to_wrr: Some(ratio),
            runs: vec![median],
            node_loads: vec![NodeLoad { name: "node-1".into(), mean: 40.0, max: 70, idle_fraction: 0.01 }],
            latency_cdf: vec![(1.0, 0.1), (12.5, 0.5), (480.0, 0.99)],
            throughput: vec![(0.5, 900.0), (1.5, 1_000.0)],
        };
        DemoReport {
            schema: SCHEMA,
            version: "0.0.0",
            trace: TraceInfo {
                source: "a sample".into(),
                requests: 900,
                warmup_requests: 300,
                targets: 100,
                working_set_bytes: 100_000_000,
                reply_bytes_mean: 9_000.0,
                hottest_share: 0.05,
                cold_misses: 11,
            },
            cluster: ClusterInfo {
                nodes: 1,
                cache_bytes: 16_000_000,
                cache_kind: "gds".into(),
                node_model: "a node of 1998".into(),
                speed: 1.0,
                clients: 24,
                t_low: 25,
                t_high: 65,
                replication_decay_s: 20.0,
                hash_function: "XXH3-64",
                seed: 7,
                runs: 1,
                idle_below: 10,
            },
            policies: vec![
                policy("wrr", figures(500.0, 0.6), 1.0),
                policy("lard-r", figures(1_000.0, 0.95), 2.0),
            ],
            warnings: vec!["a warning".into()],
        }
    }

    #[test]
    fn the_best_is_the_fastest() {
        assert_eq!(sample().best().map(|best| best.policy.as_str()), Some("lard-r"));
    }
}
