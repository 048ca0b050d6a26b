//! The node's statistics as a snapshot for JSON and as Prometheus text. CONTRIBUTING.md says how to add a metric.

use crate::counters::{Counter, Counters};
use crate::machine::Usage;
use crate::memory::MemoryStats;
use crate::origin::OriginStats;
use crate::store::StoreStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use std::fmt;

/// The work of a node since its start, and its current levels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStats {
    /// The node's name.
    pub name: String,
    /// `directory`, `origin`, or `model` for a modelled store with synthetic contents.
    pub store: &'static str,
    /// Whether the node is draining.
    pub draining: bool,
    /// Requests for contents, including malformed ones that were refused.
    pub requests: u64,
    /// Requests answered from memory alone.
    pub hits: u64,
    /// Requests that needed the store.
    pub misses: u64,
    /// Misses that were served by another request's read.
    pub collapsed: u64,
    /// Requests that programs of a modelled store answered; neither hits nor misses.
    pub dynamic: u64,
    /// Later requests on handed-off connections that were served here by the rule.
    pub later_served: u64,
    /// Later requests whose reply was fetched from a node that has the target; neither hits nor misses here.
    pub later_fetched: u64,
    /// Later requests that were served here because no node was known to have the target.
    pub later_unknown: u64,
    /// Later requests that were served here because the node that has the target sent no usable reply.
    pub later_failed: u64,
    /// Replies 304.
    pub not_modified: u64,
    /// Replies 206.
    pub partial_content: u64,
    /// Replies 400 to 499.
    pub client_errors: u64,
    /// Replies 500 to 599.
    pub server_errors: u64,
    /// Replies that ended before their last byte, because of the client or a failing store.
    pub aborted: u64,
    /// Bytes of reply bodies handed to the network.
    pub bytes_out: u64,
    /// Requests whose last reply byte has not been handed to the kernel, and WebSocket connections: the node's
    /// load.
    pub in_flight: u64,
    /// Open client connections.
    pub connections: u64,
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Accepted connections that speak HTTP/2.
    pub http2_connections: u64,
    /// HTTP/2 connections closed because the client reset too many streams or sent too many frames without
    /// content.
    pub http2_floods: u64,
    /// Requests and connections lost to a bug in the node.
    pub panics: u64,
    /// Connections and HTTP/2 requests answered 503 because of the limit on connections.
    pub connections_refused: u64,
    /// Failed accept calls, for example if there are no file descriptors left.
    pub accept_errors: u64,
    /// Connections closed because a request's head took too long.
    pub head_timeouts: u64,
    /// Kept-alive connections closed because they were idle for too long.
    pub idle_timeouts: u64,
    /// Connections closed because the client took no bytes.
    pub write_timeouts: u64,
    /// Connections of a balancer closed because they did not begin with an announcement of a client.
    pub announcements_refused: u64,
    /// Header fields of requests dropped because of their names.
    pub header_fields_dropped: u64,
    /// Requests for the node's own paths, answered 404 because the sender may not ask.
    pub own_paths_denied: u64,
    /// Lines of the access log that were not written because the writer could not keep up or failed.
    pub access_log_dropped: u64,
    /// Completed purges.
    pub purges: u64,
    /// Objects and chunks that purges have removed.
    pub purged: u64,
    /// Purges that were refused because they had no valid token.
    pub purges_denied: u64,
    /// Objects and chunks that were not stored because a purge came during their read or fetch.
    pub purge_unkept: u64,
    /// Bytes that the cache's entries are charged.
    pub cache_bytes: u64,
    /// The cache's size in bytes.
    pub cache_bytes_max: u64,
    /// Objects and chunks in the cache.
    pub cache_objects: u64,
    /// Objects and chunks that were stored.
    pub cache_insertions: u64,
    /// Objects and chunks that were evicted.
    pub cache_evictions: u64,
    /// Bytes of evicted objects and chunks.
    pub cache_evicted_bytes: u64,
    /// Objects and chunks that were larger than the cache.
    pub cache_refused: u64,
    /// Completed reads of the store.
    pub store_reads: u64,
    /// Bytes of those reads.
    pub store_bytes: u64,
    /// Busy time of the store in seconds, summed over all completed reads.
    pub store_busy_seconds: f64,
    /// Reads of the store that run or wait.
    pub store_reading: u64,
    /// Limits of the origin and how often they were reached.
    #[serde(flatten)]
    pub origin: OriginStats,
    /// The work of the processor and the disks.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The values besides the counters.
