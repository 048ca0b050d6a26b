//! The byte stream of a client's connection: a socket, or TLS over one.

use crate::tls::server_name::FirstRecords;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's connection.
#[derive(Debug)]
pub enum ClientIo {
    /// Without TLS.
    Clear(TcpStream),
    /// With TLS, after the handshake.
    Secure(Box<TlsStream<CountedTcp>>),
}

/// A socket under TLS. It counts the bytes that it has accepted, because TLS accepts more than the socket does. It
/// removes a port from the server name that the client sends.
#[derive(Debug)]
pub struct CountedTcp {
    tcp: TcpStream,
    written: u64,
    /// Present until the ClientHello has been read.
    first: Option<Box<FirstRecords>>,
}

impl CountedTcp {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, written: 0, first: Some(Box::default()) }
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.written += bytes as u64;
        }
        written
    }
}

impl AsyncRead for CountedTcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { tcp, first, .. } = &mut *self;
        let Some(records) = first else { return Pin::new(tcp).poll_read(cx, buf) };
        let read = ready!(records.poll_read(tcp, cx, buf));
        if records.is_over() {
            *first = None;
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for CountedTcp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(cx, buf);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write_vectored(cx, parts);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl ClientIo {
    /// Returns the underlying socket.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Clear(tcp) => tcp,
            Self::Secure(tls) => &tls.get_ref().0.tcp,
        }
    }

    /// Returns the number of bytes that the socket has accepted from TLS. Returns `None` without TLS, where the socket
    /// accepts all that is written.
    pub fn sent(&self) -> Option<u64> {
        match self {
            Self::Clear(_) => None,
            Self::Secure(tls) => Some(tls.get_ref().0.written),
        }
    }
}

impl larder_http::relay::Transport for ClientIo {
    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Clear(tcp) => Some(tcp),
            Self::Secure(_) => None,
        }
    }

    fn sent(&self) -> Option<u64> {
        Self::sent(self)
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Secure(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Secure(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).poll_write_vectored(cx, parts),
            Self::Secure(tls) => Pin::new(tls).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Clear(tcp) => tcp.is_write_vectored(),
            Self::Secure(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Secure(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Secure(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
