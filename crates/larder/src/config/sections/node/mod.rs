//! `[node]`.

pub(crate) mod origin;
pub(crate) mod origin_field;
pub(crate) mod origin_sign;
pub(crate) mod peers;
pub(crate) mod peers_handoff;
pub(crate) mod peers_policy;
pub(crate) mod programs;
pub(crate) mod report;
pub(crate) mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_node::{
    ACCESS_FIELDS, CacheConfig, DiskModel, Limits, ModelConfig, NodeConfig, Preload, ProcessorModel,
    StoreConfig,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::access_log::{NodeAccessLogSection, access_log};
use crate::config::sections::agent::{HandoffRole, NodeHandoffSection, handoff};
use crate::config::sections::entry::{NodeTrustSection, entry};
use crate::config::sections::node::origin::{OriginSection, odd, origin};
use crate::config::sections::node::peers::{PeersRole, PeersSection, peers};
use crate::config::sections::node::programs::{ProgramTable, programs};
use crate::config::sections::node::report::{ReportSection, report};
use crate::config::sections::node::tls::NodeTlsSection;
use crate::config::sections::switch::tls::node_tls;
use crate::config::sections::traces::{TracesSection, traces};
use crate::config::text::{Size, Span, Texts};
use crate::config::values::{addresses, node_name, ranges, word};

keys! {
    /// `[node]`.
    table NodeSection,
        store = StoreConfig::Directory { root: PathBuf::new(), bypass_page_cache: false },
        node = NodeConfig::new("node", store);

    /// Where the node accepts requests: "address:port". Port 0 takes any free port. Required, unless there is
    /// [node.tls].
    listen: Texts, example "127.0.0.1:9001";
    /// Its name in Cache-Status and in logs; by default "node".
    name: String = node.name;
    /// The directory it serves. One of this, `origin` and `model`.
    root: Option<String>, example "/srv/www";
    /// Read files past the page cache of the operating system, so that `cache.size` alone decides what is a hit.
    bypass_page_cache: bool = false;
    /// How long a cached file is served before its size and time are looked up again; "0s" looks at every use.
    revalidate: Span = Span(node.revalidate), range "0s to 1d", reload true;
    /// Path that answers 200, and 503 while the node drains; "" for none.
    health_path: String = node.health_path.unwrap_or_default(), reload true;
    /// Worker threads; 0 takes one for each core.
    threads: usize = 0, range "0 to 1024";
    /// File with the token of those that may purge, operators and switches: 16 to 256 characters. A second line may
    /// hold another token that is accepted. Unset: nobody may purge.
    purge_token: Option<String>, example "/etc/larder/purge.token", reload true;
    /// The memory cache.
    cache: CacheSection;
    /// Which senders are believed, and which header fields of others are kept.
    trust: NodeTrustSection;
    /// The access log: a line for each request.
    access_log: NodeAccessLogSection;
    /// What the node accepts, and how long it waits.
    limits: NodeLimitsSection, reload true;
    /// What the node tells switches of its load and its cache.
    report: ReportSection;
    /// A modelled store instead of a directory: replies of the sizes in a manifest, after the time a modelled disk
    /// takes. For demos and tests; the bytes mean nothing.
    model: Option<ModelSection>;
    /// An HTTP origin instead of a directory: the node is a cache before any application.
    origin: Option<OriginSection>;
    /// TLS for clients.
    tls: Option<NodeTlsSection>;
    /// Traces of requests, sent to an OpenTelemetry collector.
    traces: Option<TracesSection>;
    /// Connections that switches hand over: the node answers clients directly.
    handoff: Option<NodeHandoffSection>;
    /// A cluster of equal nodes without a front-end (PRESS): any takes any request, and together they are one memory.
    peers: Option<PeersSection>;
}

keys! {
    /// `[node.cache]`.
    table CacheSection, cache = CacheConfig::default();

    /// What is evicted first: "gds" (Greedy-Dual-Size), "gds-packets" or "lru" (least recently used).
    #[schemars(extend("enum" = ["gds", "gds-packets", "lru"]))]
    kind: String = cache.kind.to_string();
    /// Memory for content.
    size: Size = Size(cache.bytes), reload true;
    /// Larger objects are served but not kept. Unset: no limit but the cache itself.
    object_max: Option<Size>, example "16MiB", reload true;
    /// Objects above this size are cached, read and evicted in pieces of it.
    chunk: Size = Size(cache.chunk), range "a multiple of 4KiB from 4KiB to 64MiB";
}

keys! {
    /// `[node.limits]`.
    table NodeLimitsSection, limits = Limits::default();

    /// Client connections at once; a further one gets 503 and is closed.
    connections_max: u32 = limits.connections_max, range "1 to 1000000";
    /// Bytes of a request's head; 431 beyond.
    head_max: Size = Size(Bytes(limits.head_bytes_max as u64)), range "8KiB to 1MiB";
    /// Bytes of a request's path and query; 414 beyond.
    uri_max: Size = Size(Bytes(limits.uri_bytes_max as u64)), range "16B to 64KB";
    /// Header fields of a request; 431 beyond.
    headers_max: usize = limits.headers_max, range "8 to 256";
    /// Time for a request's head to arrive; then the connection is closed.
    head_timeout: Span = Span(limits.head_timeout), range "1ms to 1h";
    /// Time a kept-alive connection may be silent; then it is closed.
    idle_timeout: Span = Span(limits.idle_timeout), range "1ms to 1d";
    /// Time a client may take none of a reply's bytes; then the connection is closed, or with HTTP/2 that request ended.
    write_timeout: Span = Span(limits.write_timeout), range "1ms to 1h";
    /// Time that replies under way get at shutdown; what is left is aborted.
    drain_timeout: Span = Span(limits.drain_timeout), range "0s to 1h";
    /// Reads of the store under way or waiting; 503 with Retry-After beyond.
    reads_max: usize = limits.reads_max, range "1 to 1000000";
    /// Reads of a directory at one time; the rest wait. A modelled disk does one at a time.
    reads_at_once: usize = limits.reads_at_once, range "1 to 400";
    /// Memory for replies to clients of HTTP/2: 128KiB for each request beside another one of its connection. Requests beyond
    /// it wait.
    http2_bytes_max: Size = Size(Bytes(limits.http2_bytes_max as u64)), range "0B to 1TiB";
}

/// `[node.model]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelSection {
    /// Text file with a line for each target: size in bytes, a tab, the target as requested (path and query).
    #[schemars(example = &"manifest.tsv")]
    pub(crate) manifest: String,
    /// How many times faster than the LARD paper's disk of 1998 (28 ms to the first block).
    #[serde(default = "speed_1998")]
    #[schemars(extend("x-range" = "0.001 to 1000000"))]
    pub(crate) speed: f64,
    /// Disks; each serves one request at a time.
    #[serde(default = "one_disk")]
    #[schemars(extend("x-range" = "1 to 64"))]
    pub(crate) disks: u16,
    /// Model the processor too, and how many times faster than the LARD paper's of 1998 (290 us for a reply and 40 us for each
    /// 512 bytes of it) it is. Absent: replies are as fast as the real processor makes them.
    #[schemars(extend("x-range" = "0.001 to 1000000"), example = &1.0)]
    pub(crate) processor_speed: Option<f64>,
    /// Longest time that a program has the modelled processor while others wait. Unset: until it ends.
    #[schemars(extend("x-range" = "100us to 1h"), example = &"10ms")]
    pub(crate) turn: Option<Span>,
    /// Programs that answer some targets instead of the manifest, for experiments: tables with `name`, `paths`, and the cost of
    /// a reply: `cpu` time at processor_speed 1, `reads` of 8KiB from the disk, and bytes of the `reply`. The first program with a
    /// matching path answers. They need processor_speed.
    #[serde(default)]
    #[schemars(extend("x-entries" = 256), example = programs::example())]
    pub(crate) programs: Vec<ProgramTable>,
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

/// `[node]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct NodeRole {
    /// Where clients connect without TLS, if anywhere.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) node: NodeConfig,
    /// File with the secret that switches prove to get reports. Read when the role starts, and at each reload.
    pub(crate) report_secret: Option<PathBuf>,
    /// File with the tokens of those that may purge. Read when the role starts, and at each reload.
    pub(crate) purge_token: Option<PathBuf>,
    /// Whether switches hand over connections.
    pub(crate) handoff: Option<HandoffRole>,
    /// Whether it is one of equal nodes.
    pub(crate) peers: Option<PeersRole>,
}

