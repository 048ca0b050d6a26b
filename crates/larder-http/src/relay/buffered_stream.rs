//! A stream with a buffer for bytes that could not be written.

use super::clock::Clock;
use super::deadline::Deadline;
use super::scratch;
use bytes::{Buf, Bytes};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket or a TLS connection, with its unwritten bytes.
#[derive(Debug)]
pub(super) struct BufferedStream<T> {
    io: T,
    /// Unwritten bytes, of which the first `written` have been written meanwhile.
    pending: Vec<u8>,
    written: usize,
    /// Unwritten bytes after `pending`, which were not copied.
    shared: Bytes,
    /// The stream must be flushed, because TLS may buffer bytes.
    unflushed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> BufferedStream<T> {
    pub(super) const fn new(io: T) -> Self {
        Self::with_unsent(io, Vec::new())
    }

    /// Creates a stream to which `unsent` is written first.
    pub(super) const fn with_unsent(io: T, unsent: Vec<u8>) -> Self {
        Self { io, pending: unsent, written: 0, shared: Bytes::new(), unflushed: false }
    }

    pub(super) fn into_inner(self) -> T {
        self.io
    }

    pub(super) const fn io(&self) -> &T {
        &self.io
    }

    /// Returns whether the socket has accepted all bytes.
    pub(super) const fn is_drained(&self) -> bool {
        self.unwritten_bytes() == 0 && !self.unflushed
    }

    /// Returns the number of unwritten bytes.
    pub(super) const fn unwritten_bytes(&self) -> usize {
        self.pending.len() - self.written + self.shared.len()
    }

    /// Reads once into the buffer of the thread, and calls `show` with the bytes. At the end of the stream
    /// there are none.
    pub(super) fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        show: impl FnOnce(&mut Self, &mut Context<'_>, &[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        scratch::with_buffer(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            Poll::Ready(Ok(show(self, cx, buffer.filled())))
        })
    }

    /// Reads once into `buffer`. The buffer stays empty at the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }

    /// Writes both parts in one call as far as the socket accepts them. The rest is copied and kept.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, first: &[u8], second: &[u8]) -> io::Result<()> {
        let (wrote_first, wrote_second) = self.write(cx, first, second)?;
        self.pending.extend_from_slice(&std::mem::take(&mut self.shared));
        self.pending.extend_from_slice(&first[wrote_first..]);
        self.pending.extend_from_slice(&second[wrote_second..]);
        Ok(())
    }

    /// Writes both parts as [`Self::send`] does, but keeps the rest of the second part without copying it.
    pub(super) fn send_shared(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        mut second: Bytes,
    ) -> io::Result<()> {
        let (wrote_first, wrote_second) = self.write(cx, first, &second)?;
        self.pending.extend_from_slice(&std::mem::take(&mut self.shared));
        self.pending.extend_from_slice(&first[wrote_first..]);
        second.advance(wrote_second);
        self.shared = second;
        Ok(())
    }

    /// Writes both parts as far as the socket accepts them now. Writes nothing if other bytes must be written
    /// first. Returns the number of written bytes of each part.
    fn write(&mut self, cx: &mut Context<'_>, first: &[u8], second: &[u8]) -> io::Result<(usize, usize)> {
        let mut wrote = 0;
        while self.unwritten_bytes() == 0 && wrote < first.len() + second.len() {
            let parts = [
                IoSlice::new(&first[wrote.min(first.len())..]),
                IoSlice::new(&second[wrote.saturating_sub(first.len())..]),
            ];
            let io = Pin::new(&mut self.io);
            let written = match (parts[0].is_empty(), parts[1].is_empty()) {
                (false, false) => io.poll_write_vectored(cx, &parts),
                (true, _) => io.poll_write(cx, &parts[1]),
                (_, true) => io.poll_write(cx, &parts[0]),
            };
            let Poll::Ready(written) = written? else { break };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.unflushed = true;
            wrote += written;
        }
        Ok((wrote.min(first.len()), wrote.saturating_sub(first.len())))
    }

    /// Writes the kept bytes, and flushes the stream.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unwritten_bytes() > 0 {
            let of_shared = self.written == self.pending.len();
            let bytes = if of_shared { &self.shared[..] } else { &self.pending[self.written..] };
            let wrote = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            if of_shared {
                self.shared.advance(wrote);
            } else {
                self.written += wrote;
            }
        }
        (self.pending, self.written, self.shared) = (Vec::new(), 0, Bytes::new());
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Closes the connection when the other side has closed it, has sent nothing for `silence`, or after
    /// `timeout`.
    ///
    /// If the connection were closed immediately while bytes from the other side are unread, the kernel would
    /// reset it. The other side could then lose the last bytes.
    pub(super) async fn linger(&mut self, deadline: &mut Deadline, silence: Duration, timeout: Duration) {
        let end = Clock::after(timeout);
        deadline.set(silence.min(timeout));
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

    /// Ends the write side of the connection.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
