//! The client's side of a connection of HTTP/2: what Pingora reads from and writes to.
//!
//! Pingora's own stream would do, but it has no limits on frames and on a socket that takes no bytes. When the stream is dropped, it hands
//! the socket back to the connection's task, which says farewell.

use crate::dial::{Announced, Ties};
use crate::handoff::Delivery;
use crate::request::{Client, Security};
use async_trait::async_trait;
use larder_edge::ClientIo;
use larder_edge::http2::{Blocked, Flood, FrameLimits, WriteDeadline};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// The facts about a connection that its task, its stream and its requests share.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) client: SocketAddr,
    announced: Option<Announced>,
    /// Connections to nodes that are this client's alone.
    pub(crate) ties: Ties,
    /// The way in which the connection is delivered.
    pub(crate) delivery: Delivery,
    /// The facts that TLS has shown about the client; none without TLS.
    pub(crate) security: Option<Security>,
    /// The limit on frames that the client has exceeded.
    flood: OnceLock<Flood>,
    /// The socket, once the stream is dropped.
    socket: Mutex<Option<ClientIo>>,
}

impl Link {
    /// A client's connection.
    pub(crate) fn new(of: Client) -> Self {
        Self {
            client: of.address,
            announced: of.announced(),
            ties: Ties::default(),
            delivery: of.delivery,
            security: of.security,
            flood: OnceLock::new(),
            socket: Mutex::default(),
        }
    }

    /// The announcement of the client on connections to nodes; none if it is not known where the client connected.
    pub(crate) const fn announced(&self) -> Option<Announced> {
        self.announced
    }

    /// Takes the socket, once the stream is dropped.
    pub(crate) fn take_socket(&self) -> Option<ClientIo> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The limit on frames that the client has exceeded, if any.
    pub(crate) fn flood(&self) -> Option<Flood> {
        self.flood.get().copied()
    }
}

/// The stream.
#[derive(Debug)]
pub(crate) struct ClientStream {
    /// Taken only when the stream is dropped.
    io: Option<ClientIo>,
    link: Arc<Link>,
    limits: FrameLimits,
    deadline: WriteDeadline,
    /// Bytes that were written to the socket, or to TLS.
    written: u64,
}

impl ClientStream {
    /// A stream. It notes in `blocked` when the socket has no room; a socket that takes no bytes for `client_write` ends it.
    pub(crate) fn new(io: ClientIo, link: Arc<Link>, client_write: Duration, blocked: Arc<Blocked>) -> Self {
        let now = tokio::time::Instant::now();
        Self {
            io: Some(io),
            link,
            limits: FrameLimits::new(now).with_resets(now),
            deadline: WriteDeadline::new(client_write, Some(blocked)),
            written: 0,
        }
    }

    fn io(&mut self) -> io::Result<Pin<&mut ClientIo>> {
        self.io.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Holds the outcome of a write against the deadline.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(io) = &self.io else { return written };
        // Bytes that TLS holds are not written yet.
        let sent = io.sent().unwrap_or(self.written);
        if self.deadline.is_late(cx, Some(sent), &written) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")));
        }
        written
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(this.io()?.poll_read(cx, buf))?;
        match this.limits.receive(&buf.filled()[before..], tokio::time::Instant::now()) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(flood) => {
                let _ = this.link.flood.set(flood);
                Poll::Ready(Err(io::Error::other(flood)))
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.io()?.poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &written {
            this.written += *count as u64;
            this.limits.send(&buf[..*count]);
        }
        this.in_time(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.io()?.poll_write_vectored(cx, parts);
        if let Poll::Ready(Ok(count)) = &written {
            this.written += *count as u64;
            let mut left = *count;
            for part in parts {
                let taken = left.min(part.len());
                this.limits.send(&part[..taken]);
                left -= taken;
            }
        }
        this.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = this.io()?.poll_flush(cx);
        this.in_time(cx, flushed)
    }

    /// Does nothing: the connection's task ends the socket.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.io.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

impl Ssl for ClientStream {}
impl Peek for ClientStream {}

impl Drop for ClientStream {
    fn drop(&mut self) {
        *self.link.socket.lock().unwrap_or_else(PoisonError::into_inner) = self.io.take();
    }
}
