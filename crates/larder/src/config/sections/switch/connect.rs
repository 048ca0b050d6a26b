//! `[switch.connect]`: names of nodes, TLS to them, and the PROXY protocol.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use larder_switch::{
    MechanismSetting, NodeAnnounce, NodeEntry, NodeTls, NodeTransport, OutboundTls, ProxyVersion,
    SwitchConfig,
};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::outbound::outbound;
use crate::config::sections::switch::nodes::NodeKey;
use crate::config::sections::switch::section::SwitchSection;
use crate::config::text::Span;
use crate::config::words::Word;

keys! {
    /// `[switch.connect.tls]`, and `tls` of a node.
    #[derive(PartialEq)]
    table ReachTlsSection;

    /// PEM file with the authorities of nodes' certificates. Unset: the authorities that the system trusts.
    ca: Option<String>, example "/etc/larder/nodes-ca.pem";
    /// Name that nodes are asked for (SNI) and that their certificates must have: a host name or an IP address.
    /// Unset: the host of the node's address.
    name: Option<String>, example "nodes.example.internal";
    /// Whether nodes' certificates are verified. With false, an attacker on the path can read and change requests and
    /// replies. Use it for tests only.
    verify: bool = true;
    /// PEM file with the switch's own certificate and its chain, for nodes that ask for one (mutual TLS). Files are
    /// read at the start and at each reload.
    certificate: Option<String>, example "/etc/larder/switch.pem";
    /// PEM file with the key of `certificate`. Unset: the key is in the file of the certificate.
    key: Option<String>, example "/etc/larder/switch.key";
}

keys! {
    /// `[switch.connect]`.
    table ConnectSection;

    /// Interval at which names in nodes' addresses are resolved again. If the address changes, the node moves there
    /// and keeps its targets. 0s: only at the start.
    follow_names: Span = Span(std::time::Duration::from_secs(10)), range "1s to 1h, or 0s";
    /// PROXY protocol on connections to nodes, which announces the client: "off", "v1" or "v2". Such a connection
    /// serves one client, and ends with the client's connection. `proxy_protocol` of a node overrides it.
    proxy_protocol: Word<Option<ProxyVersion>> = Word(None);
    /// TLS to nodes without their own setting `tls`. Unset: none.
    tls: Option<ReachTlsSection>;
}

/// `tls` of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum PeerTls {
    /// `false`: no TLS. `true`: the settings for all nodes, or the defaults if there are none.
    Whether(bool),
    /// Settings of the node.
    Own(ReachTlsSection),
}

impl<'de> Deserialize<'de> for PeerTls {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct BoolOrTable;
        impl<'de> Visitor<'de> for BoolOrTable {
            type Value = PeerTls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a table such as { ca = \"/etc/larder/nodes-ca.pem\" }")
            }
            fn visit_bool<E: de::Error>(self, whether: bool) -> Result<PeerTls, E> {
                Ok(PeerTls::Whether(whether))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PeerTls, A::Error> {
                ReachTlsSection::deserialize(de::value::MapAccessDeserializer::new(map)).map(PeerTls::Own)
            }
        }
        from.deserialize_any(BoolOrTable)
    }
}

impl JsonSchema for PeerTls {
    fn schema_name() -> Cow<'static, str> {
        "NodeTls".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = ReachTlsSection::json_schema(generator);
        schemars::json_schema!({"anyOf": [{"type": "boolean"}, table]})
    }
}

/// Applies the settings for all nodes, and checks them against the nodes.
pub(crate) fn connect(
    raw: &SwitchSection,
    switch: &mut SwitchConfig,
    warnings: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let tls = raw.connect.tls.as_ref().map(|tls| node_tls("switch.connect.tls", tls)).transpose()?;
    for (at, tls) in tables(raw) {
        if !tls.verify {
            let what = "certificates of nodes are not verified: an attacker on the path can read and change all requests and replies";
            let hint =
                "write ca = \"FILE\", with the certificate of the nodes' authority, or of the node itself";
            warnings.push(Fault::new(format!("{at}.verify"), what).hint(hint));
        }
    }
    switch.reach = NodeTransport { tls, announce: raw.connect.proxy_protocol.0 };
    against_nodes(switch)
}

