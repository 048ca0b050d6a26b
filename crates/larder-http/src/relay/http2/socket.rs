//! The socket of a connection of HTTP/2, as h2 reads from it and writes to it.

use crate::http2::{Blocked, Flood, FrameLimits, WriteDeadline};
use crate::relay::Clock;
use crate::relay::splice::Transport;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that wait until all streams have had their turn. Then they cost one call for many frames, as TLS takes up to 64 KiB at once
/// with what it adds.
const GATHERED_MAX: usize = 63 << 10;

thread_local! {
    /// Memory for bytes that wait: connections that wait for requests hold none.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A socket, or TLS over one, with the limits of its connection.
#[derive(Debug)]
pub(super) struct Link<T> {
    io: T,
    /// Bytes that h2 has written.
    out: Vec<u8>,
    written: usize,
    /// Bytes that the transport has taken, in all.
    sent: u64,
    frames: FrameLimits,
    deadline: WriteDeadline,
    /// The limit on frames that the client has exceeded.
    pub(super) flood: Option<Flood>,
    /// The client has taken nothing for too long.
    pub(super) is_stalled: bool,
}

impl<T: Transport> Link<T> {
    /// A link that notes in `blocked` when the socket has no room, and fails if it has none for `patience`.
    pub(super) fn new(io: T, patience: Duration, blocked: &Arc<Blocked>) -> Self {
        let now = Clock::now().into();
        Self {
            io,
            out: Vec::new(),
            written: 0,
            sent: 0,
            frames: FrameLimits::new(now).with_resets(now),
            deadline: WriteDeadline::new(patience, Some(blocked.clone())),
            flood: None,
            is_stalled: false,
        }
    }

    pub(super) fn into_inner(self) -> T {
        self.io
    }

    fn read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let counted = self.frames.receive(&buffer.filled()[before..], Clock::now().into());
        Poll::Ready(counted.map_err(|flood| {
            self.flood = Some(flood);
            io::Error::other(flood)
        }))
    }

    /// Takes bytes of h2, if there is room for more.
    fn gather(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if !self.out.is_empty() && self.out.len() + length > GATHERED_MAX {
            ready!(self.poll_flush(cx))?;
        }
        if self.out.capacity() == 0 {
            self.out = SPARE.take();
        }
        let before = self.out.len();
        for part in parts {
            self.out.extend_from_slice(part);
        }
        self.frames.send(&self.out[before..]);
        Poll::Ready(Ok(length))
    }

    /// Writes what was gathered. Fails if the socket takes nothing for too long.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let flushed = self.write(cx);
        let sent = self.io.sent().unwrap_or(self.sent);
        if self.deadline.is_late(cx, Some(sent), &flushed) {
            self.is_stalled = true;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")));
        }
        flushed
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let wrote = ready!(Pin::new(&mut self.io).poll_write(cx, &self.out[self.written..]))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += wrote;
            self.sent += wrote as u64;
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        let mut out = std::mem::take(&mut self.out);
        self.written = 0;
        out.clear();
        SPARE.set(out);
        Poll::Ready(Ok(()))
    }
}

/// The side of a [`Link`] that h2 has. What it flushes is gathered until the connection's turn ends.
#[derive(Debug)]
pub(super) struct Socket<T>(pub(super) Rc<RefCell<Link<T>>>);

impl<T: Transport> AsyncRead for Socket<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().read(cx, buffer)
    }
}

impl<T: Transport> AsyncWrite for Socket<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().gather(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().gather(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
