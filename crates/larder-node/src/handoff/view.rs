//! The state of handoffs between peers, for operators.

use super::{PeerHandoff, lock};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

/// The state of handoffs between peers.
#[derive(Clone, Debug, Serialize)]
pub struct PeerHandoffView {
    /// This node's service addresses. Clients' connections to them can be handed off.
    pub services: Vec<SocketAddr>,
    /// The interface that receives clients' packets.
    pub interface: String,
    /// Requests for fewer bytes are relayed.
    pub min: u64,
    /// Expected number of requests after a connection's first, as learned by this node.
    pub requests_expected: f64,
    /// Peers that take connections now.
    pub ready: Vec<String>,
    /// Connections that are at peers now.
    pub connections: usize,
    /// Connections that this node has handed off.
    pub moved: u64,
    /// Connections that peers have handed off to this node.
    pub taken: u64,
    /// Requests that were relayed, by reason.
    pub relayed: BTreeMap<&'static str, u64>,
}

impl PeerHandoffView {
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in [
            ("connections_moved", "Connections handed over to peers", self.moved),
            ("connections_taken", "Connections that peers have handed over", self.taken),
        ] {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let metric = ConstGauge::new(self.connections as u64);
        let help = "Connections that peers have now";
        metric.encode(encoder.encode_descriptor("connections_away", help, None, metric.metric_type())?)?;
        let metric = ConstGauge::new(self.requests_expected);
        let help = "Requests that a connection is expected to bring after its first";
        metric.encode(encoder.encode_descriptor("requests_expected", help, None, metric.metric_type())?)?;
        let help = "Requests that were relayed, and their connection not handed over, by why";
        let mut relayed = encoder.encode_descriptor("connections_stayed", help, None, MetricType::Counter)?;
        for (why, count) in &self.relayed {
            ConstCounter::new(*count).encode(relayed.encode_family(&[("why", *why)])?)?;
        }
        Ok(())
    }
}

impl PeerHandoff {
    pub(crate) fn view(&self) -> PeerHandoffView {
        let state = self.state();
        PeerHandoffView {
            services: self.own.clone(),
            interface: self.interface.clone(),
            min: self.min.0,
            requests_expected: lock(&self.kept).expected_requests(1),
            ready: state.ready_peers(self.now()),
            connections: state.handing.handed_off_count(),
            moved: self.moved.load(Relaxed),
            taken: self.taken.load(Relaxed),
            relayed: self.counts.read(),
        }
    }

    /// Counts a connection that a peer has handed off to this node.
    pub(crate) fn count_incoming(&self) {
        self.taken.fetch_add(1, Relaxed);
    }
}
