//! The way to nodes, as it is configured.

use super::announce::ProxyVersion;
use larder_edge::OutboundTls;

/// TLS to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsOf {
    /// The settings of all nodes.
    #[default]
    AsAll,
    /// No TLS.
    Off,
    /// The settings of all nodes, or the defaults if these have no TLS.
    On,
    /// Settings of its own.
    Own(OutboundTls),
}

/// The announcement of clients on connections to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnnounceOf {
    /// The settings of all nodes.
    #[default]
    AsAll,
    /// A setting of its own; `None` for no announcement.
    Own(Option<ProxyVersion>),
}

/// The way to nodes whose own entries say nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// TLS; none by default.
    pub tls: Option<OutboundTls>,
    /// The announcement of the client; none by default.
    pub announce: Option<ProxyVersion>,
}

impl Reach {
    /// Returns the TLS settings for a node.
    pub(crate) fn tls(&self, own: &TlsOf) -> Option<OutboundTls> {
        match own {
            TlsOf::AsAll => self.tls.clone(),
            TlsOf::Off => None,
            TlsOf::On => Some(self.tls.clone().unwrap_or_default()),
            TlsOf::Own(own) => Some(own.clone()),
        }
    }

    /// Returns the announcement on connections to a node.
    pub(crate) fn announce(&self, own: AnnounceOf) -> Option<ProxyVersion> {
        match own {
            AnnounceOf::AsAll => self.announce,
            AnnounceOf::Own(own) => own,
        }
    }
}
