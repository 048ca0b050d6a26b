//! The config as used: every value is in its range, and no two of them contradict each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, SettingsError};
use larder_core::{Bytes, NodeSpec, PolicyKind, Settings, Weight};

use super::error::{Fault, suggest};
use super::raw::{AdmissionWord, RawAdmin, RawAdmission, RawConfig, RawModel, RawNode, RawPeer, RawSwitch};
use super::text::{Size, Span, Texts};

/// A whole valid config.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) switch: Option<SwitchRole>,
    pub(crate) node: Option<NodeRole>,
    pub(crate) admin: AdminListen,
    /// A filter for `tracing`.
    pub(crate) log: String,
}

/// `[switch]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct SwitchRole {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) nodes: Vec<Peer>,
    pub(crate) settings: Settings,
    pub(crate) access_log: Option<PathBuf>,
    /// 0: one for each core.
    pub(crate) threads: usize,
}

/// A node as the switch knows it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) spec: NodeSpec,
    /// "host:port"; the port is valid, the host may still be unknown.
    pub(crate) address: String,
}

/// `[node]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct NodeRole {
    pub(crate) listen: SocketAddr,
    pub(crate) name: String,
    pub(crate) store: Store,
    pub(crate) cache_kind: CacheKind,
    pub(crate) cache_bytes: Bytes,
    pub(crate) object_max: Bytes,
    pub(crate) chunk: Bytes,
    /// 0: one for each core.
    pub(crate) threads: usize,
}

/// Where a node's content comes from.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Directory { root: PathBuf, bypass_page_cache: bool },
    Model { manifest: PathBuf, speed: f64, disks: u16 },
}

/// Where the admin interface listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminListen {
    /// Nothing was said: the role decides.
    Unset,
    Off,
    At(SocketAddr),
}

/// Longest span a config may name: a year.
const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

impl Config {
    /// Checks everything; the first fault is returned.
    pub(super) fn new(raw: &RawConfig) -> Result<Self, Fault> {
        Ok(Self {
            switch: raw.switch.as_ref().map(switch).transpose()?,
            node: raw.node.as_ref().map(node).transpose()?,
            admin: admin(&raw.admin)?,
            log: raw.log.level.clone(),
        })
    }
}

fn switch(raw: &RawSwitch) -> Result<SwitchRole, Fault> {
    let listen = addresses("switch.listen", &raw.listen, "127.0.0.1:8080")?;
    if raw.nodes.is_empty() {
        let hint = "write nodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"]";
        return Err(Fault::new("switch.nodes", "missing: a switch needs at least one node").hint(hint));
    }
    if raw.nodes.len() > usize::from(raw.nodes_max) {
        let what = format!("{} nodes are listed, {} may be", raw.nodes.len(), raw.nodes_max);
        return Err(Fault::new("switch.nodes_max", what).hint("raise nodes_max"));
    }
    Ok(SwitchRole {
        listen,
        nodes: peers(&raw.nodes)?,
        settings: settings(raw)?,
        access_log: raw.access_log.as_ref().map(PathBuf::from),
        threads: in_range("switch.threads", raw.threads, 0, 1024)?,
    })
}

fn peers(raw: &[RawPeer]) -> Result<Vec<Peer>, Fault> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut peers = Vec::with_capacity(raw.len());
    for (i, entry) in raw.iter().enumerate() {
        let key = format!("switch.nodes[{i}]");
        host_and_port(&entry.address).map_err(|what| {
            Fault::new(&key, format!("'{}' {what}", entry.address))
                .hint("write \"10.0.0.1:80\" or \"name:80\"")
        })?;
        let name = entry.name.as_deref().unwrap_or(&entry.address);
        node_name(&key, name)?;
        if let Some(first) = names.insert(name, i) {
            let what = format!("the name '{name}' is that of switch.nodes[{first}] already");
            return Err(Fault::new(key, what)
                .hint("give each node a name of its own: { name = \"a\", address = ... }"));
        }
        let weight = Weight::from_f64(entry.weight).ok_or_else(|| {
            Fault::new(format!("{key}.weight"), format!("{} is out of range", entry.weight))
                .hint("0.001 to 100")
        })?;
        let cache = entry.cache.map_or(Bytes::ZERO, |size| size.0);
        let spec = NodeSpec { name: name.to_owned(), weight, cache };
        peers.push(Peer { spec, address: entry.address.clone() });
    }
    Ok(peers)
}

