//! `[node.report]` as written, with its defaults.

use larder_node::ReportConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Span, Texts};

/// Written in place of a path that is not served.
pub(super) const OFF: &str = "off";

/// The addresses of this host itself.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1"];

/// `[node.report]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawReport {
    /// Addresses of switches that may ask for reports, beside node.trusted_relays. Everybody else gets 404, and so do clients whose
    /// connections a switch has handed over.
    pub(crate) from: Texts,
    /// File with a secret that switches must prove (switch.signals.secret) in place of an address: other programs on their
    /// hosts get 404. For its owner only; made by `larder keys new FILE`. A second line may hold another secret that is accepted
    /// too. Read at each reload. Unset: the addresses decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/report.key")]
    pub(crate) secret: Option<String>,
    /// Whose processor time counts as the node's, where none is modelled: "machine", over all its processors, for a
    /// node that has a machine to itself; "process", out of one processor, for nodes that share one.
    #[schemars(extend("enum" = ["machine", "process"]))]
    pub(crate) cpu: String,
    /// Path of the load counters; "off" for none.
    pub(crate) load_path: String,
    /// Path of the stream of cache events; "off" for none.
    pub(crate) events_path: String,
    /// Streams of cache events at once; a further one gets 503. 0 to 64.
    pub(crate) subscribers_max: usize,
    /// Cache events that wait for one stream, of 24 bytes each; beyond, the stream is cut and the switch begins anew.
    /// 16 to 1048576.
    pub(crate) backlog_max: usize,
    /// Time between two heartbeats on a stream of cache events. 100ms to 1m.
    pub(crate) heartbeat: Span,
}

impl Default for RawReport {
    fn default() -> Self {
        let report = ReportConfig::default();
        Self {
            from: Texts(LOOPBACK.map(str::to_owned).to_vec()),
            secret: None,
            cpu: report.cpu.name().to_owned(),
            load_path: report.load_path.unwrap_or_else(|| OFF.to_owned()),
            events_path: report.events_path.unwrap_or_else(|| OFF.to_owned()),
            subscribers_max: report.subscribers_max,
            backlog_max: report.backlog_max,
            heartbeat: Span(report.heartbeat),
        }
    }
}
