//! What `larder demo --peers` found: one value, printed as tables, written as JSON, drawn as a report.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::demo::result::TraceInfo;

/// The layout of the JSON; changes when a field changes its meaning or goes.
pub(crate) const SCHEMA: &str = "larder-demo-peers/1";

/// The whole outcome.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PeersReport {
    /// Names the layout of this document: "larder-demo-peers/1".
    pub(crate) schema: &'static str,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// What was replayed.
    pub(crate) trace: TraceInfo,
    /// What it was replayed against.
    pub(crate) cluster: ClusterInfo,
    /// What a request takes on this machine, measured before.
    pub(crate) rates: Option<Rates>,
    /// What is varied from point to point.
    pub(crate) sweep: Option<Sweep>,
    /// One point, or one for each value of the sweep.
    pub(crate) points: Vec<Point>,
    /// What the figures say beside the paper's, and why they differ.
    pub(crate) notes: Vec<String>,
    /// Reasons to doubt the figures; empty for a valid demo.
    pub(crate) warnings: Vec<String>,
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sweep {
    /// Memory of each node, from little to the whole working set.
    Memory,
    /// By how much a load differs from the last one told when it is told again: 1, 2, 4, 8, 16.
    LoadStep,
}

/// What the trace was replayed against.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ClusterInfo {
    /// Number of nodes, each a process of its own.
    pub(crate) nodes: usize,
    /// Replacement policy of the nodes' memories.
    pub(crate) cache_kind: String,
    /// Objects of this size and more are served where they are asked for and kept by nobody, in every system.
    pub(crate) large_min_bytes: u64,
    /// The nodes' disks are a model: this is it.
    pub(crate) node_model: String,
    /// How many times faster than the disk of 1998.
    pub(crate) speed: f64,
    /// Clients that each keep one request outstanding (closed loop).
    pub(crate) clients: u32,
    /// T: connections above which a peer is overloaded.
    pub(crate) overload: u32,
    /// Requests after which a peer judges whether to take part.
    pub(crate) window: u32,
    /// Processors of this machine, which nodes, switch and clients share.
    pub(crate) cores: usize,
    /// Longest measured part of a run, seconds; none: to the end of the trace.
    pub(crate) seconds: Option<u64>,
    /// Whether the whole trace warmed the memories, and came again until the measured part ended.
    pub(crate) warm: bool,
    /// Seed of synthetic traces and of the switch.
    pub(crate) seed: u64,
    /// Runs of each system, interleaved; figures are those of the run with the median throughput.
    pub(crate) runs: usize,
}

/// What a request takes, measured on this machine with everything in memory. The model is fed with these.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Rates {
    /// Processor time of a node for a request that it answers from its own memory, microseconds.
    pub(crate) local_us: f64,
    /// Processor time of the clients for a request, microseconds.
    pub(crate) client_us: f64,
    /// Processor time that all nodes together use more for a request that is forwarded, microseconds.
    pub(crate) forward_us: f64,
    /// Share of the requests that were forwarded while that was measured, 0 to 1.
    pub(crate) forwarded: f64,
    /// Requests measured.
    pub(crate) requests: u64,
    /// Mean reply of those requests, bytes.
    pub(crate) reply_bytes_mean: f64,
}

/// All systems under one setting.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Point {
    /// Memory of each node.
    pub(crate) memory_bytes: u64,
    /// The same over the working set.
    pub(crate) memory_share: f64,
    /// By how much a load differs from the last one told when it is told again.
    pub(crate) load_step: u32,
    /// One entry for each system, in the order asked for.
    pub(crate) systems: Vec<SystemReport>,
    /// The analytic model of PRESS beside what was measured; none where `trad` or `press` did not run.
    pub(crate) model: Option<Prediction>,
}

/// One system.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SystemReport {
    /// Its name.
    pub(crate) system: String,
    /// What it is.
    pub(crate) about: String,
    /// The run with the median throughput.
    pub(crate) median: Figures,
    /// Throughput relative to `trad`, where that ran.
    pub(crate) over_trad: Option<f64>,
    /// All runs, in order.
    pub(crate) runs: Vec<Figures>,
    /// Latency distribution of the median run: (milliseconds, share of requests at or below).
    pub(crate) latency_cdf: Vec<(f64, f64)>,
}

/// The figures of one run, measured part only.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Figures {
    /// Good replies a second while every client had work.
    pub(crate) requests_per_s: f64,
    /// Good replies.
    pub(crate) requests: u64,
    /// Of those, from the memory of the node that served them.
    pub(crate) hits: u64,
    /// And not.
    pub(crate) misses: u64,
    /// Requests served by the node that took them.
    pub(crate) local: u64,
    /// Of those, from its memory.
    pub(crate) local_hits: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// LHR: `local_hits` over `local`.
    pub(crate) hit_ratio_local: f64,
    /// THR: `hits` over `hits` and `misses`.
    pub(crate) hit_ratio: f64,
    /// Share of the requests that another node served than the one that took them.
    pub(crate) forwarded: f64,
    /// What peers told one another and decided; none where nodes have no peers.
    pub(crate) peers: Option<PeerFigures>,
    /// Reads of the modelled disks for each request.
    pub(crate) disk_reads: f64,
    /// Mean time of a read, milliseconds; none without reads.
    pub(crate) read_ms: Option<f64>,
    /// Share of the time that a disk worked, mean over the nodes.
    pub(crate) disk_busy: f64,
    /// Median latency.
    pub(crate) latency_ms_p50: f64,
    /// 99th percentile of the latency.
    pub(crate) latency_ms_p99: f64,
    /// Requests served by the node that served most, over the mean; 1 is even.
    pub(crate) imbalance: f64,
    /// Processor time of the nodes for each request, microseconds.
    pub(crate) cpu_us_nodes: f64,
    /// Of the switch; 0 without one.
    pub(crate) cpu_us_switch: f64,
    /// Of the clients.
    pub(crate) cpu_us_clients: f64,
    /// Share of all processors that were busy, whatever they did; none where it cannot be read.
    pub(crate) cpu_busy: Option<f64>,
    /// Share of all processors that the demo's own processes used.
    pub(crate) cpu_own: Option<f64>,
    /// Length of the measured part.
    pub(crate) seconds: f64,
    /// Counts of the whole run, warm-up included.
    pub(crate) whole: WholeRun,
}