fn settings(raw: &RawSwitch) -> Result<Settings, Fault> {
    if raw.t_low >= raw.t_high {
        let what = format!("{} is not below t_high, which is {}", raw.t_low, raw.t_high);
        return Err(Fault::new("switch.t_low", what).hint("the paper uses t_low = 25, t_high = 65"));
    }
    let settings = Settings {
        policy: word("switch.policy", &raw.policy, &PolicyKind::ALL.map(PolicyKind::name))?,
        seed: raw.seed,
        t_low: raw.t_low,
        t_high: raw.t_high,
        replication_decay: span("switch.replication_decay", raw.replication_decay)?,
        targets_max: raw.targets_max,
        nodes_max: raw.nodes_max,
        admission: match raw.admission {
            RawAdmission::Fixed(limit) => Admission::Fixed(limit),
            RawAdmission::Word(AdmissionWord::Derived) => Admission::Derived,
            RawAdmission::Word(AdmissionWord::Unlimited) => Admission::Unlimited,
        },
        queue_max: in_range("switch.queue_max", raw.queue_max, 0, 1_000_000)?,
        queue_timeout: span("switch.queue_timeout", raw.queue_timeout)?,
        join_targets_per_s: raw.join_targets_per_s,
        join_warm_targets: raw.join_warm_targets,
        shards: raw.shards,
    };
    match settings.validate() {
        Ok(()) => Ok(settings),
        Err(SettingsError::OutOfRange { name, value, range }) => {
            Err(Fault::new(format!("switch.{name}"), format!("{value} is out of range")).hint(range))
        }
        Err(SettingsError::Node(error)) => Err(Fault::new("switch.nodes", error.to_string())),
    }
}

fn node(raw: &RawNode) -> Result<NodeRole, Fault> {
    let listen = addresses("node.listen", &raw.listen, "127.0.0.1:9001")?;
    let [listen] = listen[..] else {
        return Err(
            Fault::new("node.listen", "a node listens on one address").hint("write one \"address:port\"")
        );
    };
    node_name("node.name", &raw.name)?;
    let size = raw.cache.size.0;
    if size == Bytes::ZERO {
        return Err(
            Fault::new("node.cache.size", "a cache of 0 bytes holds nothing").hint("such as \"64MB\"")
        );
    }
    let object_max = raw.cache.object_max.map_or(size, |limit| limit.0);
    if object_max > size {
        let what = format!("{object_max} is more than the whole cache, {size}");
        return Err(
            Fault::new("node.cache.object_max", what).hint("leave it out, or make it at most cache.size")
        );
    }
    let chunk = raw.cache.chunk.0;
    if !(Bytes::kib(4)..=Bytes::mib(1024)).contains(&chunk) {
        return Err(Fault::new("node.cache.chunk", format!("{chunk} is out of range")).hint("4KiB to 1GiB"));
    }
    let kinds = CacheKind::ALL.map(CacheKind::name);
    Ok(NodeRole {
        listen,
        name: raw.name.clone(),
        store: store(raw)?,
        cache_kind: word("node.cache.kind", &raw.cache.kind, &kinds)?,
        cache_bytes: size,
        object_max,
        chunk,
        threads: in_range("node.threads", raw.threads, 0, 1024)?,
    })
}

