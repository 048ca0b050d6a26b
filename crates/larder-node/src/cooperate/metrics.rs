//! The state of the peers in the Prometheus text format.

use super::PeersView;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

impl PeersView {
    /// Returns the metrics in the Prometheus text format, with the prefix `larder_node_peers_`.
    pub fn metrics_text(&self) -> String {
        let labels = [("node".into(), self.name.clone().into())];
        let mut registry = Registry::with_prefix_and_labels("larder_node_peers", labels.into_iter());
        registry.register_collector(Box::new(self.clone()));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &registry);
        out
    }

    fn counters(&self) -> [(&'static str, &'static str, u64); 29] {
        let network = &self.network;
        [
            ("loads_told", "Broadcasts of load", self.loads_told),
            ("changes_told", "Broadcasts of changes of memory", self.changes_told),
            ("tables_told", "Broadcasts of which routing table there is", self.tables_told),
            ("forwarded", "Requests forwarded to peers", self.forwarded),
            ("taken", "Requests that peers have forwarded", self.taken),
            ("requests_unsent", "Requests not forwarded, and not worked on", network.requests_unsent),
            ("requests_lost", "Requests lost after they may have been worked on", network.requests_lost),
            ("members_joined", "Members that have come", network.members_joined),
            ("members_left", "Members that have gone, of themselves or not", network.members_left),
            ("renewals", "Times that this node was declared down, and came back", network.renewals),
            ("datagrams_out", "Datagrams of the membership sent", network.datagrams_out),
            ("datagrams_in", "Datagrams received, sound ones and others", network.datagrams_in),
            ("datagrams_unsent", "Datagrams that the socket did not take", network.datagrams_unsent),
            ("datagrams_forged", "Datagrams not sealed with a cluster secret", network.datagrams_forged),
            (
                "datagrams_other_secret",
                "Datagrams sealed with an accepted secret that this node does not send with",
                network.datagrams_other_secret,
            ),
            ("datagrams_malformed", "Datagrams of another version", network.datagrams_malformed),
            ("datagrams_full", "Datagrams that name more members than there is room", network.datagrams_full),
            ("datagrams_namesake", "Datagrams of another node of this name", network.datagrams_namesake),
            ("seeds_unresolved", "Seeds that could not be resolved", network.seeds_unresolved),
            ("links_refused", "Connections accepted and refused", network.links_refused),
            ("links_failed", "Connections to members that could not be made", network.links_failed),
            ("links_revoked", "Connections ended: their secret is no longer accepted", network.links_revoked),
            (
                "control_overflows",
                "Control connections with a full queue, dropped",
                network.control_overflows,
            ),
            ("messages_out", "Messages given to control connections", network.messages_out),
            ("messages_in", "Messages received", network.messages_in),
            ("message_bytes_out", "Bytes of messages sent", network.message_bytes_out),
            ("message_bytes_in", "Bytes of messages received", network.message_bytes_in),
            ("link_bytes_out", "Bytes sent on connections, sealed", network.link_bytes_out),
            ("link_bytes_in", "Bytes received on connections, sealed", network.link_bytes_in),
        ]
    }

    /// Returns the counters of the routing table, if there is one.
    fn table_counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        let Some(table) = &self.table else { return Vec::new() };
        vec![
            ("tables_made", "Routing tables made here", table.made),
            ("tables_fetched", "Routing tables fetched from peers", table.fetched),
            ("tables_refused", "Routing tables that are too large here", table.refused),
            ("tables_unmade", "Times that no routing table was made", table.unmade),
        ]
    }

    fn table_gauges(&self) -> Vec<(&'static str, &'static str, f64)> {
        let Some(table) = &self.table else { return Vec::new() };
        vec![
            ("table_number", "Which routing table the node goes by", table.number as f64),
            ("table_age_seconds", "Seconds since it goes by it", table.age_s),
            ("table_core_targets", "Targets that every node serves", table.core_targets as f64),
            ("table_partition_targets", "Targets that have an owner", table.partition_targets as f64),
            ("table_owners", "Owners", table.owners as f64),
            ("table_owners_there", "Owners that are there", table.owners_there as f64),
            ("table_left_out", "Targets left out for want of room", table.left_out as f64),
        ]
    }

    fn gauges(&self) -> [(&'static str, &'static str, u64); 11] {
        [
            ("sharing", "1 while the node takes part", u64::from(self.sharing)),
            ("load", "Connections that the node services", u64::from(self.load)),
            ("targets_known", "Targets whose servers are known", self.targets_known as u64),
            ("targets_held", "Targets in memory that peers may ask for", self.targets_held as u64),
            ("waiting", "Requests that wait for the dispatcher", self.waiting as u64),
            ("unseated", "Members that this dispatcher takes no more", self.unseated as u64),
            ("members", "Other members", self.members.len() as u64),
            ("streams", "Forwarded requests whose reply is under way", self.network.streams),
            ("data_links", "Data connections", self.network.data_links),
            ("control_links", "Control connections", self.network.control_links),
            (
                "links_other_secret",
                "Connections made with a secret that this node does not send with",
                self.network.links_other_secret,
            ),
        ]
    }
}

impl Collector for PeersView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in self.counters().into_iter().chain(self.table_counters()) {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        for (name, help, value) in self.gauges() {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        for (name, help, value) in self.table_gauges() {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let help = "Clients' requests by why they were served where they were";
        let mut decisions = encoder.encode_descriptor("decisions", help, None, MetricType::Counter)?;
        for (why, count) in &self.decisions {
            ConstCounter::new(*count).encode(decisions.encode_family(&[("why", *why)])?)?;
        }
        if let Some(handoff) = &self.handoff {
            handoff.encode(&mut encoder)?;
        }
        let help = "The load of a member as it counts here; none while it is unknown";
        let mut loads = encoder.encode_descriptor("member_load", help, None, MetricType::Gauge)?;
        for member in &self.members {
            if let Some(load) = member.load {
                let labels = [("peer", member.name.as_str())];
                ConstGauge::new(u64::from(load)).encode(loads.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
