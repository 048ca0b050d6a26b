//! Connections to nodes that begin with the announcement of a client, which the engine cannot open itself.

use super::tie::Tie;
use crate::conn::Link;
use async_trait::async_trait;
use pingora_core::connectors::L4Connect;
use pingora_core::protocols::l4::socket::SocketAddr as EngineAddress;
use pingora_core::protocols::l4::stream::Stream;
use pingora_error::{Error, ErrorType, Result};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Opens a connection that is one client's for the engine, which bounds the time.
#[derive(Debug)]
pub(super) struct Opener {
    /// The announcement.
    pub(super) bytes: Vec<u8>,
    pub(super) link: Arc<Link>,
    pub(super) tie: Tie,
}

#[async_trait]
impl L4Connect for Opener {
    async fn connect(&self, address: &EngineAddress) -> Result<Stream> {
        let address = address
            .as_inet()
            .ok_or_else(|| Error::explain(ErrorType::SocketError, "a node has an address of IP"))?;
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                _ => ErrorType::ConnectError,
            };
            Error::because(kind, "connecting to a node", error)
        };
        let mut tcp = TcpStream::connect(address).await.map_err(failed)?;
        tcp.write_all(&self.bytes).await.map_err(failed)?;
        self.link.ties.add(&self.tie, &tcp);
        Ok(Stream::from(tcp))
    }
}
