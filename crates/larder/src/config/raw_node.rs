//! `[node]` as written, with its defaults.

use std::path::PathBuf;

use larder_core::Bytes;
use larder_edge::Forwarded;
use larder_node::{CacheConfig, Limits, NodeConfig, StoreConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_agent::RawNodeHandoff;
use super::raw_dynamic::RawDynamic;
use super::raw_node_tls::RawNodeTls;
use super::raw_origin::RawOrigin;
use super::raw_peers::RawPeers;
use super::raw_report::RawReport;
use super::raw_traces::RawTraces;
use super::text::{Size, Span, Texts};

/// `[node]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNode {
    #[schemars(example = "127.0.0.1:9001")]
    /// Where the node accepts requests: "address:port". Port 0 takes any free port. Required, unless there is
    /// [node.tls].
    pub(crate) listen: Texts,
    /// Addresses of balancers before the node that announce with the PROXY protocol (1 or 2) whom each connection is from, as
    /// "10.0.0.0/8". From them every connection must begin with it; from others none may.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["10.0.0.0/8", "2001:db8::/32"])]
    pub(crate) proxy_protocol_from: Texts,
    /// Relays before the node whose identity fields are believed, as "10.0.0.2" or "10.0.0.0/24": switches and
    /// load balancers. They may also ask for reports.
    /// From them X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and Client-Cert are kept as they are. List only
    /// relays that set these fields themselves, and that clients cannot pass by.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["10.0.0.2", "2001:db8::/32"])]
    pub(crate) trusted_relays: Texts,
    /// X-Forwarded-For of any other sender: "append" its address, or "overwrite" the field. Forwarded (where present),
    /// X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such a sender are always overwritten.
    #[schemars(extend("enum" = ["append", "overwrite"]))]
    pub(crate) forwarded: String,
    /// Keep header fields whose names contain an underscore, such as Client_Cert. Many applications read them as the field with
    /// hyphens, so they are dropped by default.
    pub(crate) underscores_in_headers: bool,
    /// Keep header fields of any other sender that may tell an application another URL, such as X-Forwarded-Prefix; the guide to
    /// operation lists them. Dropped by default.
    pub(crate) url_fields_in_headers: bool,
    /// Its name in Cache-Status and in logs; by default "node".
    pub(crate) name: String,
    #[schemars(example = "/srv/www")]
    /// The directory it serves. One of this, `origin` and `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<String>,
    /// Read files past the page cache of the operating system, so that `cache.size` alone decides what is a hit.
    pub(crate) bypass_page_cache: bool,
    /// How long a cached file is served before its size and time are looked up again; "0s" looks at every use. At
    /// most a day.
    pub(crate) revalidate: Span,
    /// Path that answers 200, and 503 while the node drains; "" for none.
    pub(crate) health_path: String,
    /// Worker threads; 0 takes one for each core.
    pub(crate) threads: usize,
    /// File the access log is appended to (Combined Log Format with cache status, origin and times), or "-" for stdout.
    /// Unset: no access log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/log/larder/access.log")]
    pub(crate) access_log: Option<String>,
    /// How a line of the access log looks: "combined", "json" (an object per line), or parts of what is known, such as
    /// "{client} {target} {status} {cache} {total_us} {header:x-user}"; docs/operating.md lists them.
    pub(crate) access_log_format: String,
    /// File with the token of those that may purge, operators and switches: 16 to 256 characters. A second line may
    /// hold another token that is accepted. Unset: nobody may purge.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/purge.token")]
    pub(crate) purge_token: Option<String>,
    /// The memory cache.
    pub(crate) cache: RawCache,
    /// What the node accepts, and how long it waits.
    pub(crate) limits: RawNodeLimits,
    /// What the node tells switches of its load and its cache.
    pub(crate) report: RawReport,
    /// A modelled store instead of a directory: replies of the sizes in a manifest, after the time a modelled disk
    /// takes. For demos and tests; the bytes mean nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<RawModel>,
    /// An HTTP origin instead of a directory: the node is a cache before any application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<RawOrigin>,
    /// Programs that answer some targets instead of the store, taking processor and disk time. For experiments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dynamic: Option<RawDynamic>,
    /// TLS for clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<RawNodeTls>,
    /// Traces of requests, sent to an OpenTelemetry collector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traces: Option<RawTraces>,
    /// Connections that switches hand over: the node answers clients directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handoff: Option<RawNodeHandoff>,
    /// A cluster of equal nodes without a front-end (PRESS): any takes any request, and together they are one memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<RawPeers>,
}

/// `[node.cache]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCache {
    /// What is evicted first: "gds" (Greedy-Dual-Size), "gds-packets" or "lru" (least recently used).
    #[schemars(extend("enum" = ["gds", "gds-packets", "lru"]))]
    pub(crate) kind: String,
    /// Memory for content.
    pub(crate) size: Size,
    /// Larger objects are served but not kept. Unset: no limit but the cache itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "16MiB")]
    pub(crate) object_max: Option<Size>,
    /// Objects above this size are cached, read and evicted in pieces of it: a multiple of 4KiB, to 64MiB.
    pub(crate) chunk: Size,
}

