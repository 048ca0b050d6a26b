//! A client's bytes on their way to hyper: what could be read in two ways does not get there.
//!
//! hyper takes a length beside chunks, lengths given twice and codings before `chunked`; behind a relay that reads them
//! otherwise, or before an origin that does, that is how requests are smuggled. So [`Framing`] looks first, and hyper is given
//! what it refuses in place of what breaks the rules.

use bytes::Bytes;
use larder_edge::ClientIo;
use larder_http::h1::Framing;
use larder_http::http2::FrameLimits;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A connection whose bytes are looked at.
#[derive(Debug)]
pub(crate) struct Guarded {
    stream: ClientIo,
    /// Bytes to be read before the stream's.
    first: Bytes,
    checks: Checks,
    /// What hyper gets instead of bytes at fault, and nothing behind it.
    poison: Option<&'static [u8]>,
}

/// The rules that the client's bytes are held to.
#[derive(Debug)]
enum Checks {
    Http1(Framing),
    Http2(Box<FrameLimits>),
}

impl Guarded {
    /// A connection at its beginning or between two requests.
    pub(crate) fn new(stream: ClientIo, first: Bytes) -> Self {
        Self { stream, first, checks: Checks::Http1(Framing::without_upgrades()), poison: None }
    }

    /// Bytes that the socket has taken from TLS, where there is TLS.
    pub(crate) fn sent(&self) -> Option<u64> {
        self.stream.sent()
    }

    /// The stream, and what is to be read before its bytes.
    pub(crate) fn into_parts(self) -> (ClientIo, Bytes) {
        (self.stream, self.first)
    }

    /// The connection is one of HTTP/2. hyper checks its form, and its frames are limited.
    pub(crate) fn limit_frames(&mut self) {
        self.checks = Checks::Http2(Box::new(FrameLimits::new(Instant::now())));
    }

    fn give_poison(&mut self, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = self.poison.unwrap_or_default();
        if rest.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let (now, later) = rest.split_at(rest.len().min(buf.remaining()));
        buf.put_slice(now);
        self.poison = Some(later);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.poison.is_some() {
            return self.give_poison(buf);
        }
        let before = buf.filled().len();
        if self.first.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        } else {
            let now = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first.split_to(now));
        }
        let framing = match &mut self.checks {
            Checks::Http1(framing) => framing,
            Checks::Http2(limits) => {
                let checked = limits.receive(&buf.filled()[before..], Instant::now());
                return Poll::Ready(checked.map_err(io::Error::other));
            }
        };
        if let Err(broken) = framing.check(&buf.filled()[before..]) {
            tracing::debug!(fault = ?broken.fault, "a request makes no sense");
            buf.set_filled(before + broken.good);
            self.poison = Some(broken.poison());
            if broken.good == 0 {
                return self.give_poison(buf);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        if let Checks::Http2(limits) = &mut self.checks {
            limits.send(&buf[..written]);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        if let Checks::Http2(limits) = &mut self.checks {
            limits.send_vectored(bufs, written);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
