//! The config as written: what may stand in the file, with its defaults.
//!
//! The doc comments here are the reference: the JSON Schema (`larder check --schema`) and the commented default
//! file (`larder check --defaults`, kept as `examples/larder.toml`) are generated from these types. A value that
//! reads is not yet valid; [`super::valid`] turns it into settings that are.

use std::borrow::Cow;
use std::fmt;

use larder_core::{Bytes, Settings};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::text::{Size, Span, Texts};

/// The config file of larder. A switch needs `switch.listen` and `switch.nodes`; a node needs `node.listen` and
/// `node.root`. Everything else has a default.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawConfig {
    /// The front-end: accepts clients, picks the node that holds the target, relays (`larder switch`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switch: Option<RawSwitch>,
    /// A content node: serves a directory through its own bounded memory cache (`larder node`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<RawNode>,
    /// The admin interface: JSON and Prometheus metrics over HTTP.
    pub(crate) admin: RawAdmin,
    /// What is written to stderr.
    pub(crate) log: RawLog,
}

/// `[switch]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSwitch {
    #[schemars(example = "127.0.0.1:8080")]
    /// Where clients connect: one "address:port" or a list. Port 0 takes any free port. Required.
    pub(crate) listen: Texts,
    #[schemars(example = ["127.0.0.1:9001", "127.0.0.1:9002"])]
    /// The nodes: each an "address:port", or a table with `address` and, if wanted, `name`, `weight`, `cache`.
    /// Nodes are known by name (by default the address): one that returns under its name keeps its targets. Required.
    pub(crate) nodes: Vec<RawPeer>,
    /// Which node serves a target: "lard-r", "lard", "hash", "wrr", "rr", "least-conn" or "random".
    #[schemars(extend("enum" = ["random", "rr", "wrr", "least-conn", "hash", "lard", "lard-r"]))]
    pub(crate) policy: String,
    /// Seed of the policies that draw lots.
    pub(crate) seed: u64,
    /// T_low: a node of weight 1 with fewer active requests has spare room. 1 to 100000, below t_high.
    pub(crate) t_low: u32,
    /// T_high: a node of weight 1 with more active requests gives targets away. Above t_low, to 100000.
    pub(crate) t_high: u32,
    /// K of LARD/R: a target's server set that did not change for this long shrinks by one.
    pub(crate) replication_decay: Span,
    /// Targets remembered; beyond that the least recently asked is forgotten and placed anew when asked again.
    pub(crate) targets_max: usize,
    /// Nodes the cluster may grow to. 1 to 65534.
    pub(crate) nodes_max: u16,
    /// Requests admitted at once: "derived" (S = (n-1) t_high + t_low - 1, as in the paper), "unlimited", or a number.
    pub(crate) admission: RawAdmission,
    /// Requests that may wait for admission; the next one gets 503 with Retry-After. 0 to 1000000.
    pub(crate) queue_max: usize,
    /// Longest wait for admission; then 503 with Retry-After.
    pub(crate) queue_timeout: Span,
    /// New targets a second that a joining node may take until it is warm.
    pub(crate) join_targets_per_s: u32,
    /// Targets after which a joining node counts as warm.
    pub(crate) join_warm_targets: u32,
    /// Shards of the target map; a power of two up to 4096. More shards let more threads decide at once.
    pub(crate) shards: usize,
    /// Worker threads; 0 takes one for each core.
    pub(crate) threads: usize,
    /// File the access log is appended to (Combined Log Format with node, reason and times), or "-" for stdout.
    /// Unset: no access log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/log/larder/access.log")]
    pub(crate) access_log: Option<String>,
}

/// An entry of `switch.nodes`.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct RawPeer {
    /// Where the node listens: "address:port" or "name:port".
    pub(crate) address: String,
    /// Its name; by default the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Its share of the load, 0.001 to 100; 1 by default.
    pub(crate) weight: f64,
    /// Its cache size, if known: the first placement of targets weighs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<Size>,
}

/// The table form of [`RawPeer`].
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PeerTable {
    address: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default = "weight_one")]
    weight: f64,
    #[serde(default)]
    cache: Option<Size>,
}

fn weight_one() -> f64 {
    1.0
}

impl From<&str> for RawPeer {
    fn from(address: &str) -> Self {
        Self { address: address.to_owned(), name: None, weight: 1.0, cache: None }
    }
}

