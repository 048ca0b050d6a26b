//! The node's statistics as a snapshot for JSON and as Prometheus text. CONTRIBUTING.md says how to add a metric.

use crate::counters::{Counter, Counters};
use crate::machine::Usage;
use crate::memory::MemoryStats;
use crate::metric_table::{Row, Topic, definitions, encode_rows, encode_text};
use crate::origin::OriginStats;
use crate::store::StoreStats;
use larder_edge::Metric;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
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

const REQUESTS: Topic = Topic { name: "Node: requests" };
const LATER: Topic = Topic { name: "Node: later requests on handed-off connections" };
const CONNECTIONS: Topic = Topic { name: "Node: connections" };
const CACHE: Topic = Topic { name: "Node: memory and store" };
const MACHINE: Topic = Topic { name: "Node: processors and disks" };
const PURGES: Topic = Topic { name: "Node: purges" };

const ROWS: &[Row<NodeStats>] = &[
    REQUESTS.counter("larder_node_requests_total", "Requests for contents", |s| s.requests),
    REQUESTS.counter("larder_node_hits_total", "Requests answered from memory only", |s| s.hits),
    REQUESTS.counter("larder_node_misses_total", "Requests that needed the store", |s| s.misses),
    REQUESTS.counter("larder_node_collapsed_total", "Misses served by the read of another request", |s| s.collapsed),
    REQUESTS.counter("larder_node_dynamic_total", "Requests for dynamic content", |s| s.dynamic),
    REQUESTS.counter("larder_node_not_modified_total", "Replies with status 304", |s| s.not_modified),
    REQUESTS.counter("larder_node_partial_content_total", "Replies with status 206", |s| s.partial_content),
    REQUESTS.counter("larder_node_client_errors_total", "Replies with status 400 to 499", |s| s.client_errors),
    REQUESTS.counter("larder_node_server_errors_total", "Replies with status 500 to 599", |s| s.server_errors),
    REQUESTS.counter("larder_node_aborted_total", "Replies that ended before their last byte", |s| s.aborted),
    REQUESTS.counter("larder_node_sent_bytes_total", "Bytes of reply bodies", |s| s.bytes_out),
    REQUESTS.gauge("larder_node_in_flight", "Requests without a complete reply, and WebSocket connections: the load", |s| s.in_flight),
    REQUESTS.counter(
        "larder_node_header_fields_dropped_total",
        "Header fields of requests dropped because of their names",
        |s| s.header_fields_dropped,
    ),
    REQUESTS.counter(
        "larder_node_own_paths_denied_total",
        "Requests for the node's own paths from senders without permission, answered with 404",
        |s| s.own_paths_denied,
    ),
    REQUESTS.counter(
        "larder_node_access_log_dropped_total",
        "Lines of the access log that were not written, because the writer could not keep up or failed",
        |s| s.access_log_dropped,
    ),
    REQUESTS.gauge("larder_node_draining", "1 while the node drains, otherwise 0", |s| u64::from(s.draining)),
    LATER.counter("larder_node_later_served_total", "Later requests served here as intended", |s| s.later_served),
    LATER.counter(
        "larder_node_later_fetched_total",
        "Later requests whose reply was fetched from a node that has the target",
        |s| s.later_fetched,
    ),
    LATER.counter(
        "larder_node_later_unknown_total",
        "Later requests served here, because no known node has the target",
        |s| s.later_unknown,
    ),
    LATER.counter(
        "larder_node_later_failed_total",
        "Later requests served here, because the other node sent no usable reply",
        |s| s.later_failed,
    ),
    CONNECTIONS.gauge("larder_node_connections", "Open client connections", |s| s.connections),
    CONNECTIONS.counter("larder_node_connections_accepted_total", "Accepted connections", |s| s.connections_accepted),
    CONNECTIONS.counter(
        "larder_node_connections_refused_total",
        "Connections beyond limits.connections_max, and HTTP/2 requests refused for lack of memory, answered with 503",
        |s| s.connections_refused,
    ),
    CONNECTIONS.counter("larder_node_http2_connections_total", "Accepted connections that use HTTP/2", |s| {
        s.http2_connections
    }),
    CONNECTIONS.counter(
        "larder_node_http2_floods_total",
        "HTTP/2 connections closed because of too many resets or empty frames",
        |s| s.http2_floods,
    ),
    CONNECTIONS.counter("larder_node_accept_errors_total", "Failed accept calls", |s| s.accept_errors),
    CONNECTIONS.counter(
        "larder_node_head_timeouts_total",
        "Connections closed because a request's head was too slow",
        |s| s.head_timeouts,
    ),
    CONNECTIONS.counter("larder_node_idle_timeouts_total", "Connections closed because they were idle", |s| {
        s.idle_timeouts
    }),
    CONNECTIONS.counter(
        "larder_node_write_timeouts_total",
        "Connections closed, and HTTP/2 requests ended, because the client took no bytes",
        |s| s.write_timeouts,
    ),
    CONNECTIONS.counter(
        "larder_node_announcements_refused_total",
        "Connections of a balancer closed because the PROXY protocol header was missing or invalid",
        |s| s.announcements_refused,
    ),
    CONNECTIONS.counter("larder_node_panics_total", "Connections and HTTP/2 requests lost to a bug in the node", |s| {
        s.panics
    }),
    CACHE.gauge("larder_node_cache_used_bytes", "Bytes in the cache", |s| s.cache_bytes),
    CACHE.gauge("larder_node_cache_max_bytes", "Size of the cache in bytes", |s| s.cache_bytes_max),
    CACHE.gauge("larder_node_cache_objects", "Objects and chunks in the cache", |s| s.cache_objects),
    CACHE.counter("larder_node_cache_insertions_total", "Objects and chunks stored in the cache", |s| s.cache_insertions),
    CACHE.counter("larder_node_cache_evictions_total", "Objects and chunks evicted from the cache", |s| s.cache_evictions),
    CACHE.counter("larder_node_cache_evicted_bytes_total", "Bytes of evicted objects and chunks", |s| {
        s.cache_evicted_bytes
    }),
    CACHE.counter("larder_node_cache_refused_total", "Objects and chunks larger than the cache", |s| s.cache_refused),
    CACHE.counter("larder_node_store_reads_total", "Completed reads of the store", |s| s.store_reads),
    CACHE.counter("larder_node_store_read_bytes_total", "Bytes read from the store", |s| s.store_bytes),
    CACHE.seconds("larder_node_store_busy_seconds_total", "Busy time of the store in seconds, summed over reads", |s| {
        s.store_busy_seconds
    }),
    CACHE.gauge("larder_node_store_reading", "Reads of the store in progress or waiting", |s| s.store_reading),
    MACHINE.seconds("larder_node_cpu_busy_seconds_total", "Busy time of the processors in seconds", |s| {
        s.usage.cpu_busy_us as f64 / 1e6
    }),
    MACHINE.gauge("larder_node_cpu_queue", "Jobs at the processors or waiting for them", |s| s.usage.cpu_queue.into()),
    MACHINE.gauge("larder_node_cpus", "Processors of the node", |s| s.usage.cpus.into()),
    MACHINE.seconds("larder_node_disk_busy_seconds_total", "Busy time of the disks in seconds", |s| {
        s.usage.disk_busy_us as f64 / 1e6
    }),
    MACHINE.counter("larder_node_disk_reads_total", "Reads from the disks", |s| s.usage.disk_reads),
    MACHINE.counter("larder_node_disk_read_bytes_total", "Bytes read from the disks", |s| s.usage.disk_bytes),
    MACHINE.gauge("larder_node_disk_queue", "Reads at the disks or waiting for them", |s| s.usage.disk_queue.into()),
    MACHINE.gauge("larder_node_disks", "Disks of the node", |s| s.usage.disks.into()),
    PURGES.counter("larder_node_purges_total", "Completed purges", |s| s.purges),
    PURGES.counter("larder_node_purged_total", "Objects and chunks removed by purges", |s| s.purged),
    PURGES.counter("larder_node_purges_denied_total", "Purges refused without a valid token", |s| s.purges_denied),
    PURGES.counter(
        "larder_node_purge_unkept_total",
        "Objects and chunks not stored because of a purge during their read or fetch",
        |s| s.purge_unkept,
    ),
];

impl NodeStats {
    /// Returns the definitions of the metrics.
    pub(crate) fn metrics() -> Vec<Metric> {
        definitions(ROWS).chain(OriginStats::metrics()).collect()
    }

    /// Returns the metrics in the Prometheus text format.
    pub fn metrics_text(&self) -> String {
        encode_text(&[("node", &self.name), ("store", self.store)], self.clone())
    }
}

impl Collector for NodeStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_rows(ROWS, self, &mut encoder)?;
        self.origin.encode(&mut encoder)
    }
}