/// Returns the tables of TLS to nodes, each with its place.
fn tables(raw: &SwitchSection) -> impl Iterator<Item = (String, &ReachTlsSection)> {
    let of_all = raw.connect.tls.iter().map(|tls| ("switch.connect.tls".to_owned(), tls));
    let own = raw.nodes.iter().enumerate().filter_map(|(i, node)| match &node.tls {
        Some(PeerTls::Own(tls)) => Some((format!("switch.nodes[{i}].tls"), tls)),
        _ => None,
    });
    of_all.chain(own)
}

/// Applies the settings of one node.
pub(crate) fn of_node(at: &str, raw: &NodeKey, entry: NodeEntry) -> Result<NodeEntry, Fault> {
    let tls = match &raw.tls {
        None => NodeTls::Default,
        Some(PeerTls::Whether(false)) => NodeTls::Off,
        Some(PeerTls::Whether(true)) => NodeTls::On,
        Some(PeerTls::Own(tls)) => NodeTls::Own(node_tls(&format!("{at}.tls"), tls)?),
    };
    let announce = raw.proxy_protocol.map_or(NodeAnnounce::Default, |own| NodeAnnounce::Own(own.0));
    Ok(NodeEntry { tls, announce, ..entry })
}

/// Checks the nodes against the settings for all nodes and against handoff.
fn against_nodes(switch: &SwitchConfig) -> Result<(), Fault> {
    let handed = switch.handoff.setting != MechanismSetting::Relay;
    for (i, node) in switch.nodes.iter().enumerate() {
        let Some(what) = node.contradiction(&switch.reach, handed) else { continue };
        let of_all = node.announce == NodeAnnounce::Default && node.tls == NodeTls::Default;
        let announces = node.announce_by(&switch.reach).is_some();
        let key = match (announces && (node.http2 || node.announce != NodeAnnounce::Default), of_all) {
            (true, _) if node.announce != NodeAnnounce::Default => {
                format!("switch.nodes[{i}].proxy_protocol")
            }
            (true, _) => format!("switch.nodes[{i}].http2"),
            (false, true) if announces => "switch.connect.proxy_protocol".to_owned(),
            (false, true) => "switch.connect.tls".to_owned(),
            (false, false) => format!("switch.nodes[{i}].tls"),
        };
        let hint = if announces && node.http2 {
            "write proxy_protocol = \"off\" for this node, or leave http2 out: X-Forwarded-For names the client too"
        } else {
            "leave it out, or write mechanism = \"relay\" in [switch.handoff]"
        };
        return Err(Fault::new(key, format!("cannot work: {what}")).hint(hint));
    }
    for (i, route) in switch.routes.iter().enumerate().filter(|(_, route)| route.mirror_of.is_some()) {
        let takes = |node: &&NodeEntry| route.group.as_ref().is_none_or(|group| node.groups.contains(group));
        if let Some(node) = switch.nodes.iter().filter(takes).find(|node| node.http2) {
            let what = format!("copies use HTTP/1.1, and node '{}' uses HTTP/2", node.spec.name);
            let hint = "use a group of nodes without http2 for the copies";
            return Err(Fault::new(format!("switch.routes[{i}].mirror"), what).hint(hint));
        }
    }
    // Nodes that are found later have what holds for all.
    if handed && switch.nodes.is_empty() && (switch.reach.tls.is_some() || switch.reach.announce.is_some()) {
        let key =
            if switch.reach.tls.is_some() { "switch.connect.tls" } else { "switch.connect.proxy_protocol" };
        let what = "contradicts switch.handoff: a handed-off connection begins with the client's bytes";
        return Err(
            Fault::new(key, what).hint("leave it out, or write mechanism = \"relay\" in [switch.handoff]")
        );
    }
    Ok(())
}

/// Returns TLS to nodes. The files are read, so that `larder check` finds their faults.
fn node_tls(at: &str, raw: &ReachTlsSection) -> Result<OutboundTls, Fault> {
    let tls = OutboundTls {
        authorities: raw.ca.as_ref().map(PathBuf::from),
        name: raw.name.clone(),
        verify: raw.verify,
        certificate: raw.certificate.as_ref().map(PathBuf::from),
        key: raw.key.as_ref().map(PathBuf::from),
    };
    outbound(at, &tls, "switch").map(|_| tls)
}
