//! Results of `larder demo --handoff` as data.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::packets::PacketTrace;

/// Name and version of the JSON. The version rises when a field changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "larder-demo-handoff/1";

/// All results.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct HandoffReport {
    /// [`SCHEMA`].
    pub(crate) schema: &'static str,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// Description of the requests.
    pub(crate) workload: String,
    /// Nodes behind the switch.
    pub(crate) nodes: usize,
    /// Clients. Each has one request outstanding, and opens a connection for each request.
    pub(crate) clients: u32,
    /// Content memory of each larder node, bytes.
    pub(crate) cache_bytes: u64,
    /// Description of how switch and total processor time were measured.
    pub(crate) counted: String,
    /// One row for each mechanism and server.
    pub(crate) rows: Vec<HandoffRow>,
    /// Combinations that were left out, with the reasons.
    pub(crate) left_out: Vec<String>,
}

/// Results of one run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Row")]
pub(crate) struct HandoffRow {
    /// Handoff mechanism in the switch's config.
    pub(crate) setting: String,
    /// Server on the nodes: larder or nginx.
    pub(crate) server: String,
    /// Good replies per second.
    pub(crate) requests_per_s: f64,
    /// Processor time of the switch per request, microseconds: its process, and the kernel's receive time if
    /// it is known.
    pub(crate) front_us: f64,
    /// The part that the kernel uses to receive packets; `None` if it is unknown and not included.
    pub(crate) front_receive_us: Option<f64>,
    /// Processor time of all hosts per request, with clients, microseconds.
    pub(crate) total_us: f64,
    /// Median latency, milliseconds.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the latency, milliseconds.
    pub(crate) p99_ms: f64,
    /// Share of replies from a node's memory; `None` if the servers do not report it.
    pub(crate) hit_ratio: Option<f64>,
    /// Share of connections by mechanism and reason, such as `cookie/fast`.
    pub(crate) delivered: BTreeMap<String, f64>,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// The packets of one connection.
    pub(crate) trace: PacketTrace,
}

impl HandoffRow {
    /// Returns the share of connections that were handed off, from 0 to 1.
    pub(crate) fn handoff_share(&self) -> f64 {
        let is_handoff = |name: &&String| name.starts_with("cookie/") || name.starts_with("repair/");
        self.delivered.iter().filter(|(name, _)| is_handoff(name)).fold(0.0, |sum, (_, share)| sum + share)
    }
}
