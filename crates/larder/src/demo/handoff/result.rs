//! The outcome of `larder demo --handoff` as data.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::packets::Trace;

/// Name and version of the JSON. The number rises when a field changes its meaning or goes.
pub(crate) const SCHEMA: &str = "larder-demo-handoff/1";

/// Everything that was measured.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct HandoffReport {
    /// [`SCHEMA`].
    pub(crate) schema: &'static str,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// What was asked for.
    pub(crate) workload: String,
    /// Nodes behind the switch.
    pub(crate) nodes: usize,
    /// Clients, each with one request outstanding, a new connection for each.
    pub(crate) clients: u32,
    /// Memory for content of each larder node. Bytes.
    pub(crate) cache_bytes: u64,
    /// How front-end and total processor time were counted.
    pub(crate) counted: String,
    /// One row for each mechanism and server.
    pub(crate) rows: Vec<Row>,
    /// What could not be shown, and why.
    pub(crate) left_out: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Row {
    /// What the switch was set to.
    pub(crate) setting: String,
    /// What served: larder or nginx.
    pub(crate) server: String,
    /// Good replies a second.
    pub(crate) requests_per_s: f64,
    /// Processor time of the front-end per request, microseconds: its process, and receiving where that is known.
    pub(crate) front_us: f64,
    /// Of that, the kernel's receiving for it; `None` where it is not known, and then not counted.
    pub(crate) front_receive_us: Option<f64>,
    /// Processor time of all hosts, clients included, per request, microseconds.
    pub(crate) total_us: f64,
    /// Median latency, milliseconds.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the latency, milliseconds.
    pub(crate) p99_ms: f64,
    /// Share of the replies that came from a node's memory; `None` if the servers do not say.
    pub(crate) hit_ratio: Option<f64>,
    /// Share of the connections by mechanism and reason, as `cookie/fast`.
    pub(crate) delivered: BTreeMap<String, f64>,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// One connection, packet by packet.
    pub(crate) trace: Trace,
}

impl Row {
    /// Share of the connections that were handed to a node, 0 to 1.
    pub(crate) fn handed(&self) -> f64 {
        let handed = |name: &&String| name.starts_with("cookie/") || name.starts_with("repair/");
        self.delivered.iter().filter(|(name, _)| handed(name)).fold(0.0, |sum, (_, share)| sum + share)
    }
}
