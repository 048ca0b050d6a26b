//! The server's side of an exchange: a connection of HTTP/1, or a stream of HTTP/2.

use super::streams::Stream;
use super::wire::Wire;
use crate::h1::RequestHead;
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// The server's side.
#[derive(Debug)]
pub(super) enum Upstream<S> {
    Http1(Wire<S>),
    Http2(Box<Stream>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Upstream<S> {
    /// Sends the head of a request, which is put together in `out`.
    pub(super) fn send_head(
        &mut self,
        cx: &mut Context<'_>,
        request: &RequestHead,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        match self {
            Self::Http1(wire) => {
                out.clear();
                request.write(out);
                wire.send(cx, out, &[])
            }
            Self::Http2(stream) => stream.send(cx, &[], false),
        }
    }

    /// Sends a part of the body: what delimits it in HTTP/1, and a piece.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, delimiter: &[u8], piece: &[u8]) -> io::Result<()> {
        match self {
            Self::Http1(wire) => wire.send(cx, delimiter, piece),
            // A body of HTTP/2 is plain: both parts are contents.
            Self::Http2(stream) => {
                stream.send(cx, delimiter, false)?;
                stream.send(cx, piece, false)
            }
        }
    }

    /// The body has ended.
    pub(super) fn end_body(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self {
            Self::Http1(_) => Ok(()),
            Self::Http2(stream) => stream.send(cx, &[], true),
        }
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Http1(wire) => wire.is_drained(),
            Self::Http2(stream) => stream.is_drained(),
        }
    }

    /// Sends what waits.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(wire) => wire.poll_drain(cx),
            Self::Http2(stream) => stream.poll_drain(cx),
        }
    }
}
