//! How nodes are reached, checked and turned into what the front is told.

use std::path::PathBuf;

use larder_front::{
    MechanismSetting, NodeAnnounce, NodeEntry, NodeTls, NodeTransport, OutboundTls, ProxyVersion,
    SwitchConfig,
};

use super::error::Fault;
use super::explain::suggest;
use super::raw_peer::RawPeer;
use super::raw_reach::{RawNodeTls, RawPeerTls};
use super::raw_switch::RawSwitch;
use super::valid_outbound::outbound;

const ANNOUNCEMENTS: [&str; 3] = ["off", "v1", "v2"];

/// What holds for all nodes, held against those that there are.
pub(super) fn reach(
    raw: &RawSwitch,
    switch: &mut SwitchConfig,
    warnings: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let tls = raw.node_tls.as_ref().map(|tls| node_tls("switch.node_tls", tls)).transpose()?;
    for (at, tls) in tables(raw) {
        if !tls.verify {
            let what = "certificates of nodes are not checked: whoever is on the way to a node can read and change all requests and replies";
            let hint =
                "write ca = \"FILE\", with the certificate of the nodes' authority, or of the node itself";
            warnings.push(Fault::new(format!("{at}.verify"), what).hint(hint));
        }
    }
    switch.reach =
        NodeTransport { tls, announce: announce("switch.node_proxy_protocol", &raw.node_proxy_protocol)? };
    against_nodes(switch)
}

/// The tables of TLS to nodes, and where they stand.
fn tables(raw: &RawSwitch) -> impl Iterator<Item = (String, &RawNodeTls)> {
    let of_all = raw.node_tls.iter().map(|tls| ("switch.node_tls".to_owned(), tls));
    let own = raw.nodes.iter().enumerate().filter_map(|(i, node)| match &node.tls {
        Some(RawPeerTls::Own(tls)) => Some((format!("switch.nodes[{i}].tls"), tls)),
        _ => None,
    });
    of_all.chain(own)
}

/// What a node says for itself.
pub(super) fn of_node(at: &str, raw: &RawPeer, entry: NodeEntry) -> Result<NodeEntry, Fault> {
    let tls = match &raw.tls {
        None => NodeTls::Default,
        Some(RawPeerTls::Whether(false)) => NodeTls::Off,
        Some(RawPeerTls::Whether(true)) => NodeTls::On,
        Some(RawPeerTls::Own(tls)) => NodeTls::Own(node_tls(&format!("{at}.tls"), tls)?),
    };
    let key = format!("{at}.proxy_protocol");
    let announce = match &raw.proxy_protocol {
        None => NodeAnnounce::Default,
        Some(text) => NodeAnnounce::Own(announce(&key, text)?),
    };
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
            (false, true) if announces => "switch.node_proxy_protocol".to_owned(),
            (false, true) => "switch.node_tls".to_owned(),
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
        let key = if switch.reach.tls.is_some() { "switch.node_tls" } else { "switch.node_proxy_protocol" };
        let what =
            "contradicts switch.handoff: a connection that is handed over begins with what the client sends";
        return Err(
            Fault::new(key, what).hint("leave it out, or write mechanism = \"relay\" in [switch.handoff]")
        );
    }
    Ok(())
}

fn announce(key: &str, text: &str) -> Result<Option<ProxyVersion>, Fault> {
    match text {
        "off" => Ok(None),
        "v1" => Ok(Some(ProxyVersion::V1)),
        "v2" => Ok(Some(ProxyVersion::V2)),
        other => Err(Fault::new(key, format!("unknown value '{}'", other.escape_debug()))
            .hint(suggest(other, &ANNOUNCEMENTS))),
    }
}

/// TLS to nodes, with the files read once, so that `larder check` finds them wrong.
fn node_tls(at: &str, raw: &RawNodeTls) -> Result<OutboundTls, Fault> {
    let tls = OutboundTls {
        authorities: raw.ca.as_ref().map(PathBuf::from),
        name: raw.name.clone(),
        verify: raw.verify,
        certificate: raw.certificate.as_ref().map(PathBuf::from),
        key: raw.key.as_ref().map(PathBuf::from),
    };
    outbound(at, &tls, "switch").map(|_| tls)
}