/// What peers did.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct PeerFigures {
    /// Broadcasts of a load for each request. One goes to every other node.
    pub(crate) load_broadcasts: f64,
    /// Broadcasts of what a node began or ceased to have in memory, for each request; several changes share one.
    pub(crate) cache_broadcasts: f64,
    /// Messages of the protocol for each request, one for each receiver.
    pub(crate) messages: f64,
    /// Their bytes for each request.
    pub(crate) message_bytes: f64,
    /// Share of the decisions by reason.
    pub(crate) decisions: BTreeMap<String, f64>,
    /// Nodes that took part at the end; the others worked by themselves.
    pub(crate) sharing: usize,
    /// Routing tables that the nodes made of their own counts.
    pub(crate) tables: u64,
}

/// Counts of a whole run, from both sides, which must agree.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct WholeRun {
    /// Requests that clients sent and saw the end of.
    pub(crate) sent: u64,
    /// Requests that nodes served, each once.
    pub(crate) served: u64,
    /// Requests that peers decided on; 0 where nodes have no peers.
    pub(crate) decided: u64,
    /// Requests that peers forwarded.
    pub(crate) forwarded: u64,
    /// Requests that peers took from others.
    pub(crate) taken: u64,
    /// Broadcasts of loads.
    pub(crate) loads_told: u64,
    /// Broadcasts of changes of memory.
    pub(crate) changes_told: u64,
}

/// The analytic model beside the measurement.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Prediction {
    /// Zipf exponent of the requests, fitted.
    pub(crate) alpha: f64,
    /// Mean time of a read in the `trad` run, milliseconds.
    pub(crate) read_ms: f64,
    /// What the model says.
    pub(crate) rows: Vec<Predicted>,
    /// A read of this length would make `trad` as fast as `press`; with shorter ones `trad` is faster. Milliseconds.
    pub(crate) break_even_ms: Option<f64>,
    /// A read over the processor time of a local reply; the paper's is 21.
    pub(crate) read_over_local: f64,
    /// Forwarding over the processor time of a local reply; the paper's is 0.27, on kernel TCP 1.9.
    pub(crate) forward_over_local: f64,
}

/// One row of the model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Predicted {
    /// Which system.
    pub(crate) system: String,
    /// Where its reads and forwarded share come from.
    pub(crate) shares: &'static str,
    /// Reads from disk for each request.
    pub(crate) reads: f64,
    /// Mean time of one, milliseconds.
    pub(crate) read_ms: f64,
    /// Share of the requests that are forwarded.
    pub(crate) forwarded: f64,
    /// Requests a second.
    pub(crate) requests_per_s: f64,
    /// Processors that others left to the demo, mean of the run.
    pub(crate) processors: f64,
    /// What is used up first: cpu or disk.
    pub(crate) binds: &'static str,
    /// What was measured.
    pub(crate) measured: f64,
    /// Prediction over measurement, less one.
    pub(crate) error: f64,
}

impl Point {
    /// The system of that name.
    pub(crate) fn system(&self, name: &str) -> Option<&SystemReport> {
        self.systems.iter().find(|report| report.system == name)
    }
}

impl PeersReport {
    /// What names a point in tables and on axes.
    pub(crate) fn setting(&self, point: &Point) -> String {
        match self.sweep {
            Some(Sweep::LoadStep) => point.load_step.to_string(),
            _ => format!("{} ({:.1} %)", larder_core::Bytes(point.memory_bytes), point.memory_share * 100.0),
        }
    }

    /// Where it stands on an axis.
    pub(crate) fn place(&self, point: &Point) -> f64 {
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
        let row = |system: &str, error| Predicted {
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

    /// Two systems with made-up figures: `press` half as fast again as `trad`.
    pub(crate) fn sample() -> PeersReport {
        let figures = |requests_per_s, hit_ratio, forwarded| Figures {
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
            ..Figures::default()
        };
        let system = |name: &str, median: Figures, over_trad| SystemReport {
            system: name.to_owned(),
            about: "a sample".to_owned(),
            runs: vec![median.clone()],
            median,
            over_trad: Some(over_trad),
            latency_cdf: vec![(1.0, 0.5), (20.0, 0.99)],
        };
        let point = |memory_share, load_step| Point {
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
            cluster: ClusterInfo {
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
