//! The state of handoffs between peers, for operators.

use super::{PeerHandoff, lock};
use crate::metric_table::{Row, Topic, definitions, describe, encode_rows};
use larder_edge::{Metric, MetricKind};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
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

const TOPIC: Topic = Topic { name: "Node: handoff between peers" };

const ROWS: &[Row<PeerHandoffView>] = &[
    TOPIC.counter("larder_node_peers_connections_moved_total", "Connections handed off to peers", |view| {
        view.moved
    }),
    TOPIC.counter("larder_node_peers_connections_taken_total", "Connections accepted from peers", |view| {
        view.taken
    }),
    TOPIC.gauge(
        "larder_node_peers_connections_away",
        "Connections of this node that are at peers now",
        |view| view.connections as u64,
    ),
    TOPIC.ratio(
        "larder_node_peers_requests_expected",
        "Expected number of requests on a connection after its first, as learned",
        |view| view.requests_expected,
    ),
];

const STAYED: Metric = TOPIC.labelled(
    MetricKind::Counter,
    "larder_node_peers_connections_stayed_total",
    &["why"],
    "Requests that were relayed without a handoff, by reason (small, size-unknown, request, elsewhere, peer, full, kept, failed)",
);

impl PeerHandoffView {
    /// Returns the definitions of the metrics.
    pub(crate) fn metrics() -> Vec<Metric> {
        definitions(ROWS).chain([STAYED]).collect()
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        encode_rows(ROWS, self, encoder)?;
        let mut relayed = describe(encoder, &STAYED)?;
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
            connections: state.handoff.handed_off_count(),
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
