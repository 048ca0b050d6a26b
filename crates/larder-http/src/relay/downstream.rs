//! The client's side of an exchange: a connection of HTTP/1, or a stream of HTTP/2.

use super::deadline::Deadline;
use super::wire::Wire;
use crate::h1::{Body, ReplyHead, RequestHead};
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The client's side. What is decided about a request does not depend on it.
pub(super) trait Downstream: Sized {
    /// The protocol delimits bodies itself. Otherwise fields and chunks do.
    const IS_FRAMED: bool;

    /// Bytes of the smallest read that is lent, so that its pieces need not be copied.
    const SHARED_MIN: usize;

    /// The way in which the body of a request comes.
    fn body(&self, request: &RequestHead) -> Body;

    /// Reads a part of the request's body into `buffer`. At its end the buffer stays empty.
    fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Notices that a client leaves that waits for its reply. One read of what it sends meanwhile is kept in `unread`.
    fn watch(&mut self, cx: &mut Context<'_>, unread: &mut Vec<u8>, half_close: bool) -> io::Result<()>;

    /// Whether the client may send another request after this one, if the reply does not end the connection.
    fn goes_on(&self, request: &RequestHead, unread: &[u8]) -> bool;

    /// Takes the body of a request that is not passed on, if all of it has come. Whether the next request can follow.
    fn skip_body(request: &RequestHead, unread: &mut Vec<u8>) -> bool;

    /// Sends an interim reply. `out` is memory to write in.
    fn send_interim(&mut self, cx: &mut Context<'_>, head: &ReplyHead, out: &mut Vec<u8>) -> io::Result<()>;

    /// Begins the final reply: its head waits in `out` or here, so that the first piece is sent with it.
    fn begin(&mut self, head: &ReplyHead, out: &mut Vec<u8>);

    /// Pieces that are sent from now on are perhaps parts of `read`.
    fn lend(&mut self, read: Option<Bytes>);

    /// Sends what delimits a piece, or comes before it, and the piece.
    fn send(&mut self, cx: &mut Context<'_>, before: &[u8], piece: &[u8]) -> io::Result<()>;

    /// The same, without a copy of the piece where that is possible.
    fn send_shared(&mut self, cx: &mut Context<'_>, before: &[u8], piece: Bytes) -> io::Result<()>;

    /// No more pieces are at hand. `end`: the reply has ended with these lines of trailers.
    fn finish(&mut self, cx: &mut Context<'_>, end: Option<&[u8]>) -> io::Result<()>;

    /// Whether all that was sent is on its way.
    fn is_drained(&self) -> bool;

    /// The number of bytes that are not on their way.
    fn left(&self) -> usize;

    /// The state of what was sent: it changes when the client takes something.
    fn progress(&self) -> (usize, u64) {
        (self.left(), 0)
    }

    /// Sends what is not on its way.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Time that a client which takes nothing has beyond `patience`, because others had their turn.
    fn grace(&mut self, patience: Duration) -> Option<Duration>;

    /// The socket to which contents can pass without a copy, if all before them is on its way.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Carries another protocol, of which the client has sent `early`. Returns the number of bytes that the client was sent, and the
    /// error of a server that broke off or was silent for longer than `patience`.
    fn carry<S>(
        &mut self,
        early: Vec<u8>,
        server: Wire<S>,
        deadline: &mut Deadline,
        patience: Duration,
    ) -> impl Future<Output = (u64, Option<io::Error>)>
    where
        S: AsyncRead + AsyncWrite + Unpin;
}
