//! Configuration of a node.

use crate::dial::announce::ProxyVersion;
use crate::dial::transport::{NodeAnnounce, NodeTls, NodeTransport};
use crate::handoff::config::NodeHandoff;
use larder_core::NodeSpec;
use larder_edge::OutboundTls;

/// Configuration of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Name, weight and cache size, for the dispatcher. The switch sets its groups.
    pub spec: NodeSpec,
    /// Whether requests use HTTP/2, which gRPC needs. Without TLS, HTTP/2 is used by prior knowledge (RFC 9113
    /// section 3.3). Default false.
    pub http2: bool,
    /// TLS to the node. Default: the settings for all nodes.
    pub tls: NodeTls,
    /// Announcement of clients on connections to the node. Default: the setting for all nodes.
    pub announce: NodeAnnounce,
    /// Address as `host:port`. A host name is resolved once, when the switch starts; the first address is used.
    pub address: String,
    /// Names of its groups, as routes use them; none by default. A node in no group serves only routes that use all
    /// nodes.
    pub groups: Vec<String>,
    /// Handoff settings; `None` if the node takes only relayed requests.
    pub handoff: Option<NodeHandoff>,
}

impl NodeEntry {
    /// Returns a node in no group.
    pub fn new(spec: NodeSpec, address: impl Into<String>) -> Self {
        Self {
            spec,
            http2: false,
            tls: NodeTls::Default,
            announce: NodeAnnounce::Default,
            address: address.into(),
            groups: Vec::new(),
            handoff: None,
        }
    }

    /// Returns the TLS settings of the node. `defaults` apply if the node has no settings of its own.
    pub fn tls_by(&self, defaults: &NodeTransport) -> Option<OutboundTls> {
        defaults.tls(&self.tls)
    }

    /// Returns the announcement of clients on connections to the node.
    pub fn announce_by(&self, defaults: &NodeTransport) -> Option<ProxyVersion> {
        defaults.announce(self.announce)
    }

    /// Returns the contradiction between the node's settings, if there is one. `handoff` tells whether handoff is on.
    pub fn contradiction(&self, defaults: &NodeTransport, handoff: bool) -> Option<&'static str> {
        if self.announce_by(defaults).is_some() && self.http2 {
            return Some("HTTP/2 connections serve all clients and cannot announce one");
        }
        let other = self.announce_by(defaults).is_some() || self.tls_by(defaults).is_some();
        (other && handoff).then_some("a handed-off connection begins with the client's bytes")
    }
}