impl<'de> Deserialize<'de> for RawPeer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = RawPeer;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "an \"address:port\" or a table such as { address = \"10.0.0.1:80\", weight = 2.0 }",
                )
            }
            fn visit_str<E: de::Error>(self, address: &str) -> Result<RawPeer, E> {
                Ok(RawPeer::from(address))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawPeer, A::Error> {
                let table = PeerTable::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let PeerTable { address, name, weight, cache } = table;
                Ok(RawPeer { address, name, weight, cache })
            }
        }
        from.deserialize_any(TextOrTable)
    }
}

impl JsonSchema for RawPeer {
    fn schema_name() -> Cow<'static, str> {
        "Node".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = PeerTable::json_schema(generator);
        schemars::json_schema!({"anyOf": [{"type": "string"}, table]})
    }
}

/// `switch.admission`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "admission is \"derived\", \"unlimited\" or a number of requests")]
pub(crate) enum RawAdmission {
    /// A number of requests.
    Fixed(u32),
    /// "derived" or "unlimited".
    Word(AdmissionWord),
}

/// The words of [`RawAdmission`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AdmissionWord {
    /// From the thresholds and the number of nodes that are up.
    Derived,
    /// No limit.
    Unlimited,
}

/// `[node]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNode {
    #[schemars(example = "127.0.0.1:9001")]
    /// Where the node accepts requests: "address:port". Port 0 takes any free port. Required.
    pub(crate) listen: Texts,
    /// Its name in Cache-Status and in logs; by default "node".
    pub(crate) name: String,
    #[schemars(example = "/srv/www")]
    /// The directory it serves. Either this or `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<String>,
    /// Read files past the page cache of the operating system, so that `cache.size` alone decides what is a hit.
    pub(crate) bypass_page_cache: bool,
    /// Worker threads; 0 takes one for each core.
    pub(crate) threads: usize,
    /// The memory cache.
    pub(crate) cache: RawCache,
    /// A modelled store instead of a directory: replies of the sizes in a manifest, after the time a modelled disk
    /// takes. For demos and tests; the bytes mean nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<RawModel>,
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
    /// Larger objects are served but not kept; by default the cache size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "16MiB")]
    pub(crate) object_max: Option<Size>,
    /// Objects above this size are cached, read and evicted in pieces of this size.
    pub(crate) chunk: Size,
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
}

fn speed_1998() -> f64 {
    1.0
}

fn one_disk() -> u16 {
    1
}

/// `[admin]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdmin {
    #[schemars(example = "127.0.0.1:9900")]
    /// Where the admin interface listens: "address:port", or "off". Unset: 127.0.0.1:9900 for a switch, off for a
    /// node. It has no authentication: keep it on loopback or on a network of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
}

/// `[log]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawLog {
    /// Least severity written to stderr: "error", "warn", "info", "debug", "trace", or a filter such as
    /// "info,larder_front=debug". The environment variable LARDER_LOG wins over it.
    pub(crate) level: String,
}

impl Default for RawLog {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}

impl Default for RawCache {
    fn default() -> Self {
        Self {
            kind: "gds".to_owned(),
            size: Size(Bytes::mib(64)),
            object_max: None,
            chunk: Size(Bytes::mib(1)),
        }
    }
}

impl Default for RawNode {
    fn default() -> Self {
        Self {
            listen: Texts::default(),
            name: "node".to_owned(),
            root: None,
            bypass_page_cache: false,
            threads: 0,
            cache: RawCache::default(),
            model: None,
        }
    }
}

impl Default for RawSwitch {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            listen: Texts::default(),
            nodes: Vec::new(),
            policy: settings.policy.to_string(),
            seed: settings.seed,
            t_low: settings.t_low,
            t_high: settings.t_high,
            replication_decay: Span(settings.replication_decay),
            targets_max: settings.targets_max,
            nodes_max: settings.nodes_max,
            admission: RawAdmission::Word(AdmissionWord::Derived),
            queue_max: settings.queue_max,
            queue_timeout: Span(settings.queue_timeout),
            join_targets_per_s: settings.join_targets_per_s,
            join_warm_targets: settings.join_warm_targets,
            shards: settings.shards,
            threads: 0,
            access_log: None,
        }
    }
}
