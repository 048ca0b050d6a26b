//! How a node is reached: where, by TLS or not, and with an announcement of the client or not.
//!
//! Requests, health checks, load reports and copies all use [`Dial::open`].

pub(crate) mod announce;
pub(crate) mod reach;
mod tls;

pub use announce::ProxyVersion;
pub(crate) use announce::{Announced, ShownByTls};
pub use reach::{AnnounceOf, Reach, TlsOf};
pub(crate) use tls::Loaded;

use larder_edge::ServerIo;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

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
    pub(crate) async fn open(&self, of: Option<&Announced>, speaks: Speaks) -> Result<ServerIo, DialError> {
        let tcp = connect(self.address, self.announce, of).await.map_err(DialError::Connect)?;
        let Some(tls) = &self.tls else { return Ok(ServerIo::Clear(tcp)) };
        let config = if speaks == Speaks::Http1 { &tls.http1 } else { &tls.as_traffic };
        ServerIo::secure(tcp, tls.server.clone(), config.clone()).await.map_err(DialError::Tls)
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