pub(super) struct NodeFacts {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) draining: bool,
    pub(super) memory: MemoryStats,
    pub(super) store: StoreStats,
    pub(super) origin: OriginStats,
    pub(super) usage: Usage,
    pub(super) access_log_dropped: u64,
}

impl NodeStats {
    pub(super) fn new(counters: &Counters, facts: NodeFacts) -> Self {
        let NodeFacts { name, kind, draining, memory, store, origin, usage, access_log_dropped } = facts;
        let [fetched, unknown, failed] =
            [&counters.later_fetched, &counters.later_unknown, &counters.later_failed].map(Counter::read);
        Self {
            name,
            store: kind,
            draining,
            requests: counters.requests.read(),
            hits: counters.hits.read(),
            misses: counters.misses.read(),
            collapsed: counters.collapsed.read(),
            dynamic: counters.dynamic.read(),
            later_served: counters.later.read().saturating_sub(fetched + unknown + failed),
            later_fetched: fetched,
            later_unknown: unknown,
            later_failed: failed,
            not_modified: counters.not_modified.read(),
            partial_content: counters.partial_content.read(),
            client_errors: counters.client_errors.read(),
            server_errors: counters.server_errors.read(),
            aborted: counters.aborted.read(),
            bytes_out: counters.bytes_out.read(),
            in_flight: counters.in_flight.read(),
            connections: counters.connections.read(),
            connections_accepted: counters.connections_accepted.read(),
            http2_connections: counters.http2_connections.read(),
            http2_floods: counters.http2_floods.read(),
            panics: counters.panics.read(),
            connections_refused: counters.connections_refused.read(),
            accept_errors: counters.accept_errors.read(),
            head_timeouts: counters.head_timeouts.read(),
            idle_timeouts: counters.idle_timeouts.read(),
            write_timeouts: counters.write_timeouts.read(),
            announcements_refused: counters.announcements_refused.read(),
            header_fields_dropped: counters.fields_dropped.read(),
            own_paths_denied: counters.own_denied.read(),
            access_log_dropped,
            purges: counters.purges.read(),
            purged: counters.purged.read(),
            purges_denied: counters.purges_denied.read(),
            purge_unkept: memory.refused_by_purge,
            cache_bytes: memory.used,
            cache_bytes_max: memory.capacity,
            cache_objects: memory.objects as u64,
            cache_insertions: memory.cache.insertions,
            cache_evictions: memory.cache.evictions,
            cache_evicted_bytes: memory.cache.evicted_bytes.0,
            cache_refused: memory.cache.refused,
            store_reads: store.reads,
            store_bytes: store.bytes,
            store_busy_seconds: store.busy.as_secs_f64(),
            store_reading: memory.reading as u64,
            origin,
            usage,
        }
    }
}

