//! Connections to nodes that the engine cannot open itself.
//!
//! The engine (pingora-proxy 0.9.1, `proxy_handle_upstream`) handles the end of a request and the node's reply in the order
//! in which it finds them. If it finds a reply of 101 first, it takes the end of the request, which every GET has, for the
//! end of the tunnel, and closes both connections. Where the node is near, that happened to one upgrade in a hundred.
//! [`Upgradable`] therefore lets the engine find a reply only after it had the chance to find the end of the request.

use super::tie::Tie;
use crate::conn::Link;
use async_trait::async_trait;
use pingora_core::connectors::L4Connect;
use pingora_core::protocols::l4::socket::SocketAddr as EngineAddress;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_error::{Error, ErrorType, Result};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// Opens a connection for the engine, which bounds the time.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) announcement: Option<Announcement>,
    /// Whether a request on the connection may be upgraded.
    pub(super) upgrade: bool,
}

/// The announcement of a client, on a connection that is this client's.
#[derive(Debug)]
pub(super) struct Announcement {
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
        if let Some(Announcement { bytes, link, tie }) = &self.announcement {
            tcp.write_all(bytes).await.map_err(failed)?;
            link.ties.add(tie, &tcp);
        }
        Ok(if self.upgrade {
            Stream::from(VirtualSocketStream::new(Box::new(Upgradable { tcp, written: false })))
        } else {
            Stream::from(tcp)
        })
    }
}

/// A connection whose first read after a write finds nothing, whatever there is, and is tried again at once.
#[derive(Debug)]
struct Upgradable {
    tcp: TcpStream,
    /// Bytes were written since the last read.
    written: bool,
}

impl VirtualSocket for Upgradable {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        match option {
            VirtualSockOpt::NoDelay => self.tcp.set_nodelay(true),
            // The engine asks for none; nodes are watched by health checks.
            _ => Ok(()),
        }
    }
}

impl AsyncRead for Upgradable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.written) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_read(context, into)
    }
}

impl AsyncWrite for Upgradable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written = true;
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.written = true;
        Pin::new(&mut self.tcp).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn the_first_read_after_a_write_finds_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let tcp = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        let (mut node, _) = listener.accept().await.expect("accepts");
        let mut upgradable = Upgradable { tcp, written: false };
        for _ in 0..2 {
            upgradable.write_all(b"ask").await.expect("writes");
            node.write_all(b"reply").await.expect("writes");
            upgradable.tcp.readable().await.expect("the reply is there");
            let mut bytes = [0; 5];
            let first = poll_fn(|context| {
                Poll::Ready(Pin::new(&mut upgradable).poll_read(context, &mut ReadBuf::new(&mut bytes)))
            });
            assert!(first.await.is_pending());
            upgradable.read_exact(&mut bytes).await.expect("reads");
            assert_eq!(&bytes, b"reply");
        }
    }
}
