//! Results of `larder demo --peers`, which are printed as tables, written as JSON and drawn as a report.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::demo::result::TraceInfo;

/// Name and version of the JSON. The version rises when a field changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "larder-demo-peers/1";

/// All results.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PeersReport {
    /// Name and version of this document: "larder-demo-peers/1".
    pub(crate) schema: &'static str,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// The replayed trace.
    pub(crate) trace: TraceInfo,
    /// The cluster.
    pub(crate) cluster: PeersClusterInfo,
    /// Measured cost of a request on this machine.
    pub(crate) rates: Option<Rates>,
    /// The parameter that varies between the points, if any.
    pub(crate) sweep: Option<Sweep>,
    /// One point, or one for each value of the sweep.
    pub(crate) points: Vec<SweepPoint>,
    /// Comparisons with the papers, and reasons for differences.
    pub(crate) notes: Vec<String>,
    /// Reasons to doubt the figures; empty for a valid demo.
    pub(crate) warnings: Vec<String>,
}

/// The parameter that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sweep {
    /// Memory of each node, from little to the whole working set.
    Memory,
    /// Load change that triggers a new announcement: 1, 2, 4, 8, 16.
    LoadStep,
}

/// The cluster to which the trace was replayed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ClusterInfo")]
pub(crate) struct PeersClusterInfo {
    /// Number of nodes, each a process of its own.
    pub(crate) nodes: usize,
    /// Replacement policy of the nodes' memories.
    pub(crate) cache_kind: String,
    /// Objects of this size and more are served by the node that received the request, and no system keeps
    /// them in memory.
    pub(crate) large_min_bytes: u64,
    /// Description of the modelled disks.
    pub(crate) node_model: String,
    /// Speed relative to the disk of 1998.
    pub(crate) speed: f64,
    /// Clients that each keep one request outstanding (closed loop).
    pub(crate) clients: u32,
    /// T: the number of connections above which a peer is overloaded.
    pub(crate) overload: u32,
    /// Requests between two evaluations of whether a peer cooperates.
    pub(crate) window: u32,
    /// Processors of this machine, which nodes, switch and clients share.
    pub(crate) cores: usize,
    /// Longest measured part of a run, seconds; `null` means to the end of the trace.
    pub(crate) seconds: Option<u64>,
    /// Whether the whole trace warmed the memories, and was then repeated until the measured part ended.
    pub(crate) warm: bool,
    /// Seed of synthetic traces and of the switch.
    pub(crate) seed: u64,
    /// Runs of each system, interleaved. The figures are those of the run with the median throughput.
    pub(crate) runs: usize,
}

/// Cost of a request, measured on this machine with all targets in memory. These are inputs of the model.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Rates {
    /// Processor time of a node for a request that it answers from its own memory, microseconds.
    pub(crate) local_us: f64,
    /// Processor time of the clients for a request, microseconds.
    pub(crate) client_us: f64,
    /// Additional processor time of all nodes for a forwarded request, microseconds.
    pub(crate) forward_us: f64,
    /// Share of requests that were forwarded during the measurement, from 0 to 1.
    pub(crate) forwarded: f64,
    /// Requests measured.
    pub(crate) requests: u64,
    /// Mean reply of those requests, bytes.
    pub(crate) reply_bytes_mean: f64,
}

/// Results of all systems under one setting.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Point")]
pub(crate) struct SweepPoint {
    /// Memory of each node.
    pub(crate) memory_bytes: u64,
    /// Memory of each node over the working set.
    pub(crate) memory_share: f64,
    /// Difference of a load from the last reported load at which a node reports it again.
    pub(crate) load_step: u32,
    /// One entry for each system, in the requested order.
    pub(crate) systems: Vec<SystemReport>,
    /// Prediction of the analytic model of PRESS; `null` if `trad` or `press` did not run.
    pub(crate) model: Option<Prediction>,
}

/// Results of one system.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SystemReport {
    /// Name of the system.
    pub(crate) system: String,
    /// Description of the system.
    pub(crate) about: String,
    /// The run with the median throughput.
    pub(crate) median: PeersFigures,
    /// Throughput relative to `trad`, if `trad` ran.
    pub(crate) over_trad: Option<f64>,
    /// All runs, in order.
    pub(crate) runs: Vec<PeersFigures>,
    /// Latency distribution of the median run: (milliseconds, share of requests at or below).
    pub(crate) latency_cdf: Vec<(f64, f64)>,
}