impl NodeStats {
    /// Returns the metrics in the Prometheus text format, with the prefix `larder_node_`.
    pub fn metrics_text(&self) -> String {
        let labels = [("node".into(), self.name.clone().into()), ("store".into(), self.store.into())];
        let mut registry = Registry::with_prefix_and_labels("larder_node", labels.into_iter());
        registry.register_collector(Box::new(self.clone()));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

impl NodeStats {
    fn purge_counters(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            ("purges", "Purges that were done", self.purges),
            ("purged", "Objects and chunks that purges have removed", self.purged),
            ("purges_denied", "Purges that were refused for want of a token", self.purges_denied),
            (
                "purge_unkept",
                "Objects and chunks not kept because a purge came while they were read or fetched",
                self.purge_unkept,
            ),
        ]
    }

    fn encode_counters(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counters = [
            ("requests", "Requests for contents", self.requests),
            ("hits", "Requests answered from memory alone", self.hits),
            ("misses", "Requests for which the store was asked", self.misses),
            ("collapsed", "Misses served by another request's read", self.collapsed),
            ("dynamic", "Requests for dynamic content", self.dynamic),
            ("later_served", "Later requests on handed-over connections, served here", self.later_served),
            ("later_fetched", "Those fetched from a node that has the target", self.later_fetched),
            ("later_unknown", "Those served here for want of a node that has it", self.later_unknown),
            ("later_failed", "Those served here since the other node failed", self.later_failed),
            ("not_modified", "Replies 304", self.not_modified),
            ("partial_content", "Replies 206", self.partial_content),
            ("client_errors", "Replies 400 to 499", self.client_errors),
            ("server_errors", "Replies 500 to 599", self.server_errors),
            ("aborted", "Replies that ended before their last byte", self.aborted),
            ("sent_bytes", "Bytes of reply bodies", self.bytes_out),
            ("connections_accepted", "Connections accepted", self.connections_accepted),
            ("http2_connections", "Connections of clients that speak HTTP/2", self.http2_connections),
            ("http2_floods", "Connections closed for resets or frames without content", self.http2_floods),
            ("panics", "Requests and connections lost to a fault in the node", self.panics),
            (
                "connections_refused",
                "Connections, and requests of HTTP/2, beyond the limit",
                self.connections_refused,
            ),
            ("accept_errors", "Failed accept calls", self.accept_errors),
            ("head_timeouts", "Connections closed for a slow request head", self.head_timeouts),
            ("idle_timeouts", "Connections closed for their silence", self.idle_timeouts),
            (
                "write_timeouts",
                "Connections closed, and requests of HTTP/2 ended, for taking no bytes",
                self.write_timeouts,
            ),
            (
                "announcements_refused",
                "Connections of a balancer without announcement",
                self.announcements_refused,
            ),
            (
                "header_fields_dropped",
                "Header fields of requests dropped for their names",
                self.header_fields_dropped,
            ),
            ("own_paths_denied", "Requests for own paths by senders that may not ask", self.own_paths_denied),
            (
                "access_log_dropped",
                "Access log lines not written because the writer could not keep up or failed",
                self.access_log_dropped,
            ),
            ("cache_insertions", "Objects and chunks put into the cache", self.cache_insertions),
            ("cache_evictions", "Objects and chunks that left to make room", self.cache_evictions),
            ("cache_evicted_bytes", "Bytes of objects that left to make room", self.cache_evicted_bytes),
            ("cache_refused", "Objects and chunks larger than the cache", self.cache_refused),
            ("store_reads", "Reads of the store", self.store_reads),
            ("store_read_bytes", "Bytes read from the store", self.store_bytes),
            ("disk_reads", "Reads of the disks", self.usage.disk_reads),
            ("disk_read_bytes", "Bytes read from the disks", self.usage.disk_bytes),
        ];
        for (name, help, value) in
            counters.into_iter().chain(self.purge_counters()).chain(self.origin.counters())
        {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

impl Collector for NodeStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.encode_counters(&mut encoder)?;
        let busy = [
            ("store_busy", "Time the store has worked", self.store_busy_seconds),
            ("cpu_busy", "Time the processors have worked", self.usage.cpu_busy_us as f64 / 1e6),
            ("disk_busy", "Time the disks have worked", self.usage.disk_busy_us as f64 / 1e6),
        ];
        for (name, help, seconds) in busy {
            let metric = ConstCounter::new(seconds);
            let unit = Unit::Seconds;
            metric.encode(encoder.encode_descriptor(name, help, Some(&unit), metric.metric_type())?)?;
        }
        let gauges = [
            ("in_flight", "Requests whose reply is not all sent", self.in_flight),
            ("connections", "Open client connections", self.connections),
            ("cache_used_bytes", "Bytes in the cache", self.cache_bytes),
            ("cache_max_bytes", "Most bytes in the cache", self.cache_bytes_max),
            ("cache_objects", "Objects and chunks in the cache", self.cache_objects),
            ("store_reading", "Reads under way or waiting", self.store_reading),
            ("origin_requests", "Slots of the origin that are taken", self.origin.origin_requests),
            ("origin_tunnels", "WebSocket connections through the node", self.origin.origin_tunnels),
            ("origin_waiting", "Requests that wait for a slot of the origin", self.origin.origin_waiting),
            ("cpu_queue", "Jobs at the processors or waiting", u64::from(self.usage.cpu_queue)),
            ("disk_queue", "Reads at the disks or waiting", u64::from(self.usage.disk_queue)),
            ("cpus", "Processors of the node", u64::from(self.usage.cpus)),
            ("disks", "Disks of the node", u64::from(self.usage.disks)),
            ("draining", "1 while the node drains", u64::from(self.draining)),
        ];
        for (name, help, value) in gauges {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        self.origin.encode_origin_status(&mut encoder)?;
        Ok(())
    }
}
