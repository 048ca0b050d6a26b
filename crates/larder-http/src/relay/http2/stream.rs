//! An HTTP/2 stream as the client side of an exchange.
//!
//! A piece of a reply is passed to h2 as far as the flow-control window of the client allows. Until h2 has
//! written the whole piece, the exchange reads nothing from the server, and the request does not end.

use super::head;
use super::shared::{IncomingRequest, SharedState};
use crate::convert;
use crate::h1::{Body, Fault, ReplyHead, RequestHead};
use crate::relay::buffered_stream::BufferedStream;
use crate::relay::client_side::ClientSide;
use crate::relay::deadline::Deadline;
use crate::relay::fields::write_trailers;
use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of concurrent requests for which `Limits::client_write` is enough time.
const TURN_STREAMS: usize = 16;

/// The bytes of a reply that were passed to h2 and not yet written.
#[derive(Debug, Default)]
pub(super) struct UnwrittenBytes {
    bytes: AtomicUsize,
    /// The task that waits until no such bytes are left.
    waiting: AtomicWaker,
}

impl UnwrittenBytes {
    fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// A piece of a reply. It is counted until h2 has written or dropped it.
struct CountedPiece {
    bytes: Bytes,
    unwritten: Arc<UnwrittenBytes>,
}

impl CountedPiece {
    /// Counts a piece, and returns it as `Bytes` for h2.
    fn count(bytes: Bytes, unwritten: &Arc<UnwrittenBytes>) -> Bytes {
        unwritten.bytes.fetch_add(bytes.len(), Relaxed);
        Bytes::from_owner(Self { bytes, unwritten: unwritten.clone() })
    }
}

impl AsRef<[u8]> for CountedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedPiece {
    fn drop(&mut self) {
        if self.unwritten.bytes.fetch_sub(self.bytes.len(), Relaxed) == self.bytes.len() {
            self.unwritten.waiting.wake();
        }
    }
}

/// An HTTP/2 stream. It is reused for the next request of its task.
#[derive(Debug)]
pub(super) struct ClientStream {
    shared: Rc<SharedState>,
    responder: Option<SendResponse<Bytes>>,
    /// The request body.
    request_body: Option<RecvStream>,
    /// The part of the last DATA frame that was not read.
    unread_data: Bytes,
    /// The head of the reply, until it is sent.
    head: Option<Response<()>>,
    /// The head must be sent.
    head_is_due: bool,
    reply: Option<SendStream<Bytes>>,
    /// Memory that pieces may be slices of.
    shared_buffer: Option<Bytes>,
    /// A piece that came first, and was not copied.
    shared_piece: Bytes,
    /// Pieces that are sent together.
    gathered: Vec<u8>,
    unwritten: Arc<UnwrittenBytes>,
    /// Number of unwritten bytes of the reply at the last check.
    last_unwritten: usize,
    /// Bytes that h2 has not accepted.
    pending: Bytes,
    /// The reply ends after `pending`, and after the trailers if there are any.
    end_pending: bool,
    trailers: Option<HeaderMap>,
    /// Total time for which the socket was blocked, at the last progress of the client.
    blocked_time: Duration,
    /// Number of timeouts that were extended because of other streams.
    extensions: usize,
}

impl ClientStream {
    pub(super) fn new(shared: Rc<SharedState>, unwritten: Arc<UnwrittenBytes>) -> Self {
        Self {
            shared,
            unwritten,
            last_unwritten: 0,
            responder: None,
            request_body: None,
            unread_data: Bytes::new(),
            head: None,
            head_is_due: false,
            reply: None,
            shared_buffer: None,
            shared_piece: Bytes::new(),
            gathered: Vec::new(),
            pending: Bytes::new(),
            end_pending: false,
            trailers: None,
            blocked_time: Duration::ZERO,
            extensions: 0,
        }
    }

    /// Starts a request. Its head is read into `head`.
    pub(super) fn accept(
        &mut self,
        (request, responder): IncomingRequest,
        head: &mut RequestHead,
    ) -> Result<(), Fault> {
        let (parts, request_body) = request.into_parts();
        let has_body = !request_body.is_end_stream();
        self.responder = Some(responder);
        self.request_body = has_body.then_some(request_body);
        self.record_progress();
        head::read_request(head, &parts, has_body)
    }