/// Figures of the measured part of one run.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Figures")]
pub(crate) struct PeersFigures {
    /// Good replies per second while every client had requests.
    pub(crate) requests_per_s: f64,
    /// Good replies.
    pub(crate) requests: u64,
    /// Good replies from the memory of the node that served them.
    pub(crate) hits: u64,
    /// Good replies that were not from memory.
    pub(crate) misses: u64,
    /// Requests that the receiving node served.
    pub(crate) local: u64,
    /// Requests that the receiving node served from its memory.
    pub(crate) local_hits: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// LHR: `local_hits` over `local`.
    pub(crate) hit_ratio_local: f64,
    /// THR: `hits` over `hits` and `misses`.
    pub(crate) hit_ratio: f64,
    /// Share of requests that another node served than the receiving one.
    pub(crate) forwarded: f64,
    /// Messages and decisions of the peers; `null` if nodes have no peers.
    pub(crate) peers: Option<PeerFigures>,
    /// Reads of the modelled disks per request.
    pub(crate) disk_reads: f64,
    /// Mean time of a read, milliseconds; `null` without reads.
    pub(crate) read_ms: Option<f64>,
    /// Share of time that a disk was busy, mean of all nodes.
    pub(crate) disk_busy: f64,
    /// Median latency.
    pub(crate) latency_ms_p50: f64,
    /// 99th percentile of the latency.
    pub(crate) latency_ms_p99: f64,
    /// Requests of the busiest node over the mean of all nodes; 1 is even.
    pub(crate) imbalance: f64,
    /// Processor time of the nodes per request, microseconds.
    pub(crate) cpu_us_nodes: f64,
    /// Processor time of the switch per request, microseconds; 0 without a switch.
    pub(crate) cpu_us_switch: f64,
    /// Processor time of the clients per request, microseconds.
    pub(crate) cpu_us_clients: f64,
    /// Utilization of all processors by all processes; `null` if it cannot be read.
    pub(crate) cpu_busy: Option<f64>,
    /// Utilization of all processors by the demo's own processes.
    pub(crate) cpu_own: Option<f64>,
    /// Length of the measured part.
    pub(crate) seconds: f64,
    /// Counts of the whole run, warm-up included.
    pub(crate) whole: WholeRun,
}

/// Activity of the peers.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct PeerFigures {
    /// Broadcasts of a load per request. A broadcast goes to each other node.
    pub(crate) load_broadcasts: f64,
    /// Broadcasts of cache changes per request. Several changes may share one broadcast.
    pub(crate) cache_broadcasts: f64,
    /// Protocol messages per request, one for each receiver.
    pub(crate) messages: f64,
    /// Bytes of protocol messages per request.
    pub(crate) message_bytes: f64,
    /// Share of decisions by reason.
    pub(crate) decisions: BTreeMap<String, f64>,
    /// Nodes that cooperated at the end. The others worked independently.
    pub(crate) sharing: usize,
    /// Routing tables that the nodes built from their own counts.
    pub(crate) tables: u64,
}

/// Counts of a whole run from both sides, which must agree.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct WholeRun {
    /// Requests of the clients that ended.
    pub(crate) sent: u64,
    /// Requests that nodes served, each counted once.
    pub(crate) served: u64,
    /// Requests that peers decided; 0 if nodes have no peers.
    pub(crate) decided: u64,
    /// Requests that peers forwarded.
    pub(crate) forwarded: u64,
    /// Requests that peers received from other peers.
    pub(crate) taken: u64,
    /// Broadcasts of loads.
    pub(crate) loads_told: u64,
    /// Broadcasts of cache changes.
    pub(crate) changes_told: u64,
}

/// Prediction of the analytic model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Prediction {
    /// Zipf exponent of the requests, fitted.
    pub(crate) alpha: f64,
    /// Mean time of a read in the `trad` run, milliseconds.
    pub(crate) read_ms: f64,
    /// Predicted and measured throughput.
    pub(crate) rows: Vec<PredictionRow>,
    /// Read time at which `trad` is as fast as `press`, milliseconds. With shorter reads `trad` is faster.
    pub(crate) break_even_ms: Option<f64>,
    /// Read time over the processor time of a local reply. The paper's is 21.
    pub(crate) read_over_local: f64,
    /// Time of forwarding over the processor time of a local reply. The paper's is 0.27, and 1.9 on kernel
    /// TCP.
    pub(crate) forward_over_local: f64,
}

