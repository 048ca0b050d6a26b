//! How nodes are reached, as written: TLS to them, and the PROXY protocol.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// `[switch.node_tls]`, and `tls` of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNodeTls {
    /// The authorities whose certificates nodes may show: a file, PEM. Unset: those that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/nodes-ca.pem")]
    pub(crate) ca: Option<String>,
    /// The name that nodes are asked for (SNI), and that their certificates must be for: a host's, or an IP address. Unset: the host
    /// in the node's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "nodes.example.internal")]
    pub(crate) name: Option<String>,
    /// Whether nodes' certificates are verified. With false an attacker on the path can read and change requests and replies: for
    /// trying things out.
    pub(crate) verify: bool,
    /// The switch's own certificate with its chain, for nodes that ask for one (mutual TLS): a file, PEM. Files are read at the start
    /// and at each reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/switch.pem")]
    pub(crate) certificate: Option<String>,
    /// Its key, PEM. Unset: it is in the certificate's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/switch.key")]
    pub(crate) key: Option<String>,
}

impl Default for RawNodeTls {
    fn default() -> Self {
        Self { ca: None, name: None, verify: true, certificate: None, key: None }
    }
}

/// `tls` of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum RawPeerTls {
    /// false: without TLS. true: as all nodes, with the defaults where these have none.
    Whether(bool),
    /// For itself.
    Own(RawNodeTls),
}

impl<'de> Deserialize<'de> for RawPeerTls {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct BoolOrTable;
        impl<'de> Visitor<'de> for BoolOrTable {
            type Value = RawPeerTls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a table such as { ca = \"/etc/larder/nodes-ca.pem\" }")
            }
            fn visit_bool<E: de::Error>(self, whether: bool) -> Result<RawPeerTls, E> {
                Ok(RawPeerTls::Whether(whether))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawPeerTls, A::Error> {
                RawNodeTls::deserialize(de::value::MapAccessDeserializer::new(map)).map(RawPeerTls::Own)
            }
        }
        from.deserialize_any(BoolOrTable)
    }
}

impl JsonSchema for RawPeerTls {
    fn schema_name() -> Cow<'static, str> {
        "NodeTls".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = RawNodeTls::json_schema(generator);
        schemars::json_schema!({"anyOf": [{"type": "boolean"}, table]})
    }
}
