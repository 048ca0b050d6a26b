//! The client side of an exchange: an HTTP/1 connection, or an HTTP/2 stream.

use super::buffered_stream::BufferedStream;
use super::deadline::Deadline;
use crate::h1::{Body, ReplyHead, RequestHead};
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The client side of an exchange. Decisions about a request do not depend on it.
pub(super) trait ClientSide: Sized {
    /// The protocol delimits bodies itself. Otherwise fields and chunks delimit them.
    const IS_FRAMED: bool;

    /// Smallest read, in bytes, whose memory is shared with the client side instead of copied.
    const SHARED_BYTES_MIN: usize;

    /// Returns the delimitation of the request body on this side.
    fn body(&self, request: &RequestHead) -> Body;

    /// Reads a part of the request body into `buffer`. The buffer stays empty at the end of the body.
    fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Detects that a client disconnects while it waits for its reply. The bytes of at most one read from the
    /// client are kept in `unread`.
    fn check_disconnect(
        &mut self,
        cx: &mut Context<'_>,
        unread: &mut Vec<u8>,
        half_close: bool,
    ) -> io::Result<()>;

    /// Returns whether the client may send another request after this one, if the reply does not end the
    /// connection.
    fn can_continue(&self, request: &RequestHead, unread: &[u8]) -> bool;

    /// Skips the body of a request that is not relayed. Returns whether the complete body had arrived, so
    /// that the next request can follow.
    fn skip_body(request: &RequestHead, unread: &mut Vec<u8>) -> bool;

    /// Sends an interim reply. `out` is a buffer for the head.
    fn send_interim(&mut self, cx: &mut Context<'_>, head: &ReplyHead, out: &mut Vec<u8>) -> io::Result<()>;

    /// Starts the final reply. The head is kept in `out` or on this side, so that it is sent together with
    /// the first piece.
    fn begin_reply(&mut self, head: &ReplyHead, out: &mut Vec<u8>);

    /// Sets the memory that the next pieces may be slices of.
    fn set_shared_buffer(&mut self, read: Option<Bytes>);

    /// Sends `before`, for example the start of a chunk, and a piece of the body.
    fn send(&mut self, cx: &mut Context<'_>, before: &[u8], piece: &[u8]) -> io::Result<()>;

    /// Sends as [`Self::send`] does, but without copying the piece if possible.
    fn send_shared(&mut self, cx: &mut Context<'_>, before: &[u8], piece: Bytes) -> io::Result<()>;

    /// Ends a batch of pieces. `end` is set if the reply is complete, and has its trailer field lines.
    fn flush_pieces(&mut self, cx: &mut Context<'_>, end: Option<&[u8]>) -> io::Result<()>;

    /// Returns whether all bytes have been passed to the socket or written by h2.
    fn is_drained(&self) -> bool;

    /// Returns the number of bytes that have not been sent.
    fn unsent_bytes(&self) -> usize;

    /// Returns a value that changes when the client accepts bytes.
    fn progress(&self) -> (usize, u64) {
        (self.unsent_bytes(), 0)
    }

    /// Sends the bytes that have not been sent.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns additional time for a client that has accepted nothing for `timeout`, if that was not the
    /// fault of the client.
    fn extra_time(&mut self, timeout: Duration) -> Option<Duration>;

    /// Returns the socket to which content can be spliced, if all earlier bytes have been sent.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Relays another protocol between the client and a server. `early` has the bytes that the client has
    /// already sent.
    ///
    /// Returns the number of bytes that were sent to the client, and the error of a server that failed or was
    /// silent for longer than `timeout`.
    fn run_tunnel<S>(
        &mut self,
        early: Vec<u8>,
        server: BufferedStream<S>,
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> impl Future<Output = (u64, Option<io::Error>)>
    where
        S: AsyncRead + AsyncWrite + Unpin;
}