/// One prediction.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Predicted")]
pub(crate) struct PredictionRow {
    /// Name of the system.
    pub(crate) system: String,
    /// Origin of the reads and the forwarded share.
    pub(crate) shares: &'static str,
    /// Reads from disk per request.
    pub(crate) reads: f64,
    /// Mean time of a read, milliseconds.
    pub(crate) read_ms: f64,
    /// Share of requests that are forwarded.
    pub(crate) forwarded: f64,
    /// Predicted requests per second.
    pub(crate) requests_per_s: f64,
    /// Processors that were available to the demo, mean of the run.
    pub(crate) processors: f64,
    /// The bottleneck: cpu or disk.
    pub(crate) binds: &'static str,
    /// Measured requests per second.
    pub(crate) measured: f64,
    /// Prediction over measurement, minus one.
    pub(crate) error: f64,
}

impl SweepPoint {
    /// Returns the results of a system.
    pub(crate) fn system(&self, name: &str) -> Option<&SystemReport> {
        self.systems.iter().find(|report| report.system == name)
    }
}

impl PeersReport {
    /// Returns the label of a point in tables and on axes.
    pub(crate) fn setting(&self, point: &SweepPoint) -> String {
        match self.sweep {
            Some(Sweep::LoadStep) => point.load_step.to_string(),
            _ => format!("{} ({:.1} %)", larder_core::Bytes(point.memory_bytes), point.memory_share * 100.0),
        }
    }

    /// Returns the position of a point on an axis.
    pub(crate) fn axis_value(&self, point: &SweepPoint) -> f64 {
        match self.sweep {
            Some(Sweep::LoadStep) => f64::from(point.load_step),
            _ => point.memory_share * 100.0,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn prediction() -> Prediction {
        let row = |system: &str, error| PredictionRow {
            system: system.to_owned(),
            shares: "measured",
            reads: 0.1,
            read_ms: 10.0,
            forwarded: 0.7,
            requests_per_s: 1_100.0,
            processors: 1.9,
            binds: "cpu",
            measured: 1_000.0,
            error,
        };
        Prediction {
            alpha: 0.8,
            read_ms: 10.0,
            rows: vec![row("trad", 0.1), row("press", 0.2), row("press", -0.1)],
            break_even_ms: Some(5.0),
            read_over_local: 20.0,
            forward_over_local: 2.0,
        }
    }

    /// Returns two systems with invented figures. `press` has 1.5 times the throughput of `trad`.
    pub(crate) fn sample() -> PeersReport {
        let figures = |requests_per_s, hit_ratio, forwarded| PeersFigures {
            requests_per_s,
            hit_ratio,
            hit_ratio_local: hit_ratio,
            forwarded,
            read_ms: Some(10.0),
            cpu_busy: Some(0.5),
            peers: (forwarded > 0.0).then(|| PeerFigures {
                sharing: 8,
                load_broadcasts: 0.3,
                ..PeerFigures::default()
            }),
            ..PeersFigures::default()
        };
        let system = |name: &str, median: PeersFigures, over_trad| SystemReport {
            system: name.to_owned(),
            about: "a sample".to_owned(),
            runs: vec![median.clone()],
            median,
            over_trad: Some(over_trad),
            latency_cdf: vec![(1.0, 0.5), (20.0, 0.99)],
        };
        let point = |memory_share, load_step| SweepPoint {
            memory_bytes: 16_000_000,
            memory_share,
            load_step,
            systems: vec![
                system("trad", figures(1_000.0, 0.88, 0.0), 1.0),
                system("press", figures(1_500.0, 0.97, 0.72), 1.5),
            ],
            model: Some(prediction()),
        };
        PeersReport {
            schema: SCHEMA,
            version: "0.0.0",
            trace: crate::demo::result::tests::sample().trace,
            cluster: PeersClusterInfo {
                nodes: 8,
                cache_kind: "lru".into(),
                large_min_bytes: 131_072,
                node_model: "a disk of 1998".into(),
                speed: 2.0,
                clients: 320,
                overload: 80,
                window: 100,
                cores: 2,
                seconds: None,
                warm: false,
                seed: 1,
                runs: 1,
            },
            rates: None,
            sweep: None,
            points: vec![point(0.12, 4), point(0.5, 8)],
            notes: vec!["a note".into()],
            warnings: vec!["a warning".into()],
        }
    }
}