pub(crate) fn node(raw: &NodeSection, warnings: &mut Vec<Fault>) -> Result<NodeRole, Fault> {
    let listen = listen(raw)?;
    node_name("node.name", &raw.name)?;
    let store = store(raw)?;
    if let StoreConfig::Origin(origin) = &store {
        warnings.extend(odd(origin));
    }
    let peers = raw
        .peers
        .as_ref()
        .map(|raw_peers| peers(raw_peers, &raw.name, raw.cache.size.0, listen))
        .transpose()?;
    let object_max = raw.cache.object_max.map_or(Bytes(u64::MAX), |limit| limit.0);
    // What is large is kept by no node of a cluster.
    let shared_max = peers.as_ref().map_or(Bytes(u64::MAX), PeersRole::object_max);
    let node = NodeConfig {
        name: raw.name.clone(),
        cache: CacheConfig {
            kind: word("node.cache.kind", &raw.cache.kind, &CacheKind::ALL.map(CacheKind::name))?,
            bytes: raw.cache.size.0,
            object_max: object_max.min(shared_max),
            chunk: raw.cache.chunk.0,
        },
        store,
        limits: limits(&raw.limits),
        revalidate: raw.revalidate.0,
        health_path: Some(raw.health_path.clone()).filter(|path| !path.is_empty()),
        stats_path: None,
        report: report(&raw.report)?,
        tls: raw.tls.as_ref().map(|raw| node_tls(&raw.as_switch(), listen)).transpose()?,
        announcers: ranges("node.trust.proxy_protocol_from", &raw.trust.proxy_protocol_from)?,
        entry: entry(
            "node",
            &raw.trust.relays,
            raw.trust.forwarded.0,
            (raw.trust.underscores_in_headers, raw.trust.url_fields_in_headers),
        )?,
        // Read when the role starts.
        purge: None,
        threads: raw.threads,
        access_log: access_log(
            "node",
            raw.access_log.file.as_deref(),
            &raw.access_log.format,
            &ACCESS_FIELDS,
        )?,
        traces: raw.traces.as_ref().map(|traced| traces(traced, "node", &raw.name)).transpose()?,
    };
    node.check().map_err(|error| {
        Fault::new(format!("node.{}", error.field), "cannot be used").hint(error.expected)
    })?;
    let handoff = raw.handoff.as_ref().map(|raw| handoff(raw, listen)).transpose()?;
    if handoff.is_some() && node.tls.as_ref().is_some_and(|tls| tls.redirect) {
        return Err(Fault::new(
            "node.tls.redirect",
            "contradicts node.handoff: switches hand over what comes without TLS",
        )
        .hint("let the switch redirect, or leave it out"));
    }
    if handoff.is_some() && peers.as_ref().is_some_and(|peers| peers.handoff.is_some()) {
        return Err(Fault::new(
            "node.peers.handoff",
            "contradicts node.handoff: connections are handed over by switches or by peers",
        )
        .hint("leave out one of them"));
    }
    let report_secret = raw.report.secret.as_ref().map(PathBuf::from);
    let purge_token = raw.purge_token.as_ref().map(PathBuf::from);
    Ok(NodeRole { listen, node, report_secret, purge_token, handoff, peers })
}