/// `[node.limits]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNodeLimits {
    /// Client connections at once; a further one gets 503 and is closed. 1 to 1000000.
    pub(crate) connections_max: u32,
    /// Bytes of a request's head; 431 beyond. 8KiB to 1MiB.
    pub(crate) head_max: Size,
    /// Bytes of a request's path and query; 414 beyond. 16 to 64000.
    pub(crate) uri_max: Size,
    /// Header fields of a request; 431 beyond. 8 to 256.
    pub(crate) headers_max: usize,
    /// Time for a request's head to arrive; then the connection is closed. 1ms to 1h.
    pub(crate) head_timeout: Span,
    /// Time a kept-alive connection may be silent; then it is closed. 1ms to 1d.
    pub(crate) idle_timeout: Span,
    /// Time a client may take none of a reply's bytes; then the connection is closed, or with HTTP/2 that request
    /// ended. 1ms to 1h.
    pub(crate) write_timeout: Span,
    /// Time that replies under way get at shutdown; what is left is aborted. At most 1h.
    pub(crate) drain_timeout: Span,
    /// Reads of the store under way or waiting; 503 with Retry-After beyond. 1 to 1000000.
    pub(crate) reads_max: usize,
    /// Reads of a directory at one time; the rest wait. 1 to 400. A modelled disk does one at a time.
    pub(crate) reads_at_once: usize,
    /// Memory for replies to clients of HTTP/2: 128KiB for each request beside another one of its connection. Requests beyond it wait. At
    /// most 1TiB.
    pub(crate) http2_bytes_max: Size,
}

/// `[node.model]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawModel {
    #[schemars(example = "manifest.tsv")]
    /// Text file with a line for each target: size in bytes, a tab, the target as requested (path and query).
    pub(crate) manifest: String,
    /// How many times faster than the LARD paper's disk of 1998 (28 ms to the first block). 0.001 to 1000000.
    #[serde(default = "speed_1998")]
    pub(crate) speed: f64,
    /// Disks; each serves one request at a time. 1 to 64.
    #[serde(default = "one_disk")]
    pub(crate) disks: u16,
    #[schemars(example = 1.0)]
    /// Model the processor too, and how many times faster than the LARD paper's of 1998 (290 us for a reply and 40 us
    /// for each 512 bytes of it) it is. 0.001 to 1000000. Absent: replies are as fast as the real processor makes them.
    pub(crate) processor_speed: Option<f64>,
    /// Start with targets in memory, in the manifest's order until the next would evict one; those above object_max
    /// are passed over. With [node.peers] the peers hear of them. For experiments with nodes that have long been warm.
    #[serde(default)]
    pub(crate) preload: bool,
}

fn speed_1998() -> f64 {
    1.0
}

fn one_disk() -> u16 {
    1
}

impl Default for RawCache {
    fn default() -> Self {
        let cache = CacheConfig::default();
        Self {
            kind: cache.kind.to_string(),
            size: Size(cache.bytes),
            object_max: None,
            chunk: Size(cache.chunk),
        }
    }
}

impl Default for RawNodeLimits {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            connections_max: limits.connections_max,
            head_max: Size(Bytes(limits.head_bytes_max as u64)),
            uri_max: Size(Bytes(limits.uri_bytes_max as u64)),
            headers_max: limits.headers_max,
            head_timeout: Span(limits.head_timeout),
            idle_timeout: Span(limits.idle_timeout),
            write_timeout: Span(limits.write_timeout),
            drain_timeout: Span(limits.drain_timeout),
            reads_max: limits.reads_max,
            reads_at_once: limits.reads_at_once,
            http2_bytes_max: Size(Bytes(limits.http2_bytes_max as u64)),
        }
    }
}

impl Default for RawNode {
    fn default() -> Self {
        let store = StoreConfig::Directory { root: PathBuf::new(), bypass_page_cache: false };
        let node = NodeConfig::new("node", store);
        Self {
            listen: Texts::default(),
            proxy_protocol_from: Texts::default(),
            trusted_relays: Texts::default(),
            forwarded: Forwarded::default().name().to_owned(),
            underscores_in_headers: false,
            url_fields_in_headers: false,
            name: node.name,
            root: None,
            bypass_page_cache: false,
            revalidate: Span(node.revalidate),
            health_path: node.health_path.unwrap_or_default(),
            threads: 0,
            access_log: None,
            access_log_format: "combined".to_owned(),
            purge_token: None,
            cache: RawCache::default(),
            limits: RawNodeLimits::default(),
            report: RawReport::default(),
            model: None,
            origin: None,
            dynamic: None,
            tls: None,
            traces: None,
            handoff: None,
            peers: None,
        }
    }
}
