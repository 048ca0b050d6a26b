//! A stream of HTTP/2 as the client's side of an exchange.
//!
//! A piece of a reply is given to h2 as far as the client's window goes. The exchange reads no more from the server, and the request does
//! not end, until h2 has written all of the piece.

use super::head;
use super::shared::{Arrived, Shared};
use crate::convert;
use crate::h1::{Body, Fault, ReplyHead, RequestHead};
use crate::relay::deadline::Deadline;
use crate::relay::downstream::Downstream;
use crate::relay::fields::write_trailers;
use crate::relay::wire::Wire;
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

/// Requests beside which each has `Limits::client_write` for its turn.
const TURN_STREAMS: usize = 16;

/// The bytes of a reply that h2 holds: it was given them and has not written them.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: AtomicUsize,
    /// The task that waits until there are none.
    waiting: AtomicWaker,
}

impl Held {
    fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// A piece of a reply, until h2 has written it or thrown it away.
struct Piece {
    bytes: Bytes,
    held: Arc<Held>,
}

impl Piece {
    /// The piece in the form that h2 takes.
    fn follow(bytes: Bytes, held: &Arc<Held>) -> Bytes {
        held.bytes.fetch_add(bytes.len(), Relaxed);
        Bytes::from_owner(Self { bytes, held: held.clone() })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.held.bytes.fetch_sub(self.bytes.len(), Relaxed) == self.bytes.len() {
            self.held.waiting.wake();
        }
    }
}

/// A stream, or the place for the next one.
#[derive(Debug)]
pub(super) struct Stream {
    shared: Rc<Shared>,
    respond: Option<SendResponse<Bytes>>,
    /// The request's body, and a part of a frame that was not read.
    upload: Option<RecvStream>,
    chunk: Bytes,
    /// The head of the reply. It is sent once it `is_due`.
    head: Option<Response<()>>,
    is_due: bool,
    reply: Option<SendStream<Bytes>>,
    /// Memory that pieces are perhaps parts of.
    lent: Option<Bytes>,
    /// A piece that came first and was not copied, or pieces that come together.
    shared_piece: Bytes,
    gathered: Vec<u8>,
    held: Arc<Held>,
    /// Bytes of the reply that were not written when this was last looked at.
    unwritten: usize,
    /// Bytes that h2 has not taken, and the end with perhaps trailers behind them.
    pending: Bytes,
    ends: bool,
    trailers: Option<HeaderMap>,
    /// The time in which the socket had no room, in all, when the client last took something.
    blocked: Duration,
    /// Times that the client was given for the turns of other streams.
    turns: usize,
}

impl Stream {
    pub(super) fn new(shared: Rc<Shared>, held: Arc<Held>) -> Self {
        Self {
            shared,
            held,
            unwritten: 0,
            respond: None,
            upload: None,
            chunk: Bytes::new(),
            head: None,
            is_due: false,
            reply: None,
            lent: None,
            shared_piece: Bytes::new(),
            gathered: Vec::new(),
            pending: Bytes::new(),
            ends: false,
            trailers: None,
            blocked: Duration::ZERO,
            turns: 0,
        }
    }

    /// Takes the stream of a request, whose head is read into `head`.
    pub(super) fn accept(
        &mut self,
        (request, respond): Arrived,
        head: &mut RequestHead,
    ) -> Result<(), Fault> {
        let (parts, upload) = request.into_parts();
        let has_body = !upload.is_end_stream();
        self.respond = Some(respond);
        self.upload = has_body.then_some(upload);
        self.note_progress();
        head::read_request(head, &parts, has_body)
    }

    /// Ends the stream. h2 sends what it has; `reset`: the client must see that something is missing.
    pub(super) fn end(&mut self, reset: Option<Reason>) {
        if let Some(reason) = reset
            && let Some(respond) = &mut self.respond
        {
            respond.send_reset(reason);
        }
        // h2 resets a stream whose body goes on after its reply (RFC 9113 section 8.1).
        let mut spare = Self::new(self.shared.clone(), self.held.clone());
        if self.held.bytes() > 0 {
            // Of a reply that was reset.
            spare.held = Arc::default();
        }
        *self = spare;
    }

    fn note_progress(&mut self) {
        (self.blocked, self.turns) = (self.shared.blocked.total(), 0);
    }