fn listen(raw: &NodeSection) -> Result<Option<SocketAddr>, Fault> {
    if raw.tls.is_some() && raw.listen.0.is_empty() {
        return Ok(None);
    }
    match addresses("node.listen", &raw.listen, "127.0.0.1:9001")?[..] {
        [listen] => Ok(Some(listen)),
        _ => {
            Err(Fault::new("node.listen", "a node listens on one address").hint("write one \"address:port\""))
        }
    }
}

fn limits(raw: &NodeLimitsSection) -> Limits {
    let bytes = |size: Size| usize::try_from(size.0.get()).unwrap_or(usize::MAX);
    Limits {
        connections_max: raw.connections_max,
        head_bytes_max: bytes(raw.head_max),
        uri_bytes_max: bytes(raw.uri_max),
        headers_max: raw.headers_max,
        head_timeout: raw.head_timeout.0,
        idle_timeout: raw.idle_timeout.0,
        write_timeout: raw.write_timeout.0,
        drain_timeout: raw.drain_timeout.0,
        reads_max: raw.reads_max,
        reads_at_once: raw.reads_at_once,
        http2_bytes_max: bytes(raw.http2_bytes_max),
    }
}

fn store(raw: &NodeSection) -> Result<StoreConfig, Fault> {
    if raw.bypass_page_cache && raw.root.is_none() && (raw.model.is_some() || raw.origin.is_some()) {
        return Err(Fault::new("node.bypass_page_cache", "there is no page cache to bypass without a root")
            .hint("leave it out, or serve a root"));
    }
    match (&raw.root, &raw.model, &raw.origin) {
        (Some(root), None, None) => {
            Ok(StoreConfig::Directory { root: PathBuf::from(root), bypass_page_cache: raw.bypass_page_cache })
        }
        (None, Some(model), None) => {
            let processor =
                model.processor_speed.map(|speed| ProcessorModel { speed, ..ProcessorModel::default() });
            let preload = match (model.preload, &raw.peers) {
                (false, _) => Preload::Nothing,
                (true, None) => Preload::Targets,
                (true, Some(_)) => Preload::Shared,
            };
            Ok(StoreConfig::Model(ModelConfig {
                disk: DiskModel { speed: model.speed, disks: model.disks, ..DiskModel::default() },
                processor,
                turn: model.turn.map(|turn| turn.0),
                programs: programs(model)?,
                preload,
                ..ModelConfig::new(&model.manifest)
            }))
        }
        (None, None, Some(raw)) => Ok(StoreConfig::Origin(Box::new(origin(raw)?))),
        (_, None, Some(_)) => {
            Err(Fault::new("node.origin", "contradicts node.root: content comes from one of them")
                .hint("keep root to serve files, or origin to stand before an application"))
        }
        (None, Some(_), Some(_)) => {
            Err(Fault::new("node.origin", "contradicts node.model: content comes from one of them")
                .hint("keep origin to stand before an application, or model for a demo"))
        }
        (Some(_), Some(_), _) => {
            Err(Fault::new("node.model", "contradicts node.root: content comes from one of them")
                .hint("keep root to serve files, or model for a demo"))
        }
        (None, None, None) => {
            Err(Fault::new("node.root", "missing: a node needs a directory to serve, or an origin to ask")
                .hint("write root = \"/srv/www\", or [node.origin] with url = \"http://127.0.0.1:8000\""))
        }
    }
}
