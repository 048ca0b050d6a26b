//! The socket of an HTTP/2 connection, from which h2 reads and to which it writes.

use crate::http2::{Flood, FrameLimits, SocketProgress, WriteDeadline};
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

/// Largest number of buffered bytes. The bytes of all streams of a turn are sent with one call. TLS accepts
/// up to 64 KiB at once, including its overhead.
const BUFFERED_BYTES_MAX: usize = 63 << 10;

thread_local! {
    /// A free write buffer. Idle connections hold none.
    static FREE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A socket or a TLS connection, with the limits of its HTTP/2 connection.
#[derive(Debug)]
pub(super) struct BufferedSocket<T> {
    io: T,
    /// Bytes that h2 has written.
    out: Vec<u8>,
    /// Number of bytes in `out` that the transport has accepted.
    written: usize,
    /// Total number of bytes that the transport has accepted.
    sent: u64,
    frames: FrameLimits,
    deadline: WriteDeadline,
    /// The limit on frames that the client has exceeded.
    pub(super) flood: Option<Flood>,
    /// The socket has accepted nothing for too long.
    pub(super) is_stalled: bool,
}

impl<T: Transport> BufferedSocket<T> {
    /// Creates a socket that records in `progress` when it is blocked. Writing fails if it is blocked for
    /// `timeout`.
    pub(super) fn new(io: T, timeout: Duration, progress: &Arc<SocketProgress>) -> Self {
        let now = Clock::now().into();
        Self {
            io,
            out: Vec::new(),
            written: 0,
            sent: 0,
            frames: FrameLimits::new(now).with_resets(now),
            deadline: WriteDeadline::new(timeout, Some(progress.clone())),
            flood: None,
            is_stalled: false,
        }
    }

    pub(super) fn into_inner(self) -> T {
        self.io
    }

    /// Reads once, and counts the received frames.
    fn read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let counted = self.frames.receive(&buffer.filled()[before..], Clock::now().into());
        Poll::Ready(counted.map_err(|flood| {
            self.flood = Some(flood);
            io::Error::other(flood)
        }))
    }

    /// Buffers bytes from h2. Flushes first if the buffer is full.
    fn buffer_parts(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if !self.out.is_empty() && self.out.len() + length > BUFFERED_BYTES_MAX {
            ready!(self.poll_flush(cx))?;
        }
        if self.out.capacity() == 0 {
            self.out = FREE_BUFFER.take();
        }
        let before = self.out.len();
        for part in parts {
            self.out.extend_from_slice(part);
        }
        self.frames.send(&self.out[before..]);
        Poll::Ready(Ok(length))
    }

    /// Writes the buffered bytes. Fails if the socket accepts nothing for too long.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let flushed = self.write(cx);
        let sent = self.io.sent().unwrap_or(self.sent);
        if self.deadline.poll_expired(cx, Some(sent), &flushed) {
            self.is_stalled = true;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")));
        }
        flushed
    }

    /// Writes and flushes the buffered bytes, and releases the buffer.
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
        FREE_BUFFER.set(out);
        Poll::Ready(Ok(()))
    }
}

/// The handle of a [`BufferedSocket`] that h2 has. Flushing has no effect, because the connection flushes at
/// the end of a turn.
#[derive(Debug)]
pub(super) struct SocketHandle<T>(pub(super) Rc<RefCell<BufferedSocket<T>>>);

impl<T: Transport> AsyncRead for SocketHandle<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().read(cx, buffer)
    }
}

impl<T: Transport> AsyncWrite for SocketHandle<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().buffer_parts(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().buffer_parts(cx, parts)
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
