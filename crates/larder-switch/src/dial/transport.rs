//! Configuration of the transport to nodes: TLS and announcements of clients.

use super::announce::ProxyVersion;
use larder_edge::OutboundTls;

/// TLS setting of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodeTls {
    /// The default settings.
    #[default]
    Default,
    /// No TLS.
    Off,
    /// The default settings, or the built-in ones if the default is no TLS.
    On,
    /// Settings of its own.
    Own(OutboundTls),
}

/// Announcement of clients on connections to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeAnnounce {
    /// The default setting.
    #[default]
    Default,
    /// A setting of its own; `None` for no announcement.
    Own(Option<ProxyVersion>),
}

/// Default transport to nodes, for nodes without settings of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTransport {
    /// TLS; none by default.
    pub tls: Option<OutboundTls>,
    /// Announcement of the client; none by default.
    pub announce: Option<ProxyVersion>,
}

impl NodeTransport {
    /// Returns the TLS settings of a node.
    pub(crate) fn tls(&self, own: &NodeTls) -> Option<OutboundTls> {
        match own {
            NodeTls::Default => self.tls.clone(),
            NodeTls::Off => None,
            NodeTls::On => Some(self.tls.clone().unwrap_or_default()),
            NodeTls::Own(own) => Some(own.clone()),
        }
    }

    /// Returns the announcement on connections to a node.
    pub(crate) fn announce(&self, own: NodeAnnounce) -> Option<ProxyVersion> {
        match own {
            NodeAnnounce::Default => self.announce,
            NodeAnnounce::Own(own) => own,
        }
    }
}
