//! A connection with what is still to be written to it.

use super::clock::Clock;
use super::deadline::Deadline;
use super::scratch;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket, or TLS over one.
#[derive(Debug)]
pub(super) struct Wire<T> {
    io: T,
    /// Bytes that the socket did not take.
    pending: Vec<u8>,
    written: usize,
    /// TLS may hold bytes back.
    unflushed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Wire<T> {
    pub(super) const fn new(io: T) -> Self {
        Self { io, pending: Vec::new(), written: 0, unflushed: false }
    }

    pub(super) fn into_inner(self) -> T {
        self.io
    }

    pub(super) const fn io(&self) -> &T {
        &self.io
    }

    /// Whether the socket has taken all.
    pub(super) const fn is_drained(&self) -> bool {
        self.pending.is_empty() && !self.unflushed
    }

    /// The number of bytes that the socket has not taken.
    pub(super) const fn left(&self) -> usize {
        self.pending.len() - self.written
    }

    /// Reads once into the thread's buffer and shows the bytes. At the end of the stream there are none.
    pub(super) fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        show: impl FnOnce(&mut Self, &mut Context<'_>, &[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        scratch::with(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            Poll::Ready(Ok(show(self, cx, buffer.filled())))
        })
    }

    /// Reads once into `buffer`. At the end of the stream it stays empty.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }

    /// Writes both parts in one call as far as the socket takes them, and keeps the rest.
    pub(super) fn send(
        &mut self,
        cx: &mut Context<'_>,
        mut first: &[u8],
        mut second: &[u8],
    ) -> io::Result<()> {
        if self.pending.is_empty() {
            while !first.is_empty() || !second.is_empty() {
                let parts = [IoSlice::new(first), IoSlice::new(second)];
                let wrote = match (first.is_empty(), second.is_empty()) {
                    (false, false) => Pin::new(&mut self.io).poll_write_vectored(cx, &parts),
                    (true, _) => Pin::new(&mut self.io).poll_write(cx, second),
                    (_, true) => Pin::new(&mut self.io).poll_write(cx, first),
                };
                let Poll::Ready(wrote) = wrote? else { break };
                if wrote == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.unflushed = true;
                let from_first = wrote.min(first.len());
                first = &first[from_first..];
                second = &second[wrote - from_first..];
            }
        }
        self.pending.extend_from_slice(first);
        self.pending.extend_from_slice(second);
        Ok(())
    }

    /// Writes what is kept.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            let wrote = ready!(Pin::new(&mut self.io).poll_write(cx, &self.pending[self.written..]))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            self.written += wrote;
        }
        (self.pending, self.written) = (Vec::new(), 0);
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection when the other side has read all and closes, has sent nothing for `silence`, or after `patience`. Closing at
    /// once would reset the connection if the other side has sent more, and the last bytes might be lost.
    pub(super) async fn linger(&mut self, deadline: &mut Deadline, silence: Duration, patience: Duration) {
        let end = Clock::after(patience);
        deadline.set(silence.min(patience));
        let mut is_shut = false;
        poll_fn(|cx| {
            if !is_shut {
                match self.poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => is_shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            loop {
                match self.poll_read(cx, |_, _, bytes| bytes.is_empty()) {
                    Poll::Ready(Ok(false)) => {
                        let left = end.saturating_duration_since(Clock::now());
                        if left.is_zero() {
                            return Poll::Ready(());
                        }
                        deadline.set(silence.min(left));
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return deadline.poll(cx),
                }
            }
        })
        .await;
    }

    /// Ends the side that writes.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
