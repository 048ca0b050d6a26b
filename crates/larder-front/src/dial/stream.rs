//! A connection to a node, in clear or by TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection to a node.
#[derive(Debug)]
pub(crate) enum NodeStream {
    Clear(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

impl larder_http::relay::Transport for NodeStream {
    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Clear(tcp) => Some(tcp),
            Self::Secure(_) => None,
        }
    }
}

/// Has the stream inside do it.
macro_rules! inside {
    ($stream:expr, $method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).$method($($argument),*),
            Self::Secure(tls) => Pin::new(&mut **tls).$method($($argument),*),
        }
    };
}

impl AsyncRead for NodeStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        inside!(self, poll_read(cx, into))
    }
}

impl AsyncWrite for NodeStream {
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
