//! The statistics of an origin, each declared once with its meaning.

use super::failover::OriginStatus;
use crate::metric_table::{Row, Topic, definitions, describe, encode_rows};
use larder_edge::{Metric, MetricKind};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;
use std::fmt;

/// The limits of requests to an origin, and how often they were reached. All zero for a node without an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OriginStats {
    /// Slots that are taken now.
    pub origin_requests: u64,
    /// Requests that wait for a slot now.
    pub origin_waiting: u64,
    /// Requests that got no slot because none came free in time (`origin-full`).
    pub origin_full: u64,
    /// Requests that got no slot because their client used its whole share (`client-share`).
    pub origin_client_share: u64,
    /// Requests whose clients sent the body too slowly (`request-body-timeout`).
    pub origin_late_bodies: u64,
    /// Requests that the origin accepted too slowly (`origin-write-timeout`).
    pub origin_write_timeouts: u64,
    /// Replies that were aborted because the origin sent them too slowly.
    pub origin_slow_replies: u64,
    /// Attempts at another origin after one had failed.
    pub origin_failovers: u64,
    /// WebSocket connections through the node now.
    pub origin_tunnels: u64,
    /// WebSocket connections that were opened.
    pub origin_tunnels_opened: u64,
    /// Requests for a WebSocket beyond the limit (`tunnels-full`).
    pub origin_tunnels_full: u64,
    /// WebSocket connections that were closed because they were idle for too long.
    pub origin_tunnels_idle: u64,
    /// Bytes from clients on WebSocket connections.
    pub origin_tunnel_received_bytes: u64,
    /// Bytes from the origin on WebSocket connections.
    pub origin_tunnel_sent_bytes: u64,
    /// The state of each origin; empty if there is only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<OriginStatus>,
}

const ORIGIN: Topic = Topic { name: "Node: origin" };

const ROWS: &[Row<OriginStats>] = &[
    ORIGIN.gauge("larder_node_origin_requests", "Slots of the origin in use", |s| s.origin_requests),
    ORIGIN.gauge("larder_node_origin_waiting", "Requests that wait for a slot of the origin", |s| {
        s.origin_waiting
    }),
    ORIGIN.counter(
        "larder_node_origin_full_total",
        "Requests for which no slot of the origin became free in time (origin-full)",
        |s| s.origin_full,
    ),
    ORIGIN.counter(
        "larder_node_origin_client_share_total",
        "Requests beyond their client's share of the origin's slots (client-share)",
        |s| s.origin_client_share,
    ),
    ORIGIN.counter(
        "larder_node_origin_late_bodies_total",
        "Requests whose client sent the body too slowly (request-body-timeout)",
        |s| s.origin_late_bodies,
    ),
    ORIGIN.counter(
        "larder_node_origin_write_timeouts_total",
        "Requests that the origin received too slowly (origin-write-timeout)",
        |s| s.origin_write_timeouts,
    ),
    ORIGIN.counter(
        "larder_node_origin_slow_replies_total",
        "Replies aborted because the origin sent them too slowly",
        |s| s.origin_slow_replies,
    ),
    ORIGIN.counter(
        "larder_node_origin_failovers_total",
        "Attempts at another origin after a failed attempt",
        |s| s.origin_failovers,
    ),
    ORIGIN.gauge("larder_node_origin_tunnels", "Open WebSocket connections through the node", |s| {
        s.origin_tunnels
    }),
    ORIGIN.counter("larder_node_origin_tunnels_opened_total", "WebSocket connections opened", |s| {
        s.origin_tunnels_opened
    }),
    ORIGIN.counter(
        "larder_node_origin_tunnels_full_total",
        "Requests for a WebSocket beyond the limit (tunnels-full)",
        |s| s.origin_tunnels_full,
    ),
    ORIGIN.counter(
        "larder_node_origin_tunnels_idle_total",
        "WebSocket connections closed because they were idle",
        |s| s.origin_tunnels_idle,
    ),
    ORIGIN.counter(
        "larder_node_origin_tunnel_received_bytes_total",
        "Bytes from clients on WebSocket connections",
        |s| s.origin_tunnel_received_bytes,
    ),
    ORIGIN.counter(
        "larder_node_origin_tunnel_sent_bytes_total",
        "Bytes from the origin on WebSocket connections",
        |s| s.origin_tunnel_sent_bytes,
    ),
];

const LEFT: Metric = ORIGIN.labelled(
    MetricKind::Gauge,
    "larder_node_origin_left",
    &["origin"],
    "1 while an origin gets no requests after failures, otherwise 0; no line with a single origin",
);
const FAILURES: Metric = ORIGIN.labelled(
    MetricKind::Counter,
    "larder_node_origin_failures_total",
    &["origin"],
    "Failed attempts, by origin; no line with a single origin",
);

impl OriginStats {
    /// Returns the definitions of the metrics.
    pub(crate) fn metrics() -> impl Iterator<Item = Metric> {
        definitions(ROWS).chain([LEFT, FAILURES])
    }

    /// Encodes the metrics. The state of each origin is encoded only if there are several.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_rows(ROWS, self, encoder)?;
        if self.origins.is_empty() {
            return Ok(());
        }
        let mut left = describe(encoder, &LEFT)?;
        for origin in &self.origins {
            let labels = [("origin", origin.url.as_str())];
            ConstGauge::new(u64::from(origin.left)).encode(left.encode_family(&labels)?)?;
        }
        let mut failures = describe(encoder, &FAILURES)?;
        for origin in &self.origins {
            let labels = [("origin", origin.url.as_str())];
            ConstCounter::new(origin.failures).encode(failures.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
