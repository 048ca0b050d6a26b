//! `[switch.signals]` as written, with its defaults.

use larder_core::Bytes;
use larder_front::{CacheSignalsConfig, SignalsConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span};

/// `[switch.signals]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSignals {
    /// Where load reports come from: "larder" (larder nodes' /.larder/load), "node-exporter" (Prometheus' exporter
    /// beside each node), "orca" (headers of the nodes' replies) or "off". Unset: larder if a policy in use goes by
    /// reports, else off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["off", "larder", "node-exporter", "orca"]), example = &"node-exporter")]
    pub(crate) source: Option<String>,
    /// File with the secret that larder nodes want proved (node.report.secret). For its owner only; the first line counts. Unset: nodes
    /// go by addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/report.key")]
    pub(crate) secret: Option<String>,
    /// Time between two reports of a node. 10ms to 1h.
    pub(crate) period: Span,
    /// How long a poll may take. 1ms to 1m.
    pub(crate) timeout: Span,
    /// How old a node's last report may become before it counts as missing. 10ms to 1h, and not below the period.
    pub(crate) missing_after: Span,
    /// Path and query of the page. Unset: the source's own. Not for orca.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/metrics")]
    pub(crate) path: Option<String>,
    /// Port of the page at each node's host. Unset: the node's own, or 9100 for node-exporter. Not for orca.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 9100)]
    pub(crate) port: Option<u16>,
    /// Up to 4 counters of the application, which become the signals app1 to app4.
    #[schemars(example = ["sessions"])]
    pub(crate) counters: Vec<String>,
    /// Disks that count, for node-exporter. None: all that have worked.
    #[schemars(example = ["sda"])]
    pub(crate) disks: Vec<String>,
    /// Bytes of a page; a larger one is no report. 1KiB to 64MiB.
    pub(crate) page_max: Size,
    /// What the nodes' caches hold, for policies that mirror them (lb-gc).
    pub(crate) cache: RawCacheSignals,
}

/// `[switch.signals.cache]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCacheSignals {
    /// Whether the nodes' event streams are followed. Unset: if a policy in use mirrors caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = true)]
    pub(crate) follow: Option<bool>,
    /// Path of the stream at the node's own address.
    pub(crate) path: String,
    /// How long a stream may be silent before it counts as dead. 200ms to 1h.
    pub(crate) silence: Span,
    /// Longest pause between two tries to connect. 100ms to 1h.
    pub(crate) retry_max: Span,
    /// Targets of a node that are remembered. 1 to 100000000.
    pub(crate) targets_max: usize,
}

impl Default for RawSignals {
    fn default() -> Self {
        let signals = SignalsConfig::default();
        Self {
            source: signals.source.map(|source| source.to_string()),
            secret: None,
            period: Span(signals.period),
            timeout: Span(signals.timeout),
            missing_after: Span(signals.missing_after),
            path: signals.path,
            port: signals.port,
            counters: signals.counters,
            disks: signals.disks,
            page_max: Size(Bytes(signals.body_max as u64)),
            cache: RawCacheSignals::default(),
        }
    }
}

impl Default for RawCacheSignals {
    fn default() -> Self {
        let cache = CacheSignalsConfig::default();
        Self {
            follow: cache.follow,
            path: cache.path,
            silence: Span(cache.silence),
            retry_max: Span(cache.retry_max),
            targets_max: cache.targets_max,
        }
    }
}