    /// Gives h2 what waits, as far as the client's window goes.
    fn give(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.is_due)
            && let (Some(head), Some(respond)) = (self.head.take(), &mut self.respond)
        {
            let is_whole = self.ends && self.pending.is_empty() && self.trailers.is_none();
            let reply = respond.send_response(head, is_whole).map_err(gone)?;
            if is_whole {
                self.ends = false;
                return Poll::Ready(Ok(()));
            }
            self.reply = Some(reply);
        }
        let Some(reply) = &mut self.reply else { return Poll::Ready(Ok(())) };
        while !self.pending.is_empty() {
            reply.reserve_capacity(self.pending.len());
            let room = match reply.capacity() {
                0 => match ready!(reply.poll_capacity(cx)) {
                    Some(room) => room.map_err(gone)?,
                    None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                },
                room => room,
            };
            let piece = Piece::follow(self.pending.split_to(room.min(self.pending.len())), &self.held);
            let is_last = self.ends && self.pending.is_empty() && self.trailers.is_none();
            reply.send_data(piece, is_last).map_err(gone)?;
            self.ends &= !is_last;
        }
        if std::mem::take(&mut self.ends) {
            match self.trailers.take() {
                Some(trailers) => reply.send_trailers(trailers),
                None => reply.send_data(Bytes::new(), true),
            }
            .map_err(gone)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Downstream for Stream {
    const IS_FRAMED: bool = true;
    /// A piece holds all of the memory that it was read into.
    const SHARED_MIN: usize = 32 << 10;

    fn body(&self, request: &RequestHead) -> Body {
        if request.body() == Body::Chunks { Body::Close } else { request.body() }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(Ok(())) };
        while self.chunk.is_empty() {
            match ready!(upload.poll_data(cx)) {
                Some(data) => self.chunk = data.map_err(gone)?,
                None => {
                    self.upload = None;
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let taken = self.chunk.len().min(buffer.remaining());
        buffer.put_slice(&self.chunk[..taken]);
        self.chunk.advance(taken);
        // The exchange asks for no more until the server has this.
        Poll::Ready(upload.flow_control().release_capacity(taken).map_err(gone))
    }

    fn watch(&mut self, cx: &mut Context<'_>, _: &mut Vec<u8>, _: bool) -> io::Result<()> {
        let reset = match (&mut self.reply, &mut self.respond) {
            (Some(reply), _) => reply.poll_reset(cx),
            (None, Some(respond)) => respond.poll_reset(cx),
            (None, None) => return Ok(()),
        };
        if reset.is_ready() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    fn goes_on(&self, _: &RequestHead, _: &[u8]) -> bool {
        true
    }

    fn skip_body(_: &RequestHead, _: &mut Vec<u8>) -> bool {
        true
    }

    fn send_interim(&mut self, _: &mut Context<'_>, head: &ReplyHead, _: &mut Vec<u8>) -> io::Result<()> {
        if let (Some(reply), Some(respond)) = (convert::reply(head), &mut self.respond) {
            // One that h2 refuses is dropped: the final reply comes all the same. That the client leaves is noticed elsewhere.
            let _ = respond.send_informational(reply);
        }
        Ok(())
    }

    fn begin(&mut self, head: &ReplyHead, out: &mut Vec<u8>) {
        out.clear();
        self.gathered.clear();
        self.shared_piece.clear();
        self.head = convert::reply(head);
    }

    fn lend(&mut self, read: Option<Bytes>) {
        self.lent = read;
    }

    fn send(&mut self, _: &mut Context<'_>, before: &[u8], piece: &[u8]) -> io::Result<()> {
        if before.is_empty() && self.gathered.is_empty() && self.shared_piece.is_empty() {
            self.shared_piece = self.lent.as_ref().and_then(|read| part(read, piece)).unwrap_or_default();
            if !self.shared_piece.is_empty() {
                return Ok(());
            }
        }
        if self.gathered.is_empty() {
            self.gathered.extend_from_slice(&std::mem::take(&mut self.shared_piece));
            // h2 takes memory that is full as it is.
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

    fn finish(&mut self, cx: &mut Context<'_>, end: Option<&[u8]>) -> io::Result<()> {
        if self.reply.is_none() && self.head.is_none() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.is_due = self.head.is_some();
        let gathered = std::mem::take(&mut self.gathered);
        self.pending =
            if gathered.is_empty() { std::mem::take(&mut self.shared_piece) } else { gathered.into() };
        if let Some(trailers) = end {
            self.ends = true;
            self.trailers = Some(trailers).filter(|lines| !lines.is_empty()).map(|lines| {
                let mut passed = Vec::new();
                write_trailers(lines, &mut passed);
                head::trailers(&passed)
            });
        }
        self.note_progress();
        let given = match self.give(cx) {
            Poll::Ready(given) => given,
            Poll::Pending => Ok(()),
        };
        self.unwritten = self.pending.len() + self.held.bytes();
        given
    }

    fn is_drained(&self) -> bool {
        !self.is_due && !self.ends && self.pending.is_empty() && self.held.bytes() == 0
    }

    fn left(&self) -> usize {
        self.unwritten
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let given = self.give(cx);
        // Before the bytes are counted, so that none goes unseen.
        self.held.waiting.register(cx.waker());
        let (before, held) = (self.unwritten, self.held.bytes());
        self.unwritten = self.pending.len() + held;
        if self.unwritten < before {
            self.note_progress();
        }
        match given {
            Poll::Ready(Ok(())) if held > 0 => Poll::Pending,
            given => given,
        }
    }

    fn grace(&mut self, patience: Duration) -> Option<Duration> {
        // While the socket has no room, its own deadline runs.
        let blocked = self.shared.blocked.total();
        let excused = blocked.saturating_sub(std::mem::replace(&mut self.blocked, blocked));
        if !excused.is_zero() {
            return Some(excused.min(patience));
        }
        self.turns += 1;
        (self.turns <= self.shared.busy.get() / TURN_STREAMS).then_some(patience)
    }

    async fn carry<S>(
        &mut self,
        _: Vec<u8>,
        _: Wire<S>,
        _: &mut Deadline,
        _: Duration,
    ) -> (u64, Option<io::Error>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // No request of HTTP/2 asks for another protocol.
        (0, None)
    }
}

/// `piece` as a part of `read`, if it is one and not so small that it would hold too much memory.
fn part(read: &Bytes, piece: &[u8]) -> Option<Bytes> {
    let start = (piece.as_ptr() as usize).checked_sub(read.as_ptr() as usize)?;
    let place = start..start.checked_add(piece.len())?;
    (piece.len() >= Stream::SHARED_MIN && place.end <= read.len()).then(|| read.slice(place))
}

/// The stream or its connection is gone.
fn gone(_: h2::Error) -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
