//! The entry of a node in the configuration.

use crate::dial::announce::ProxyVersion;
use crate::dial::reach::{AnnounceOf, Reach, TlsOf};
use crate::handoff::config::NodeHandoff;
use larder_core::NodeSpec;
use larder_edge::OutboundTls;

/// A node as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Name, weight and cache size, as the dispatcher knows it. Its groups are set by the switch.
    pub spec: NodeSpec,
    /// Requests reach it by HTTP/2, which gRPC needs; without TLS by prior knowledge (RFC 9113 section 3.3). Default false.
    pub http2: bool,
    /// TLS to it. Default: the settings of all nodes.
    pub tls: TlsOf,
    /// The announcement of clients on connections to it. Default: the setting of all nodes.
    pub announce: AnnounceOf,
    /// `host:port`. A host name is resolved once, when the switch is bound; the first address is used.
    pub address: String,
    /// The groups it is in, by the names that routes use; none by default. A node in no group serves the routes that
    /// use all nodes, the default one among them.
    pub groups: Vec<String>,
    /// The handoff of connections to it; `None` if it only gets relayed requests.
    pub handoff: Option<NodeHandoff>,
}

impl NodeEntry {
    /// A node in no group.
    pub fn new(spec: NodeSpec, address: impl Into<String>) -> Self {
        Self {
            spec,
            http2: false,
            tls: TlsOf::AsAll,
            announce: AnnounceOf::AsAll,
            address: address.into(),
            groups: Vec::new(),
            handoff: None,
        }
    }

    /// Returns the TLS settings for it. `all`: the way to nodes whose own entries say nothing else.
    pub fn tls_by(&self, all: &Reach) -> Option<OutboundTls> {
        all.tls(&self.tls)
    }

    /// Returns the announcement on connections to it.
    pub fn announce_by(&self, all: &Reach) -> Option<ProxyVersion> {
        all.announce(self.announce)
    }

    /// Returns the reason why the settings for it contradict each other, if they do. `handed`: handoff is on.
    pub fn contradiction(&self, all: &Reach, handed: bool) -> Option<&'static str> {
        if self.announce_by(all).is_some() && self.http2 {
            return Some("a connection of HTTP/2 is for the requests of all clients, and can announce none");
        }
        let other = self.announce_by(all).is_some() || self.tls_by(all).is_some();
        (other && handed).then_some("a connection that is handed over begins with what the client sends")
    }
}
