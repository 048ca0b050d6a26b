//! The statistics of an origin, each declared once with its meaning.

use super::failover::OriginStatus;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
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

impl OriginStats {
    /// Returns the counters, each with its help text.
    pub(crate) fn counters(&self) -> [(&'static str, &'static str, u64); 11] {
        [
            ("origin_full", "Requests for which no slot of the origin came free", self.origin_full),
            (
                "origin_client_share",
                "Requests beyond their client's share of the origin's slots",
                self.origin_client_share,
            ),
            ("origin_late_bodies", "Requests with a body that came too slowly", self.origin_late_bodies),
            ("origin_write_timeouts", "Requests that the origin took too slowly", self.origin_write_timeouts),
            ("origin_slow_replies", "Replies that the origin sent too slowly", self.origin_slow_replies),
            ("origin_failovers", "Attempts at another origin after one had failed", self.origin_failovers),
            ("origin_tunnels_opened", "WebSocket connections opened", self.origin_tunnels_opened),
            ("origin_tunnels_full", "Requests for a WebSocket beyond the limit", self.origin_tunnels_full),
            (
                "origin_tunnels_idle",
                "WebSocket connections closed for their silence",
                self.origin_tunnels_idle,
            ),
            (
                "origin_tunnel_received_bytes",
                "Bytes of clients on WebSocket connections",
                self.origin_tunnel_received_bytes,
            ),
            (
                "origin_tunnel_sent_bytes",
                "Bytes of the origin on WebSocket connections",
                self.origin_tunnel_sent_bytes,
            ),
        ]
    }
}

impl OriginStats {
    /// Encodes the state of each origin, if there are several.
    pub(crate) fn encode_origin_status(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.origins.is_empty() {
            return Ok(());
        }
        let (name, help) = ("origin_left", "1 while others are asked in place of an origin that has failed");
        let mut left = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for origin in &self.origins {
            let labels = [("origin", origin.url.as_str())];
            ConstGauge::new(u64::from(origin.left)).encode(left.encode_family(&labels)?)?;
        }
        let (name, help) = ("origin_failures", "Attempts that have failed, by origin");
        let mut failures = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for origin in &self.origins {
            let labels = [("origin", origin.url.as_str())];
            ConstCounter::new(origin.failures).encode(failures.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
