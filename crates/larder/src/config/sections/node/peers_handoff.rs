//! `[node.peers]`: handing connections over, checked.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use larder_core::Bytes;

use crate::config::error::Fault;
use crate::config::sections::node::peers::{PeersHandoff, PeersSection};
use crate::config::text::Texts;
use crate::config::values::addresses;

/// Handoff between peers, valid.
#[derive(Clone, Debug)]
pub(crate) struct PeersHandoffRole {
    /// Whether a node without support for handoff refuses to start.
    pub(crate) required: bool,
    pub(crate) min: Bytes,
    pub(crate) services: Vec<SocketAddr>,
    pub(crate) port: u16,
}

const SERVICES: &str = "node.peers.handoff_services";

/// Validates handoff between peers. `listen` is the address for clients, and `peers` the address for peers. Objects of
/// `large_min` and more are never served by a peer.
pub(crate) fn handoff(
    raw: &PeersSection,
    listen: Option<SocketAddr>,
    peers: SocketAddr,
    large_min: Bytes,
) -> Result<Option<PeersHandoffRole>, Fault> {
    let required = match raw.handoff {
        PeersHandoff::Off => return Ok(None),
        PeersHandoff::Auto => false,
        PeersHandoff::Required => true,
    };
    let Some(listen) = listen else {
        return Err(Fault::new(
            "node.peers.handoff",
            "no connection would be handed off: connections with TLS are relayed",
        )
        .hint("write node.listen = \"0.0.0.0:80\" too, or leave it out"));
    };
    let min = raw.handoff_min.0;
    if min >= large_min {
        return Err(Fault::new("node.peers.handoff_min", "no connection would be handed off").hint(format!(
            "objects of `large_min`, {large_min}, and more are served where they are asked for: write less"
        )));
    }
    let services = services(&raw.handoff_services, listen, peers)?;
    let port = raw.handoff_port;
    if port == peers.port() {
        return Err(Fault::new("node.peers.handoff_port", "this is already the port of `listen`")
            .hint("write another port"));
    }
    Ok(Some(PeersHandoffRole { required, min, services, port }))
}

fn services(texts: &Texts, listen: SocketAddr, peers: SocketAddr) -> Result<Vec<SocketAddr>, Fault> {
    if texts.0.is_empty() {
        return Err(Fault::new(SERVICES, "missing: the addresses that clients connect to")
            .hint("list those of all nodes, such as [\"10.0.1.11:80\", \"10.0.1.12:80\"]"));
    }
    let services = addresses(SERVICES, texts, "10.0.1.11:80")?;
    let mut seen = BTreeSet::new();
    for service in &services {
        let ip = service.ip();
        let fault = |what: &str| Fault::new(SERVICES, format!("{service}: {what}"));
        if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
            return Err(fault("clients on other machines cannot reach one node at this address")
                .hint("write the addresses that clients connect to"));
        }
        if ip == peers.ip() {
            return Err(fault("this is the address for peers, which cannot reach it if they have it too")
                .hint("give each node one address for clients and another for its peers"));
        }
        if !seen.insert(service) {
            return Err(fault("listed twice").hint("list each once"));
        }
    }
    let ours = |service: &&SocketAddr| {
        service.port() == listen.port() && (listen.ip().is_unspecified() || listen.ip() == service.ip())
    };
    if listen.port() != 0 && !services.iter().any(|service| ours(&service)) {
        return Err(Fault::new(SERVICES, format!("none of them is {listen}, where the node listens"))
            .hint("list the address that this node's clients connect to, with the port of node.listen"));
    }
    Ok(services)
}
