//! What is handed over, for people.

use super::{Handover, lock};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

/// What is handed over.
#[derive(Clone, Debug, Serialize)]
pub struct HandoverView {
    /// Clients' connections to these can be handed over: this node's service addresses.
    pub services: Vec<SocketAddr>,
    /// The interface that clients' packets come by.
    pub interface: String,
    /// Requests for less are relayed. Bytes.
    pub min: u64,
    /// Requests that a connection is expected to bring after its first, by those that this node has seen.
    pub requests_expected: f64,
    /// Peers that take connections now.
    pub ready: Vec<String>,
    /// Connections that others have now.
    pub connections: usize,
    /// Connections that have been handed over.
    pub moved: u64,
    /// Connections that peers have handed over to this node.
    pub taken: u64,
    /// Requests that were relayed, by reason.
    pub relayed: BTreeMap<&'static str, u64>,
}

impl HandoverView {
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

impl Handover {
    pub(crate) fn view(&self) -> HandoverView {
        let state = self.state();
        HandoverView {
            services: self.own.clone(),
            interface: self.interface.clone(),
            min: self.min.0,
            requests_expected: lock(&self.kept).expected(1),
            ready: state.ready(self.now()),
            connections: state.handing.away(),
            moved: self.moved.load(Relaxed),
            taken: self.taken.load(Relaxed),
            relayed: self.counts.read(),
        }
    }

    /// Counts a connection that a peer has handed over.
    pub(crate) fn count_taken(&self) {
        self.taken.fetch_add(1, Relaxed);
    }
}
