//! A connection with a deadline for each reply.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A connection that ends with an error if the client does not take a reply in time.
///
/// The time counts for the whole reply. A client that takes a byte now and then does not extend it.
pub(super) struct ReplyDeadline {
    stream: TokioIo<TcpStream>,
    timeout: Duration,
    /// Runs from the first write that had to wait, until all bytes are written.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReplyDeadline {
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> Self {
        Self { stream: TokioIo::new(stream), timeout, timer: None }
    }

    fn check_deadline<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() && self.timer.is_none() {
            return written;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if timer.as_mut().poll(cx).is_ready() {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the client did not take the reply in time");
            return Poll::Ready(Err(error));
        }
        written
    }
}

impl Read for ReplyDeadline {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for ReplyDeadline {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_deadline(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_deadline(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes the connection once its own buffer is empty.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.timer = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