fn store(raw: &RawNode) -> Result<Store, Fault> {
    match (&raw.root, &raw.model) {
        (Some(root), None) => {
            Ok(Store::Directory { root: PathBuf::from(root), bypass_page_cache: raw.bypass_page_cache })
        }
        (None, Some(RawModel { manifest, speed, disks })) => {
            if raw.bypass_page_cache {
                let what = "a modelled store has no page cache to bypass";
                return Err(Fault::new("node.bypass_page_cache", what).hint("leave it out, or serve a root"));
            }
            if !(0.001..=1e6).contains(speed) {
                let what = format!("{speed} is out of range");
                return Err(
                    Fault::new("node.model.speed", what).hint("0.001 to 1000000; 1 is a disk of 1998")
                );
            }
            let disks = in_range("node.model.disks", *disks, 1, 64)?;
            Ok(Store::Model { manifest: PathBuf::from(manifest), speed: *speed, disks })
        }
        (Some(_), Some(_)) => {
            Err(Fault::new("node.model", "contradicts node.root: content comes from one of them")
                .hint("keep root to serve files, or model for a demo"))
        }
        (None, None) => Err(Fault::new("node.root", "missing: a node needs a directory to serve")
            .hint("write root = \"/srv/www\"")),
    }
}

fn admin(raw: &RawAdmin) -> Result<AdminListen, Fault> {
    match raw.listen.as_deref() {
        None => Ok(AdminListen::Unset),
        Some("off") => Ok(AdminListen::Off),
        Some(text) => text.parse().map(AdminListen::At).map_err(|_| {
            Fault::new("admin.listen", format!("'{text}' is not \"address:port\""))
                .hint("write \"127.0.0.1:9900\", or \"off\"")
        }),
    }
}

fn addresses(key: &str, texts: &Texts, example: &str) -> Result<Vec<SocketAddr>, Fault> {
    if texts.0.is_empty() {
        return Err(Fault::new(key, "missing: where to listen").hint(format!("write listen = \"{example}\"")));
    }
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            Fault::new(key, format!("'{text}' is not an IP address with a port"))
                .hint(format!("write \"{example}\", \"0.0.0.0:80\" or \"[::]:80\""))
        })
    };
    texts.0.iter().map(parse).collect()
}

fn host_and_port(address: &str) -> Result<(), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("has no port")?;
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || bare_v6 || host.chars().any(char::is_whitespace) || host.contains('/') {
        return Err("names no host");
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err("has no port from 1 to 65535"),
    }
}

fn node_name(key: &str, name: &str) -> Result<(), Fault> {
    let plain =
        name.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '/' | '?' | '#' | ','));
    if plain && (1..=128).contains(&name.len()) {
        return Ok(());
    }
    Err(Fault::new(key, format!("'{}' cannot be a node's name", name.escape_debug()))
        .hint("1 to 128 letters, digits and -._:[]; names stand in URLs, logs and headers"))
}

fn in_range<T: PartialOrd + std::fmt::Display>(key: &str, value: T, least: T, most: T) -> Result<T, Fault> {
    if value >= least && value <= most {
        return Ok(value);
    }
    Err(Fault::new(key, format!("{value} is out of range")).hint(format!("{least} to {most}")))
}

fn span(key: &str, span: Span) -> Result<Duration, Fault> {
    if span.0 <= SPAN_MAX {
        return Ok(span.0);
    }
    Err(Fault::new(key, format!("{span} is out of range")).hint("at most a year"))
}

fn word<T: FromStr>(key: &str, text: &str, known: &[&str]) -> Result<T, Fault> {
    text.parse().map_err(|_| Fault::new(key, format!("unknown value '{text}'")).hint(suggest(text, known)))
}

impl From<Bytes> for Size {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory { root, bypass_page_cache } => {
                let past = if *bypass_page_cache { ", past the page cache" } else { "" };
                write!(f, "the directory {}{past}", root.display())
            }
            Self::Model { manifest, speed, disks } => {
                write!(
                    f,
                    "a modelled store of {} ({disks} disks, {speed} times 1998 speed)",
                    manifest.display()
                )
            }
        }
    }
}
