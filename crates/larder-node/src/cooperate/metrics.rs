//! The metrics of a node's peers.

use super::{PeersView, TableView};
use crate::metric_table::{Row, Topic, definitions, describe, encode_rows, encode_text};
use larder_edge::{Metric, MetricKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

const PEERS: Topic = Topic { name: "Node: peers" };
const NETWORK: Topic = Topic { name: "Node: network of peers" };
const TABLE: Topic = Topic { name: "Node: routing table of peers (WARD)" };

const ROWS: &[Row<PeersView>] = &[
    PEERS.gauge(
        "larder_node_peers_sharing",
        "1 while the node shares its memory with peers, otherwise 0",
        |view| u64::from(view.sharing),
    ),
    PEERS.gauge("larder_node_peers_load", "Connections that the node serves", |view| u64::from(view.load)),
    PEERS
        .gauge("larder_node_peers_members", "Other members of the cluster", |view| view.members.len() as u64),
    PEERS.counter("larder_node_peers_members_joined_total", "Members that joined", |view| {
        view.network.members_joined
    }),
    PEERS.counter("larder_node_peers_members_left_total", "Members that left or failed", |view| {
        view.network.members_left
    }),
    PEERS.counter(
        "larder_node_peers_renewals_total",
        "Times that this node was declared down and joined again",
        |view| view.network.renewals,
    ),
    PEERS.counter("larder_node_peers_forwarded_total", "Requests forwarded to peers", |view| view.forwarded),
    PEERS.counter("larder_node_peers_taken_total", "Requests received from peers", |view| view.taken),
    PEERS.gauge("larder_node_peers_streams", "Forwarded requests without a complete reply", |view| {
        view.network.streams
    }),
    PEERS.counter(
        "larder_node_peers_requests_unsent_total",
        "Requests that were not forwarded to a peer and not served by it",
        |view| view.network.requests_unsent,
    ),
    PEERS.counter(
        "larder_node_peers_requests_lost_total",
        "Requests lost after a peer may have served them",
        |view| view.network.requests_lost,
    ),
    PEERS.gauge("larder_node_peers_targets_known", "Targets whose servers are known", |view| {
        view.targets_known as u64
    }),
    PEERS.gauge("larder_node_peers_targets_held", "Targets in memory that peers may request", |view| {
        view.targets_held as u64
    }),
    PEERS.gauge("larder_node_peers_waiting", "Requests that wait for the dispatcher (CARD)", |view| {
        view.waiting as u64
    }),
    PEERS.gauge(
        "larder_node_peers_unseated",
        "Members beyond the limit of this dispatcher, which get no requests (CARD)",
        |view| view.unseated as u64,
    ),
    PEERS.counter("larder_node_peers_loads_told_total", "Broadcasts of the load", |view| view.loads_told),
    PEERS.counter("larder_node_peers_changes_told_total", "Broadcasts of changes of the memory", |view| {
        view.changes_told
    }),
    PEERS.counter(
        "larder_node_peers_tables_told_total",
        "Broadcasts of the routing table's number",
        |view| view.tables_told,
    ),
    NETWORK
        .gauge("larder_node_peers_control_links", "Control connections", |view| view.network.control_links),
    NETWORK.gauge("larder_node_peers_data_links", "Data connections", |view| view.network.data_links),
    NETWORK.counter(
        "larder_node_peers_links_refused_total",
        "Accepted connections that were refused",
        |view| view.network.links_refused,
    ),
    NETWORK.counter(
        "larder_node_peers_links_failed_total",
        "Failed attempts to connect to members",
        |view| view.network.links_failed,
    ),
    NETWORK.counter(
        "larder_node_peers_links_revoked_total",
        "Connections closed because their secret is no longer accepted",
        |view| view.network.links_revoked,
    ),
    NETWORK.gauge(
        "larder_node_peers_links_other_secret",
        "Connections whose accepted secret is not the one that this node sends with",
        |view| view.network.links_other_secret,
    ),
    NETWORK.counter(
        "larder_node_peers_control_overflows_total",
        "Control connections dropped because their queue was full",
        |view| view.network.control_overflows,
    ),
    NETWORK.counter(
        "larder_node_peers_messages_out_total",
        "Messages queued on control connections",
        |view| view.network.messages_out,
    ),
    NETWORK
        .counter("larder_node_peers_messages_in_total", "Messages received", |view| view.network.messages_in),
    NETWORK.counter("larder_node_peers_message_bytes_out_total", "Bytes of messages sent", |view| {
        view.network.message_bytes_out
    }),
    NETWORK.counter("larder_node_peers_message_bytes_in_total", "Bytes of messages received", |view| {
        view.network.message_bytes_in
    }),
    NETWORK.counter(
        "larder_node_peers_link_bytes_out_total",
        "Bytes sent on connections, encrypted",
        |view| view.network.link_bytes_out,
    ),
    NETWORK.counter(
        "larder_node_peers_link_bytes_in_total",
        "Bytes received on connections, encrypted",
        |view| view.network.link_bytes_in,
    ),
    NETWORK.counter("larder_node_peers_datagrams_out_total", "Membership datagrams sent", |view| {
        view.network.datagrams_out
    }),
    NETWORK.counter(
        "larder_node_peers_datagrams_in_total",
        "Datagrams received, valid and invalid",
        |view| view.network.datagrams_in,
    ),
    NETWORK.counter(
        "larder_node_peers_datagrams_unsent_total",
        "Datagrams that the socket did not accept",
        |view| view.network.datagrams_unsent,
    ),
    NETWORK.counter(
        "larder_node_peers_datagrams_forged_total",
        "Datagrams not authenticated with a secret of the cluster",
        |view| view.network.datagrams_forged,
    ),
    NETWORK.counter(
        "larder_node_peers_datagrams_other_secret_total",
        "Datagrams whose accepted secret is not the one that this node sends with",
        |view| view.network.datagrams_other_secret,
    ),
    NETWORK.counter("larder_node_peers_datagrams_malformed_total", "Datagrams of another version", |view| {
        view.network.datagrams_malformed
    }),
    NETWORK.counter(
        "larder_node_peers_datagrams_full_total",
        "Datagrams with more members than the table has room for",
        |view| view.network.datagrams_full,
    ),
    NETWORK.counter(
        "larder_node_peers_datagrams_namesake_total",
        "Datagrams of another node with the name of this node",
        |view| view.network.datagrams_namesake,
    ),
    NETWORK.counter("larder_node_peers_seeds_unresolved_total", "Seeds that could not be resolved", |view| {
        view.network.seeds_unresolved
    }),
];

/// Metrics of the routing table, if there is one.
const TABLE_ROWS: &[Row<TableView>] = &[
    TABLE.gauge("larder_node_peers_table_number", "Number of the routing table in use", |view| view.number),
    TABLE.ratio(
        "larder_node_peers_table_age_seconds",
        "Seconds since the node began to use the routing table",
        |view| view.age_s,
    ),
    TABLE.gauge("larder_node_peers_table_core_targets", "Targets that every node serves", |view| {
        view.core_targets as u64
    }),
    TABLE.gauge("larder_node_peers_table_partition_targets", "Targets that have an owner", |view| {
        view.partition_targets as u64
    }),
    TABLE.gauge("larder_node_peers_table_owners", "Owners in the routing table", |view| view.owners as u64),
    TABLE.gauge("larder_node_peers_table_owners_there", "Owners that are members now", |view| {
        view.owners_there as u64
    }),
    TABLE.gauge(
        "larder_node_peers_table_left_out",
        "Targets that did not fit into the routing table",
        |view| view.left_out,
    ),
    TABLE.counter(
        "larder_node_peers_tables_made_total",
        "Routing tables made by this node or read from its file",
        |view| view.made,
    ),
    TABLE.counter("larder_node_peers_tables_fetched_total", "Routing tables fetched from peers", |view| {
        view.fetched
    }),
    TABLE.counter(
        "larder_node_peers_tables_refused_total",
        "Routing tables refused because they are too large for this node",
        |view| view.refused,
    ),
    TABLE.counter(
        "larder_node_peers_tables_unmade_total",
        "Times that no routing table was made: too few requests, or the analysis failed",
        |view| view.unmade,
    ),
];

const DECISIONS: Metric = PEERS.labelled(
    MetricKind::Counter,
    "larder_node_peers_decisions_total",
    &["why"],
    "Requests of clients, by reason of the place where they were served",
);
const MEMBER_LOAD: Metric = PEERS.labelled(
    MetricKind::Gauge,
    "larder_node_peers_member_load",
    &["peer"],
    "Connections of a member, as this node counts them; no line while they are unknown",
);

impl PeersView {
    /// Returns the definitions of the metrics.
    pub(crate) fn metrics() -> Vec<Metric> {
        let (peers, network): (Vec<_>, Vec<_>) =
            definitions(ROWS).partition(|metric| metric.topic == PEERS.name);
        peers
            .into_iter()
            .chain([DECISIONS, MEMBER_LOAD])
            .chain(network)
            .chain(definitions(TABLE_ROWS))
            .collect()
    }

    /// Returns the metrics in the Prometheus text format.
    pub fn metrics_text(&self) -> String {
        encode_text(&[("node", &self.name)], self.clone())
    }
}

impl Collector for PeersView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_rows(ROWS, self, &mut encoder)?;
        if let Some(table) = &self.table {
            encode_rows(TABLE_ROWS, table, &mut encoder)?;
        }
        let mut decisions = describe(&mut encoder, &DECISIONS)?;
        for (why, count) in &self.decisions {
            ConstCounter::new(*count).encode(decisions.encode_family(&[("why", *why)])?)?;
        }
        if let Some(handoff) = &self.handoff {
            handoff.encode(&mut encoder)?;
        }
        let mut loads = describe(&mut encoder, &MEMBER_LOAD)?;
        for member in &self.members {
            if let Some(load) = member.load {
                let labels = [("peer", member.name.as_str())];
                ConstGauge::new(u64::from(load)).encode(loads.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
