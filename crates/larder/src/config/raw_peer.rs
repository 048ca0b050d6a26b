//! An entry of `switch.nodes`, and of a file of nodes.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::raw_handoff::RawPeerHandoff;
use super::raw_reach::RawPeerTls;
use super::text::{Size, Texts};

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
    /// The groups it is in, for routes that use only some nodes.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    pub(crate) groups: Texts,
    /// Whether it is a backup: it takes requests only while no ordinary node of its group is up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) backup: bool,
    /// Whether it is asked by HTTP/2.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) http2: bool,
    /// Whether it is reached by TLS, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<RawPeerTls>,
    /// Whether connections to it announce their client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_protocol: Option<String>,
    /// How it takes connections that are handed to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handoff: Option<RawPeerHandoff>,
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
    #[serde(default)]
    groups: Texts,
    #[serde(default)]
    backup: bool,
    #[serde(default)]
    http2: bool,
    #[serde(default)]
    tls: Option<RawPeerTls>,
    #[serde(default)]
    proxy_protocol: Option<String>,
    #[serde(default)]
    handoff: Option<RawPeerHandoff>,
}

fn weight_one() -> f64 {
    1.0
}

impl From<&str> for RawPeer {
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
                let PeerTable { address, name, weight, cache, groups, backup, .. } = table;
                let PeerTable { http2, tls, proxy_protocol, handoff, .. } = table;
                Ok(RawPeer {
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

impl JsonSchema for RawPeer {
    fn schema_name() -> Cow<'static, str> {
        "Node".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = PeerTable::json_schema(generator);
        schemars::json_schema!({"anyOf": [{"type": "string"}, table]})
    }
}
