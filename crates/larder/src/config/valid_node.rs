//! `[node]`, checked and turned into what the node is told.

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_node::{
    ACCESS_FIELDS, CacheConfig, DiskModel, Limits, NodeConfig, Preload, ProcessorModel, StoreConfig,
};

use super::error::Fault;
use super::raw_node::{RawModel, RawNode, RawNodeLimits};
use super::text::Size;
use super::valid::{addresses, in_range, node_name, word};
use super::valid_access_log::access_log;
use super::valid_agent::{HandoffRole, handoff};
use super::valid_dynamic::dynamic;
use super::valid_entry::entry;
use super::valid_origin::{odd, origin};
use super::valid_peers::{PeersRole, peers};
use super::valid_report::report;
use super::valid_tls::{node_tls, ranges};
use super::valid_traces::traces;

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

pub(super) fn node(raw: &RawNode, warnings: &mut Vec<Fault>) -> Result<NodeRole, Fault> {
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
    let threads = in_range("node.threads", raw.threads, 0, 1024)?;
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
        dynamic: raw.dynamic.as_ref().map(|raw| dynamic(raw, &store)).transpose()?,
        store,
        limits: limits(&raw.limits),
        revalidate: raw.revalidate.0,
        health_path: Some(raw.health_path.clone()).filter(|path| !path.is_empty()),
        stats_path: None,
        report: report(&raw.report)?,
        tls: raw.tls.as_ref().map(|raw| node_tls(raw, listen)).transpose()?,
        announcers: ranges("node.proxy_protocol_from", &raw.proxy_protocol_from)?,
        entry: entry(
            "node",
            &raw.trusted_relays,
            &raw.forwarded,
            (raw.underscores_in_headers, raw.url_fields_in_headers),
        )?,
        // Read when the role starts.
        purge: None,
        threads,
        access_log: access_log("node", raw.access_log.as_deref(), &raw.access_log_format, &ACCESS_FIELDS)?,
        traces: raw.traces.as_ref().map(|traced| traces(traced, "node", &raw.name)).transpose()?,
    };
    node.check().map_err(|error| {
        let key = match error.field.strip_prefix("disk.") {
            Some(disk) => format!("node.model.{disk}"),
            None if error.field == "processor.speed" => "node.model.processor_speed".to_owned(),
            None => format!("node.{}", config_name(error.field)),
        };
        Fault::out_of_range(key, error.expected)
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

fn listen(raw: &RawNode) -> Result<Option<SocketAddr>, Fault> {
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

/// The key of a field of the node's settings.
fn config_name(field: &str) -> String {
    if field.ends_with("http2_bytes_max") { field.to_owned() } else { field.replace("_bytes_max", "_max") }
}

fn limits(raw: &RawNodeLimits) -> Limits {
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

fn store(raw: &RawNode) -> Result<StoreConfig, Fault> {
    if raw.bypass_page_cache && raw.root.is_none() && (raw.model.is_some() || raw.origin.is_some()) {
        return Err(Fault::new("node.bypass_page_cache", "there is no page cache to bypass without a root")
            .hint("leave it out, or serve a root"));
    }
    match (&raw.root, &raw.model, &raw.origin) {
        (Some(root), None, None) => {
            Ok(StoreConfig::Directory { root: PathBuf::from(root), bypass_page_cache: raw.bypass_page_cache })
        }
        (None, Some(RawModel { manifest, speed, disks, processor_speed, preload }), None) => {
            let disk = DiskModel { speed: *speed, disks: *disks, ..DiskModel::default() };
            let processor =
                processor_speed.map(|speed| ProcessorModel { speed, ..ProcessorModel::default() });
            let preload = match (preload, &raw.peers) {
                (false, _) => Preload::Nothing,
                (true, None) => Preload::Targets,
                (true, Some(_)) => Preload::Shared,
            };
            Ok(StoreConfig::Model { manifest: PathBuf::from(manifest), disk, processor, preload })
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
