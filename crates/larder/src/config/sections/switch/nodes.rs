//! Entries of `switch.nodes`, and of a file of nodes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use larder_core::{Bytes, NodeSpec, Weight};
use larder_switch::{NodeEntry, ProxyVersion};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::sections::switch::connect::{PeerTls, of_node};
use crate::config::sections::switch::handoff::{PeerHandoff, peer};
use crate::config::text::{Size, Texts};
use crate::config::values::node_name;
use crate::config::words::Word;

/// Range of a node's weight.
pub(crate) const WEIGHT: &str = "0.001 to 100";

/// An entry of `switch.nodes`.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct NodeKey {
    /// Address of the node: "address:port" or "name:port".
    pub(crate) address: String,
    /// Name of the node; `None` for the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Weight of the node.
    pub(crate) weight: f64,
    /// Size of the node's cache, for the first placement of targets; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<Size>,
    /// Groups of the node, for routes that use only some nodes.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    pub(crate) groups: Texts,
    /// Whether the node is a backup, which takes requests only while no ordinary node of its group is up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) backup: bool,
    /// Whether the switch uses HTTP/2 to the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) http2: bool,
    /// TLS to the node; `None` for the settings for all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<PeerTls>,
    /// PROXY protocol to the node; `None` for the setting for all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_protocol: Option<Word<Option<ProxyVersion>>>,
    /// Handoff to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handoff: Option<PeerHandoff>,
}

/// The table form of [`NodeKey`].
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    /// Address of the node: "address:port" or "name:port". Required.
    address: String,
    /// Name of the node. Unset: the address.
    #[serde(default)]
    name: Option<String>,
    /// Weight of the node: its share of the load.
    #[serde(default = "weight_one")]
    #[schemars(extend("x-range" = WEIGHT))]
    weight: f64,
    /// Size of the node's cache. The first placement of targets uses it. Unset: unknown.
    #[serde(default)]
    cache: Option<Size>,
    /// Groups of the node, for routes with `group`.
    #[serde(default)]
    groups: Texts,
    /// Whether the node is a backup. A backup takes requests only while no ordinary node of its group is up.
    #[serde(default)]
    backup: bool,
    /// Whether the switch uses HTTP/2 to the node, which gRPC needs.
    #[serde(default)]
    http2: bool,
    /// TLS to the node: true, false, or a table as [switch.connect.tls]. Unset: as under [switch.connect].
    #[serde(default)]
    tls: Option<PeerTls>,
    /// PROXY protocol to the node: "off", "v1" or "v2". Unset: as under [switch.connect].
    #[serde(default)]
    proxy_protocol: Option<Word<Option<ProxyVersion>>>,
    /// Control channel and public key of the node, for handoff. Unset: connections to the node are relayed.
    #[serde(default)]
    handoff: Option<PeerHandoff>,
}

fn weight_one() -> f64 {
    1.0
}

impl From<&str> for NodeKey {
    fn from(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            name: None,
            weight: 1.0,
            cache: None,
            groups: Texts::default(),
            backup: false,
            http2: false,
            tls: None,
            proxy_protocol: None,
            handoff: None,
        }
    }
}

impl<'de> Deserialize<'de> for NodeKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = NodeKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "an \"address:port\" or a table such as { address = \"10.0.0.1:80\", weight = 2.0 }",
                )
            }
            fn visit_str<E: de::Error>(self, address: &str) -> Result<NodeKey, E> {
                Ok(NodeKey::from(address))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NodeKey, A::Error> {
                let table = NodeTable::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let NodeTable { address, name, weight, cache, groups, backup, .. } = table;
                let NodeTable { http2, tls, proxy_protocol, handoff, .. } = table;
                Ok(NodeKey {
                    address,
                    name,
                    weight,
                    cache,
                    groups,
                    backup,
                    http2,
                    tls,
                    proxy_protocol,
                    handoff,
                })
            }
        }
        from.deserialize_any(TextOrTable)
    }
}

impl JsonSchema for NodeKey {
    fn schema_name() -> Cow<'static, str> {
        "Node".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = NodeTable::json_schema(generator);
        schemars::json_schema!({"anyOf": [{"type": "string"}, table]})
    }
}

/// Returns the nodes of a list: names that differ, addresses with a port, weights in range.
pub(crate) fn node_entries(list: &str, raw: &[NodeKey]) -> Result<Vec<NodeEntry>, Fault> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut entries = Vec::with_capacity(raw.len());
    for (i, entry) in raw.iter().enumerate() {
        let key = format!("{list}[{i}]");
        host_and_port(&entry.address).map_err(|what| {
            Fault::new(&key, format!("'{}' {what}", entry.address))
                .hint("write \"10.0.0.1:80\" or \"name:80\"")
        })?;
        let name = entry.name.as_deref().unwrap_or(&entry.address);
        node_name(&key, name)?;
        if let Some(first) = names.insert(name, i) {
            let what = format!("the name '{name}' is that of {list}[{first}] already");
            return Err(Fault::new(key, what)
                .hint("give each node a name of its own: { name = \"a\", address = ... }"));
        }
        let weight = Weight::from_f64(entry.weight).ok_or_else(|| {
            Fault::new(format!("{key}.weight"), format!("{} is out of range", entry.weight)).hint(WEIGHT)
        })?;
        let cache = entry.cache.map_or(Bytes::ZERO, |size| size.0);
        let spec = NodeSpec { weight, cache, backup: entry.backup, ..NodeSpec::named(name) };
        let groups = groups(&format!("{key}.groups"), &entry.groups.0)?;
        let handoff = entry.handoff.as_ref().map(|raw| peer(&key, raw)).transpose()?;
        let node =
            NodeEntry { groups, handoff, http2: entry.http2, ..NodeEntry::new(spec, entry.address.clone()) };
        entries.push(of_node(&key, entry, node)?);
    }
    Ok(entries)
}

/// Validates the groups of a node.
pub(crate) fn groups(key: &str, names: &[String]) -> Result<Vec<String>, Fault> {
    for (i, name) in names.iter().enumerate() {
        let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !fits || !(1..=64).contains(&name.len()) {
            let what = format!("'{}' cannot be a group's name", name.escape_debug());
            return Err(Fault::new(key, what).hint("1 to 64 letters, digits, '-', '_' and '.'"));
        }
        if names[..i].contains(name) {
            return Err(Fault::new(key, format!("'{name}' is named twice")).hint("leave one out"));
        }
    }
    Ok(names.to_vec())
}

pub(crate) fn host_and_port(address: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("has no port")?;
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || bare_v6 || host.chars().any(char::is_whitespace) || host.contains('/') {
        return Err("names no host");
    }
    match port.parse::<u16>() {
        Ok(port @ 1..) => Ok((host, port)),
        _ => Err("has no port from 1 to 65535"),
    }
}
