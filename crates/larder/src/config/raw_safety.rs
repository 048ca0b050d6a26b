//! `[switch.long_lived]`, `[switch.clients]`, `[switch.retries]`, `[switch.outliers]` as written, with their defaults.

use larder_core::Settings;
use larder_front::{ClientLimits, LongLivedConfig, OutlierConfig, RetryConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Span;

/// `[switch.long_lived]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawLongLived {
    /// Which requests leave the admission limit once the header of their reply has come: "upgrade" (WebSocket and other
    /// upgrades, CONNECT), "event-stream" (text/event-stream), "grpc" (application/grpc). Leave out a kind whose requests are
    /// work for the node as long as they last, such as the event streams of a language model.
    pub(crate) kinds: Vec<LongLivedKind>,
    /// Any other request leaves the admission limit after this time at its node, while its reply is being sent. 1s to 1h; 0s:
    /// never. Policies that place by content do not see such requests: leave it off where downloads are what loads nodes.
    pub(crate) after: Span,
    /// Long-lived requests that a node may have. Further ones stay within the admission limit. 0 to 1000000.
    pub(crate) max_per_node: u32,
}

/// The words of `switch.long_lived.kinds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LongLivedKind {
    /// Upgraded connections and tunnels.
    Upgrade,
    /// Event streams.
    EventStream,
    /// Calls of gRPC.
    Grpc,
}

/// `[switch.clients]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawClients {
    /// Requests a second that a client may make in the long run; more get 429 with Retry-After. 0 to 1000000; 0: any number.
    pub(crate) rate_per_s: u32,
    /// Requests that a client may make at once after a pause. 1 to 1000000.
    pub(crate) burst: u32,
    /// Connections that a client may have open; another one gets 429 and is closed. 0 to 1000000; 0: any number.
    pub(crate) connections_max: u32,
    /// Leading bits of an address of IPv4 that are one client's. 8 to 32.
    pub(crate) prefix_v4: u8,
    /// Leading bits of an address of IPv6 that are one client's. 16 to 128.
    pub(crate) prefix_v6: u8,
    /// The field of requests that says who a client is, in place of its address; where it is missing the address does. It is
    /// believed: let somebody before the switch set it. Connections are always the address's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"x-api-key")]
    pub(crate) header: Option<String>,
    /// Clients that are remembered, about 40 bytes each; those for whom there is no room share one client's allowance. 64 to
    /// 100000000.
    pub(crate) clients_max: usize,
}

/// `[switch.retries]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRetries {
    /// How many requests may be tried again at another node, as a share of all, over about 10 s. 0 to 1. Beyond it the failure is
    /// the answer, so that retries cannot multiply an outage.
    pub(crate) share: f64,
    /// Retries a second that are allowed whatever the share. 0 to 1000000.
    pub(crate) min_per_s: u32,
}

/// `[switch.outliers]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOutliers {
    /// Replies of 500 to 599 in a row after which a node is taken out. 0 to 10000; 0: never for this.
    pub(crate) consecutive: u32,
    /// How much larger a node's share of failed requests must be than that of all others together for it to be taken out. 0 to 1;
    /// 0: never for this. Where what fails is the content, the nodes that it belongs to look bad one after the other.
    pub(crate) failures_above: f64,
    /// Requests that a node must have had within the interval for its share to count. 1 to 1000000.
    pub(crate) requests_min: u32,
    /// Between two looks at the shares. 100ms to 1h.
    pub(crate) interval: Span,
    /// How long a node is out the first time; twice that the next time, and so on. 100ms to 1h.
    pub(crate) time: Span,
    /// How long at most. From time to 24h.
    pub(crate) time_max: Span,
    /// The share of the nodes that may be out for this at one time; one always may, where there are others. 0 to 1.
    pub(crate) ejected_max: f64,
}

impl Default for RawLongLived {
    fn default() -> Self {
        let (long_lived, max) = (LongLivedConfig::default(), Settings::default().long_lived_max);
        Self {
            kinds: vec![LongLivedKind::Upgrade, LongLivedKind::EventStream, LongLivedKind::Grpc],
            after: Span(long_lived.after.unwrap_or_default()),
            max_per_node: max,
        }
    }
}

impl Default for RawClients {
    fn default() -> Self {
        let limits = ClientLimits::default();
        Self {
            rate_per_s: limits.rate_per_s,
            burst: limits.burst,
            connections_max: limits.connections_max,
            prefix_v4: limits.prefix_v4,
            prefix_v6: limits.prefix_v6,
            header: None,
            clients_max: limits.clients_max,
        }
    }
}

impl Default for RawRetries {
    fn default() -> Self {
        let retries = RetryConfig::default();
        Self { share: retries.share, min_per_s: retries.min_per_s }
    }
}

impl Default for RawOutliers {
    fn default() -> Self {
        let outliers = OutlierConfig::default();
        Self {
            consecutive: outliers.consecutive,
            failures_above: outliers.failures_above,
            requests_min: outliers.requests_min,
            interval: Span(outliers.interval),
            time: Span(outliers.time),
            time_max: Span(outliers.time_max),
            ejected_max: outliers.ejected_max,
        }
    }
}
