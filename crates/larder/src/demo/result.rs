//! What a demo found: one value, printed as a table, written as JSON, drawn as a report.

use schemars::JsonSchema;
use serde::Serialize;

/// The layout of the JSON; changes when a field changes its meaning or goes.
pub(crate) const SCHEMA: &str = "larder-demo/1";

/// The whole outcome of `larder demo`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DemoReport {
    /// Names the layout of this document: "larder-demo/1".
    pub(crate) schema: &'static str,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// What was replayed.
    pub(crate) trace: TraceInfo,
    /// What it was replayed against.
    pub(crate) cluster: ClusterInfo,
    /// One entry for each policy, in the order asked for.
    pub(crate) policies: Vec<PolicyReport>,
    /// Reasons to doubt the figures; empty for a valid demo.
    pub(crate) warnings: Vec<String>,
}

/// What was replayed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TraceInfo {
    /// The log file, or the recipe and seed of a synthetic trace.
    pub(crate) source: String,
    /// Requests replayed under each policy, warm-up included.
    pub(crate) requests: usize,
    /// The first requests, which warm the caches and are not measured.
    pub(crate) warmup_requests: usize,
    /// Distinct targets among the requests.
    pub(crate) targets: usize,
    /// Sum of the targets' sizes (a target's size is its largest reply).
    pub(crate) working_set_bytes: u64,
    /// Mean size of the replies replayed.
    pub(crate) reply_bytes_mean: f64,
    /// Share of the hottest target in the requests, 0 to 1.
    pub(crate) hottest_share: f64,
    /// Distinct targets first asked for in the measured part: no policy can hit on these.
    pub(crate) cold_misses: usize,
}

/// What the trace was replayed against.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ClusterInfo {
    /// Number of nodes, each a process of its own.
    pub(crate) nodes: usize,
    /// Memory cache of each node.
    pub(crate) cache_bytes: u64,
    /// Replacement policy of the caches.
    pub(crate) cache_kind: String,
    /// The nodes' disks and processors are a model: this is it.
    pub(crate) node_model: String,
    /// How many times faster than the model of 1998.
    pub(crate) speed: f64,
    /// Clients that each keep one request outstanding (closed loop).
    pub(crate) clients: u32,
    /// T_low.
    pub(crate) t_low: u32,
    /// T_high.
    pub(crate) t_high: u32,
    /// K of `lard-r`: the paper's 20 s divided by `speed`.
    pub(crate) replication_decay_s: f64,
    /// Hash of the targets.
    pub(crate) hash_function: &'static str,
    /// Seed of placement and of synthetic traces.
    pub(crate) seed: u64,
    /// Runs of each policy, interleaved; figures are those of the run with the median throughput.
    pub(crate) runs: usize,
    /// A node counts as idle while its load is below this (40 % of T_low, as in the LARD paper).
    pub(crate) idle_below: u32,
}

/// One policy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PolicyReport {
    /// Name of the policy.
    pub(crate) policy: String,
    /// The run with the median throughput.
    pub(crate) median: Figures,
    /// Throughput relative to `wrr`, where that was among the policies.
    pub(crate) ratio_to_wrr: Option<f64>,
    /// All runs, in order.
    pub(crate) runs: Vec<Figures>,
    /// Loads of the nodes in the median run.
    pub(crate) node_loads: Vec<NodeLoad>,
    /// Latency distribution of the median run: (milliseconds, share of requests at or below).
    pub(crate) latency_cdf: Vec<(f64, f64)>,
    /// Throughput over the measured part of the median run: (seconds, requests a second).
    pub(crate) throughput: Vec<(f64, f64)>,
}

/// The figures of one run, measured part only.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Figures {
    /// Completed requests a second, whole cluster: from the first measured request to the last byte of the last.
    pub(crate) requests_per_s: f64,
    /// The same without the end, in which clients run out of requests one by one while the slowest node works on.
    pub(crate) requests_per_s_busy: Option<f64>,
    /// Share of the requests answered from a node's memory, 0 to 1, as the nodes' Cache-Status says.
    pub(crate) hit_ratio: f64,
    /// Median latency.
    pub(crate) latency_ms_p50: f64,
    /// 99th percentile of the latency.
    pub(crate) latency_ms_p99: f64,
    /// Largest time-averaged node load divided by the mean of all nodes' time-averaged loads; 1 is even.
    pub(crate) load_imbalance: f64,
    /// Share of the time a node was idle, averaged over the nodes, 0 to 1.
    pub(crate) idle_fraction: f64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Length of the measured part.
    pub(crate) seconds: f64,
    /// Share of all processor cores that were busy, whatever they did, 0 to 1; none where it cannot be read.
    pub(crate) cpu_busy: Option<f64>,
    /// Share of all processor cores that the demo's own processes used: nodes, switch and load; 0 to 1.
    pub(crate) cpu_own: Option<f64>,
}

/// The load of one node over the measured part.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct NodeLoad {
    /// Name of the node.
    pub(crate) name: String,
    /// Mean active requests over the samples.
    pub(crate) mean: f64,
    /// Most active requests in any sample.
    pub(crate) max: u32,
    /// Share of the samples with a load below `idle_below`.
    pub(crate) idle_fraction: f64,
}

impl DemoReport {
    /// The policy report of that name.
    pub(crate) fn policy(&self, name: &str) -> Option<&PolicyReport> {
        self.policies.iter().find(|policy| policy.policy == name)
    }

    /// The policy that served most.
    pub(crate) fn best(&self) -> Option<&PolicyReport> {
        let by_speed = |a: &&PolicyReport, b: &&PolicyReport| {
            a.median.requests_per_s.total_cmp(&b.median.requests_per_s)
        };
        self.policies.iter().max_by(by_speed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two policies with made-up figures: `lard-r` twice as fast as `wrr`.
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
