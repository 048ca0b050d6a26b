//! `[node]`.

pub(crate) mod origin;
pub(crate) mod origin_field;
pub(crate) mod origin_sign;
pub(crate) mod peers;
pub(crate) mod peers_handoff;
pub(crate) mod peers_policy;
mod peers_profile;
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

    /// Address where the node accepts requests: "address:port". Port 0 takes any free port. Required, unless there is
    /// [node.tls].
    listen: Texts, example "127.0.0.1:9001";
    /// Name of the node in Cache-Status and logs. With [node.peers] it must be unique in the cluster.
    name: String = node.name;
    /// Directory that the node serves. Exactly one of `root`, [node.origin] and [node.model] is required.
    root: Option<String>, example "/srv/www";
    /// Whether files are read past the page cache of the operating system, so that only `cache.size` decides what is
    /// a hit.
    bypass_page_cache: bool = false;
    /// Time for which a cached file is served before its size and modification time are checked again. 0s checks at
    /// every use.
    revalidate: Span = Span(node.revalidate), range "0s to 1d", reload true;
    /// Path that replies 200, or 503 while the node drains. "" turns it off.
    health_path: String = node.health_path.unwrap_or_default(), reload true;
    /// Number of worker threads. 0: one for each core.
    threads: usize = 0, range "0 to 1024";
    /// File with the token that permits a purge, 16 to 256 characters. A second line may contain another token that
    /// is accepted. Operators and switches send the token. Unset: nobody may purge.
    purge_token: Option<String>, example "/etc/larder/purge.token", reload true;
    /// The memory cache.
    cache: CacheSection;
    /// Trust in the senders of requests: trusted relays, the PROXY protocol, and the header fields that are kept.
    trust: NodeTrustSection;
    /// The access log, one line for each request.
    access_log: NodeAccessLogSection;
    /// Limits and timeouts of clients and reads.
    limits: NodeLimitsSection, reload true;
    /// Reports to switches: the node's load, and events of its cache.
    report: ReportSection;
    /// A modelled store instead of a directory, for demos and tests. Replies have the sizes of a manifest, after the
    /// time that a modelled disk takes. The bytes have no meaning.
    model: Option<ModelSection>;
    /// An HTTP origin instead of a directory. The node is then a cache before any application.
    origin: Option<OriginSection>;
    /// TLS for clients.
    tls: Option<NodeTlsSection>;
    /// Traces of requests for an OpenTelemetry collector.
    traces: Option<TracesSection>;
    /// Connections that switches hand off. The node replies to clients directly.
    handoff: Option<NodeHandoffSection>;
    /// A cluster of equal nodes without a switch (PRESS). Each node accepts any request, and all nodes together form
    /// one memory.
    peers: Option<PeersSection>;
}

keys! {
    /// `[node.cache]`.
    table CacheSection, cache = CacheConfig::default();

    /// Replacement policy: "gds" (Greedy-Dual-Size), "gds-packets" or "lru" (least recently used).
    #[schemars(extend("enum" = ["gds", "gds-packets", "lru"]))]
    kind: String = cache.kind.to_string();
    /// Memory for contents. 0 stores nothing.
    size: Size = Size(cache.bytes), reload true;
    /// Largest object that is stored; larger ones are served and not stored. Unset: no limit except `size`.
    object_max: Option<Size>, example "16MiB", reload true;
    /// Length above which objects are read, stored and evicted in chunks of this length.
    chunk: Size = Size(cache.chunk), range "a multiple of 4KiB from 4KiB to 64MiB";
}

keys! {
    /// `[node.limits]`.
    table NodeLimitsSection, limits = Limits::default();

    /// Number of client connections. A further connection gets 503 and is closed.
    connections_max: u32 = limits.connections_max, range "1 to 1000000";
    /// Size of a request's header. Beyond it: 431.
    head_max: Size = Size(Bytes(limits.head_bytes_max as u64)), range "8KiB to 1MiB";
    /// Size of a request's path and query. Beyond it: 414.
    uri_max: Size = Size(Bytes(limits.uri_bytes_max as u64)), range "16B to 64KB";
    /// Number of header fields of a request. Beyond it: 431.
    headers_max: usize = limits.headers_max, range "8 to 256";
    /// Time for a request's header to arrive. After it, the connection is closed.
    head_timeout: Span = Span(limits.head_timeout), range "1ms to 1h";
    /// Time that a kept-alive connection may be idle. After it, the connection is closed.
    idle_timeout: Span = Span(limits.idle_timeout), range "1ms to 1d";
    /// Time for which a client may take no byte of a reply. After it, the connection is closed; with HTTP/2, the
    /// request is aborted.
    write_timeout: Span = Span(limits.write_timeout), range "1ms to 1h";
    /// Time for replies in progress at shutdown. After it, they are aborted.
    drain_timeout: Span = Span(limits.drain_timeout), range "0s to 1h";
    /// Number of reads of the store that run or wait. Beyond it: 503 with Retry-After.
    reads_max: usize = limits.reads_max, range "1 to 1000000";
    /// Number of concurrent reads of a directory; further reads wait. A modelled disk does one read at a time.
    reads_at_once: usize = limits.reads_at_once, range "1 to 400";
    /// Memory for replies to HTTP/2 clients: 128KiB for each request beyond the first of its connection. Beyond it,
    /// requests wait.
    http2_bytes_max: Size = Size(Bytes(limits.http2_bytes_max as u64)), range "0B to 1TiB";
}

/// `[node.model]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelSection {
    /// Text file with one line per target: size in bytes, a tab, and the target as requested (path and query).
    /// Required.
    #[schemars(example = &"manifest.tsv")]
    pub(crate) manifest: String,
    /// Speed of the disk as a multiple of the LARD paper's disk of 1998 (28 ms to the first block).
    #[serde(default = "speed_1998")]
    #[schemars(extend("x-range" = "0.001 to 1000000"))]
    pub(crate) speed: f64,
    /// Number of disks. Each disk serves one request at a time.
    #[serde(default = "one_disk")]
    #[schemars(extend("x-range" = "1 to 64"))]
    pub(crate) disks: u16,
    /// Speed of a modelled processor as a multiple of the LARD paper's of 1998. At 1, a reply takes 290 us, and 40 us
    /// for each 512 bytes. Unset: no processor is modelled, and the real one sets the pace.
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
    /// Whether the node starts with targets in memory, in the order of the manifest, until the next target would
    /// evict one. Targets above `cache.object_max` are skipped. With [node.peers] the peers are told. For experiments
    /// with warm nodes.
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
    /// Address for clients without TLS.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) node: NodeConfig,
    /// File with the secret that switches prove to get reports. It is read when the role starts, and at each reload.
    pub(crate) report_secret: Option<PathBuf>,
    /// File with the tokens that permit a purge. It is read when the role starts, and at each reload.
    pub(crate) purge_token: Option<PathBuf>,
    /// Handoff from switches.
    pub(crate) handoff: Option<HandoffRole>,
    /// Membership in a cluster of equal nodes.
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
    // Large objects are stored by no node of a cluster.
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
            "contradicts node.handoff: switches hand off connections without TLS",
        )
        .hint("let the switch redirect, or leave it out"));
    }
    if handoff.is_some() && peers.as_ref().is_some_and(|peers| peers.handoff.is_some()) {
        return Err(Fault::new(
            "node.peers.handoff",
            "contradicts node.handoff: connections are handed off by switches or by peers",
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
