//! How a node is reached: where, by TLS or not, and with an announcement of the client or not.
//!
//! Requests, health checks, load reports and copies all use [`Dial::open`].

mod announce;
mod stream;
mod tls;

pub use announce::ProxyVersion;
pub(crate) use announce::{Announced, ShownByTls};
pub(crate) use stream::NodeStream;
pub(crate) use tls::Loaded;

use crate::config::NodeEntry;
use larder_edge::OutboundTls;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

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
    pub fn tls(&self, entry: &NodeEntry) -> Option<OutboundTls> {
        match &entry.tls {
            TlsOf::AsAll => self.tls.clone(),
            TlsOf::Off => None,
            TlsOf::On => Some(self.tls.clone().unwrap_or_default()),
            TlsOf::Own(own) => Some(own.clone()),
        }
    }

    /// How connections to a node announce their client.
    pub fn announce(&self, entry: &NodeEntry) -> Option<ProxyVersion> {
        match entry.announce {
            AnnounceOf::AsAll => self.announce,
            AnnounceOf::Own(own) => own,
        }
    }

    /// Why a node cannot be reached so, if it cannot; `handed` says whether connections may go to nodes without being relayed.
    pub fn contradiction(&self, entry: &NodeEntry, handed: bool) -> Option<&'static str> {
        if self.announce(entry).is_some() && entry.http2 {
            return Some("a connection of HTTP/2 is for the requests of all clients, and can announce none");
        }
        let other = self.announce(entry).is_some() || self.tls(entry).is_some();
        (other && handed).then_some("a connection that is handed over begins with what the client sends")
    }
}

/// The host of a node's address.
pub(crate) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// What is said on a connection that the switch opens for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// What requests are asked by.
    AsTraffic,
    Http1,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    #[error("no TLS: {0}")]
    Tls(#[source] io::Error),
}

/// How a node is reached.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Arc<Loaded>>,
    pub(crate) announce: Option<ProxyVersion>,
}

impl Dial {
    /// By TCP.
    pub(crate) const fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None, announce: None }
    }

    /// The same node elsewhere. Blocks on the disk where there is TLS.
    pub(crate) fn moved(&self, address: &str, resolved: SocketAddr) -> Self {
        let tls = self.tls.as_ref().map(|tls| tls.moved(host_of(address)));
        Self { address: resolved, tls, announce: self.announce }
    }

    /// The node's other addresses are not spoken to as its own.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        if address == self.address { self.clone() } else { Self::plain(address) }
    }

    /// Opens a connection for a client, or for the switch itself. The caller bounds the time.
    pub(crate) async fn open(&self, of: Option<&Announced>, speaks: Speaks) -> Result<NodeStream, DialError> {
        let tcp = connect(self.address, self.announce, of).await.map_err(DialError::Connect)?;
        let Some(tls) = &self.tls else { return Ok(NodeStream::Clear(tcp)) };
        let config = if speaks == Speaks::Http1 { &tls.http1 } else { &tls.as_traffic };
        let shaken = TlsConnector::from(config.clone()).connect(tls.server.clone(), tcp).await;
        Ok(NodeStream::Secure(Box::new(shaken.map_err(DialError::Tls)?)))
    }

    /// All that TLS to the node depends on; 0 without TLS. A connection that was opened by other settings must not be used.
    pub(crate) fn tls_key(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.key.max(1))
    }
}

async fn connect(
    address: SocketAddr,
    announce: Option<ProxyVersion>,
    of: Option<&Announced>,
) -> io::Result<TcpStream> {
    let mut tcp = TcpStream::connect(address).await?;
    // Fails only for a connection that is gone already.
    let _ = tcp.set_nodelay(true);
    if let Some(version) = announce {
        tcp.write_all(&version.announcement(of)).await?;
    }
    Ok(tcp)
}
