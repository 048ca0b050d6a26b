//! The server side of an exchange: an HTTP/1 connection, or an HTTP/2 stream.

use super::buffered_stream::BufferedStream;
use super::server_streams::ServerStream;
use crate::h1::RequestHead;
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// The server side of an exchange.
#[derive(Debug)]
pub(super) enum ServerSide<S> {
    Http1(BufferedStream<S>),
    Http2(Box<ServerStream>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> ServerSide<S> {
    /// Sends the head of a request. `out` is a buffer for the head.
    pub(super) fn send_head(
        &mut self,
        cx: &mut Context<'_>,
        request: &RequestHead,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        match self {
            Self::Http1(stream) => {
                out.clear();
                request.write(out);
                stream.send(cx, out, &[])
            }
            Self::Http2(stream) => stream.send(cx, &[], false),
        }
    }

    /// Sends a part of the request body. `delimiter` is the start of a chunk in HTTP/1.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, delimiter: &[u8], piece: &[u8]) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.send(cx, delimiter, piece),
            // An HTTP/2 body has no chunks, so that both parts are content.
            Self::Http2(stream) => {
                stream.send(cx, delimiter, false)?;
                stream.send(cx, piece, false)
            }
        }
    }

    /// Ends the request body.
    pub(super) fn end_body(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self {
            Self::Http1(_) => Ok(()),
            Self::Http2(stream) => stream.send(cx, &[], true),
        }
    }

    /// Returns whether all bytes were sent.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Http1(stream) => stream.is_drained(),
            Self::Http2(stream) => stream.is_drained(),
        }
    }

    /// Sends the pending bytes.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(stream) => stream.poll_drain(cx),
            Self::Http2(stream) => stream.poll_drain(cx),
        }
    }
}
