//! A connection to a server (a node, an origin, an authority): a socket, or TLS over one.

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection to a server.
#[derive(Debug)]
pub enum ServerIo {
    /// Without TLS.
    Clear(TcpStream),
    /// With TLS, after the handshake.
    Secure(Box<TlsStream<TcpStream>>),
}

impl ServerIo {
    /// Performs a TLS handshake with a server of this name.
    ///
    /// # Errors
    /// The connection breaks or the handshake fails; see [`TlsFault`](crate::TlsFault).
    pub async fn secure(
        tcp: TcpStream,
        name: ServerName<'static>,
        tls: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        Ok(Self::Secure(Box::new(TlsConnector::from(tls).connect(name, tcp).await?)))
    }

    /// Checks whether HTTP/2 was negotiated (ALPN).
    pub fn is_http2(&self) -> bool {
        matches!(self, Self::Secure(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2"))
    }
}

impl larder_http::relay::Transport for ServerIo {
    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Clear(tcp) => Some(tcp),
            Self::Secure(_) => None,
        }
    }
}

/// Forwards a call to the inner stream.
macro_rules! inside {
    ($stream:expr, $method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).$method($($argument),*),
            Self::Secure(tls) => Pin::new(&mut **tls).$method($($argument),*),
        }
    };
}

impl AsyncRead for ServerIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        inside!(self, poll_read(cx, into))
    }
}

impl AsyncWrite for ServerIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        inside!(self, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        inside!(self, poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self, poll_shutdown(cx))
    }
}
