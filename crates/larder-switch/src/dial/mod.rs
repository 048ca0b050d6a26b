//! Connections to nodes: address, TLS and announcement of the client.
//!
//! Requests, health checks, load reports and copies all use [`Dialer::open`].

pub(crate) mod announce;
mod tls;
pub(crate) mod transport;

pub use announce::ProxyVersion;
pub(crate) use announce::{Announcement, TlsFacts};
pub(crate) use tls::NodeTlsClient;
pub use transport::{NodeAnnounce, NodeTls, NodeTransport};

use larder_edge::ServerIo;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Returns the host of a node's address.
pub(crate) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Protocol of a connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeProtocol {
    /// Protocol that requests to the node use.
    AsRequests,
    Http1,
}

/// Error of opening a connection to a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
}

/// Opens connections to a node.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Arc<NodeTlsClient>>,
    pub(crate) announce: Option<ProxyVersion>,
}

impl Dialer {
    /// Returns a dialer for plain TCP.
    pub(crate) const fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None, announce: None }
    }

    /// Returns a dialer for the same node at another address. With TLS, blocks on the disk.
    pub(crate) fn moved(&self, address: &str, resolved: SocketAddr) -> Self {
        let tls = self.tls.as_ref().map(|tls| tls.moved(host_of(address)));
        Self { address: resolved, tls, announce: self.announce }
    }

    /// Returns a dialer for another address of the node. Other addresses use neither TLS nor announcements.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        if address == self.address { self.clone() } else { Self::plain(address) }
    }

    /// Opens a connection for a client, or for the switch itself if `of` is `None`. The caller sets a timeout.
    pub(crate) async fn open(
        &self,
        of: Option<&Announcement>,
        speaks: NodeProtocol,
    ) -> Result<ServerIo, DialError> {
        let tcp = connect(self.address, self.announce, of).await.map_err(DialError::Connect)?;
        let Some(tls) = &self.tls else { return Ok(ServerIo::Clear(tcp)) };
        let config = if speaks == NodeProtocol::Http1 { &tls.http1 } else { &tls.for_requests };
        ServerIo::secure(tcp, tls.server.clone(), config.clone()).await.map_err(DialError::Tls)
    }

    /// Returns a key of all TLS settings; 0 without TLS. A connection that was opened with other settings must not be
    /// used.
    pub(crate) fn tls_key(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.key.max(1))
    }
}

async fn connect(
    address: SocketAddr,
    announce: Option<ProxyVersion>,
    of: Option<&Announcement>,
) -> io::Result<TcpStream> {
    let mut tcp = TcpStream::connect(address).await?;
    // Fails only for a connection that is gone already.
    let _ = tcp.set_nodelay(true);
    if let Some(version) = announce {
        tcp.write_all(&version.announcement(of)).await?;
    }
    Ok(tcp)
}
