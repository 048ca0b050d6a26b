//! The way to nodes, as it is configured.

use super::announce::ProxyVersion;
use larder_edge::OutboundTls;

/// What a node says of TLS for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsOf {
    /// As all nodes.
    #[default]
    AsAll,
    /// None.
    Off,
    /// As all nodes, and by the defaults where these have none.
    On,
    /// Its own.
    Own(OutboundTls),
}

/// What a node says for itself of the announcement of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnnounceOf {
    /// As all nodes.
    #[default]
    AsAll,
    /// Its own; `None` for none.
    Own(Option<ProxyVersion>),
}

/// How nodes are reached that say nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// By TLS; not by default.
    pub tls: Option<OutboundTls>,
    /// With an announcement of the client; without by default.
    pub announce: Option<ProxyVersion>,
}

impl Reach {
    /// TLS to a node.
    pub(crate) fn tls(&self, own: &TlsOf) -> Option<OutboundTls> {
        match own {
            TlsOf::AsAll => self.tls.clone(),
            TlsOf::Off => None,
            TlsOf::On => Some(self.tls.clone().unwrap_or_default()),
            TlsOf::Own(own) => Some(own.clone()),
        }
    }

    /// How connections to a node announce their client.
    pub(crate) fn announce(&self, own: AnnounceOf) -> Option<ProxyVersion> {
        match own {
            AnnounceOf::AsAll => self.announce,
            AnnounceOf::Own(own) => own,
        }
    }
}