    /// Ends the stream. h2 sends the bytes it has. If `reset` is set, the stream is reset, so that the client
    /// detects that something is missing.
    pub(super) fn end(&mut self, reset: Option<Reason>) {
        if let Some(reason) = reset
            && let Some(responder) = &mut self.responder
        {
            responder.send_reset(reason);
        }
        // The h2 crate resets a stream whose request body continues after the reply (RFC 9113 section 8.1).
        let mut spare = Self::new(self.shared.clone(), self.unwritten.clone());
        if self.unwritten.bytes() > 0 {
            // The bytes belong to a reply that was reset.
            spare.unwritten = Arc::default();
        }
        *self = spare;
    }

    /// Records that the client has accepted bytes.
    fn record_progress(&mut self) {
        (self.blocked_time, self.extensions) = (self.shared.socket_progress.blocked_time(), 0);
    }

    /// Passes pending bytes to h2 as far as the flow-control window of the client allows.
    fn send_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.head_is_due)
            && let (Some(head), Some(responder)) = (self.head.take(), &mut self.responder)
        {
            let is_whole = self.end_pending && self.pending.is_empty() && self.trailers.is_none();
            let reply = responder.send_response(head, is_whole).map_err(connection_reset)?;
            if is_whole {
                self.end_pending = false;
                return Poll::Ready(Ok(()));
            }
            self.reply = Some(reply);
        }
        let Some(reply) = &mut self.reply else { return Poll::Ready(Ok(())) };
        while !self.pending.is_empty() {
            reply.reserve_capacity(self.pending.len());
            let room = match reply.capacity() {
                0 => match ready!(reply.poll_capacity(cx)) {
                    Some(room) => room.map_err(connection_reset)?,
                    None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                },
                room => room,
            };
            let piece =
                CountedPiece::count(self.pending.split_to(room.min(self.pending.len())), &self.unwritten);
            let is_last = self.end_pending && self.pending.is_empty() && self.trailers.is_none();
            reply.send_data(piece, is_last).map_err(connection_reset)?;
            self.end_pending &= !is_last;
        }
        if std::mem::take(&mut self.end_pending) {
            match self.trailers.take() {
                Some(trailers) => reply.send_trailers(trailers),
                None => reply.send_data(Bytes::new(), true),
            }
            .map_err(connection_reset)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl ClientSide for ClientStream {
    const IS_FRAMED: bool = true;
    /// Smallest piece to share, in bytes. A shared piece keeps the whole buffer alive that it was read into.
    const SHARED_BYTES_MIN: usize = 32 << 10;

    fn body(&self, request: &RequestHead) -> Body {
        if request.body() == Body::Chunks { Body::Close } else { request.body() }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(request_body) = &mut self.request_body else { return Poll::Ready(Ok(())) };
        while self.unread_data.is_empty() {
            match ready!(request_body.poll_data(cx)) {
                Some(data) => self.unread_data = data.map_err(connection_reset)?,
                None => {
                    self.request_body = None;
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let taken = self.unread_data.len().min(buffer.remaining());
        buffer.put_slice(&self.unread_data[..taken]);
        self.unread_data.advance(taken);
        // The window is released immediately, because the exchange reads no more until the server has these
        // bytes.
        Poll::Ready(request_body.flow_control().release_capacity(taken).map_err(connection_reset))
    }

    fn check_disconnect(&mut self, cx: &mut Context<'_>, _: &mut Vec<u8>, _: bool) -> io::Result<()> {
        let reset = match (&mut self.reply, &mut self.responder) {
            (Some(reply), _) => reply.poll_reset(cx),
            (None, Some(responder)) => responder.poll_reset(cx),
            (None, None) => return Ok(()),
        };
        if reset.is_ready() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    fn can_continue(&self, _: &RequestHead, _: &[u8]) -> bool {
        true
    }

    fn skip_body(_: &RequestHead, _: &mut Vec<u8>) -> bool {
        true
    }

    fn send_interim(&mut self, _: &mut Context<'_>, head: &ReplyHead, _: &mut Vec<u8>) -> io::Result<()> {
        if let (Some(reply), Some(responder)) = (convert::reply(head), &mut self.responder) {
            // If h2 refuses an interim reply, it is dropped, because the final reply follows. A disconnect is
            // detected elsewhere.
            let _ = responder.send_informational(reply);
        }
        Ok(())
    }

    fn begin_reply(&mut self, head: &ReplyHead, out: &mut Vec<u8>) {
        out.clear();
        self.gathered.clear();
        self.shared_piece.clear();
        self.head = convert::reply(head);
    }

    fn set_shared_buffer(&mut self, read: Option<Bytes>) {
        self.shared_buffer = read;
    }

    fn send(&mut self, _: &mut Context<'_>, before: &[u8], piece: &[u8]) -> io::Result<()> {
        if before.is_empty() && self.gathered.is_empty() && self.shared_piece.is_empty() {
            self.shared_piece =
                self.shared_buffer.as_ref().and_then(|read| slice_of(read, piece)).unwrap_or_default();
            if !self.shared_piece.is_empty() {
                return Ok(());
            }
        }
        if self.gathered.is_empty() {
            self.gathered.extend_from_slice(&std::mem::take(&mut self.shared_piece));
            // h2 takes a buffer without spare capacity as it is.
            self.gathered.reserve_exact(before.len() + piece.len());
        }
        self.gathered.extend_from_slice(before);
        self.gathered.extend_from_slice(piece);
        Ok(())
    }

    fn send_shared(&mut self, cx: &mut Context<'_>, before: &[u8], piece: Bytes) -> io::Result<()> {
        if before.is_empty() && self.gathered.is_empty() && self.shared_piece.is_empty() {
            self.shared_piece = piece;
            return Ok(());
        }
        self.send(cx, before, &piece)
    }

    fn flush_pieces(&mut self, cx: &mut Context<'_>, end: Option<&[u8]>) -> io::Result<()> {
        if self.reply.is_none() && self.head.is_none() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.head_is_due = self.head.is_some();
        let gathered = std::mem::take(&mut self.gathered);
        self.pending =
            if gathered.is_empty() { std::mem::take(&mut self.shared_piece) } else { gathered.into() };
        if let Some(trailers) = end {
            self.end_pending = true;
            self.trailers = Some(trailers).filter(|lines| !lines.is_empty()).map(|lines| {
                let mut passed = Vec::new();
                write_trailers(lines, &mut passed);
                head::trailers(&passed)
            });
        }
        self.record_progress();
        let sent = match self.send_pending(cx) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Ok(()),
        };
        self.last_unwritten = self.pending.len() + self.unwritten.bytes();
        sent
    }

    fn is_drained(&self) -> bool {
        !self.head_is_due && !self.end_pending && self.pending.is_empty() && self.unwritten.bytes() == 0
    }

    fn unsent_bytes(&self) -> usize {
        self.last_unwritten
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.send_pending(cx);
        // The waker is registered before the bytes are counted, so that no change is missed.
        self.unwritten.waiting.register(cx.waker());
        let (before, unwritten) = (self.last_unwritten, self.unwritten.bytes());
        self.last_unwritten = self.pending.len() + unwritten;
        if self.last_unwritten < before {
            self.record_progress();
        }
        match sent {
            Poll::Ready(Ok(())) if unwritten > 0 => Poll::Pending,
            sent => sent,
        }
    }

    fn extra_time(&mut self, timeout: Duration) -> Option<Duration> {
        // While the socket is blocked, its own deadline applies.
        let blocked = self.shared.socket_progress.blocked_time();
        let excused = blocked.saturating_sub(std::mem::replace(&mut self.blocked_time, blocked));
        if !excused.is_zero() {
            return Some(excused.min(timeout));
        }
        self.extensions += 1;
        (self.extensions <= self.shared.pending_requests.get() / TURN_STREAMS).then_some(timeout)
    }

    async fn run_tunnel<S>(
        &mut self,
        _: Vec<u8>,
        _: BufferedStream<S>,
        _: &mut Deadline,
        _: Duration,
    ) -> (u64, Option<io::Error>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // An HTTP/2 request never switches to another protocol.
        (0, None)
    }
}

/// Returns `piece` as a slice of `read`. Returns `None` if it is no part of `read`, or too small to keep the
/// memory of `read` alive.
fn slice_of(read: &Bytes, piece: &[u8]) -> Option<Bytes> {
    let start = (piece.as_ptr() as usize).checked_sub(read.as_ptr() as usize)?;
    let range = start..start.checked_add(piece.len())?;
    (piece.len() >= ClientStream::SHARED_BYTES_MIN && range.end <= read.len()).then(|| read.slice(range))
}

/// Converts the error of a stream or connection that has ended.
fn connection_reset(_: h2::Error) -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
