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

    /// The authorities whose certificates nodes may show: a file, PEM. Unset: those that the system trusts.
    ca: Option<String>, example "/etc/larder/nodes-ca.pem";
    /// The name that nodes are asked for (SNI), and that their certificates must be for: a host's, or an IP address. Unset: the host
    /// in the node's address.
    name: Option<String>, example "nodes.example.internal";
    /// Whether nodes' certificates are verified. With false an attacker on the path can read and change requests and replies: for
    /// trying things out.
    verify: bool = true;
    /// The switch's own certificate with its chain, for nodes that ask for one (mutual TLS): a file, PEM. Files are read at the start
    /// and at each reload.
    certificate: Option<String>, example "/etc/larder/switch.pem";
    /// Its key, PEM. Unset: it is in the certificate's file.
    key: Option<String>, example "/etc/larder/switch.key";
}

keys! {
    /// `[switch.connect]`.
    table ConnectSection;

    /// How often names in nodes' addresses are looked up anew: a node whose name leads elsewhere moves there, and keeps its
    /// targets. 0s: once, at the start.
    follow_names: Span = Span(std::time::Duration::from_secs(10)), range "1s to 1h, or 0s";
    /// Whether connections to nodes begin with the PROXY protocol, and so announce the client that they are for: "off", "v1" or "v2".
    /// The connection is for one client, and ends with the client's. A node's `proxy_protocol` says otherwise for itself.
    proxy_protocol: Word<Option<ProxyVersion>> = Word(None);
    /// TLS to the nodes, to all that do not say `tls` for themselves. Unset: none.
    tls: Option<ReachTlsSection>;
}

/// `tls` of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum PeerTls {
    /// false: without TLS. true: as all nodes, with the defaults where these have none.
    Whether(bool),
    /// For itself.
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

/// What holds for all nodes, held against those that there are.
pub(crate) fn connect(
    raw: &SwitchSection,
    switch: &mut SwitchConfig,
    warnings: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let tls = raw.connect.tls.as_ref().map(|tls| node_tls("switch.connect.tls", tls)).transpose()?;
    for (at, tls) in tables(raw) {
        if !tls.verify {
            let what = "certificates of nodes are not checked: whoever is on the way to a node can read and change all requests and replies";
            let hint =
                "write ca = \"FILE\", with the certificate of the nodes' authority, or of the node itself";
            warnings.push(Fault::new(format!("{at}.verify"), what).hint(hint));
        }
    }
    switch.reach = NodeTransport { tls, announce: raw.connect.proxy_protocol.0 };
    against_nodes(switch)
}

/// The tables of TLS to nodes, and where they stand.
fn tables(raw: &SwitchSection) -> impl Iterator<Item = (String, &ReachTlsSection)> {
    let of_all = raw.connect.tls.iter().map(|tls| ("switch.connect.tls".to_owned(), tls));
    let own = raw.nodes.iter().enumerate().filter_map(|(i, node)| match &node.tls {
        Some(PeerTls::Own(tls)) => Some((format!("switch.nodes[{i}].tls"), tls)),
        _ => None,
    });
    of_all.chain(own)
}

/// What a node says for itself.
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

/// Holds the nodes of the config against what holds for all, and against what is handed over.
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
            let what = format!("copies are asked for by HTTP/1.1, and node '{}' by HTTP/2", node.spec.name);
            let hint = "give the copies nodes without http2, by a group: they are load of their own anyway";
            return Err(Fault::new(format!("switch.routes[{i}].mirror"), what).hint(hint));
        }
    }
    // Nodes that are found later have what holds for all.
    if handed && switch.nodes.is_empty() && (switch.reach.tls.is_some() || switch.reach.announce.is_some()) {
        let key =
            if switch.reach.tls.is_some() { "switch.connect.tls" } else { "switch.connect.proxy_protocol" };
        let what =
            "contradicts switch.handoff: a connection that is handed over begins with what the client sends";
        return Err(
            Fault::new(key, what).hint("leave it out, or write mechanism = \"relay\" in [switch.handoff]")
        );
    }
    Ok(())
}

/// TLS to nodes, with the files read once, so that `larder check` finds them wrong.
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
