//! The connection of a client of HTTP/1.

use super::client::{self, Client, Sent};
use super::clock::Clock;
use super::deadline::Deadline;
use super::downstream::Downstream;
use super::fault::Refusal;
use super::limits::Limits;
use super::proxy::Proxy;
use super::splice::Transport;
use super::tunnel::{self, Direction};
use super::wire::Wire;
use super::worker::Place;
use crate::h1::{Body, Decoder, Fault, HeadEnd, ReplyHead, RequestHead};
use bytes::Bytes;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Time for a client to read the last reply and to close.
const LINGER: Duration = Duration::from_secs(2);

/// A connection of HTTP/1.
#[derive(Debug)]
pub(super) struct Http1<T> {
    pub(super) wire: Wire<T>,
    /// The client has ended its side, and still waits for its reply.
    pub(super) is_half_closed: bool,
    /// The first request has not come.
    is_new: bool,
    /// The deadline of the first head, if it began before the connection came here.
    head_by: Option<Instant>,
}

impl<T: Transport> Http1<T> {
    /// A connection to which `unsent` is still to be written.
    pub(super) const fn new(io: T, unsent: Vec<u8>, is_new: bool, head_by: Option<Instant>) -> Self {
        Self { wire: Wire::with_unsent(io, unsent), is_half_closed: false, is_new, head_by }
    }
}

impl<T: Transport> Downstream for Http1<T> {
    const IS_FRAMED: bool = false;
    /// The socket takes pieces at once.
    const SHARED_MIN: usize = usize::MAX;

    fn body(&self, request: &RequestHead) -> Body {
        request.body()
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_fill(cx, buffer)
    }

    fn watch(&mut self, cx: &mut Context<'_>, unread: &mut Vec<u8>, half_close: bool) -> io::Result<()> {
        if !unread.is_empty() || self.is_half_closed {
            return Ok(());
        }
        match self.wire.poll_read(cx, |_, _, bytes| unread.extend_from_slice(bytes)) {
            Poll::Ready(Ok(())) if !unread.is_empty() => Ok(()),
            Poll::Ready(Ok(())) if half_close => {
                self.is_half_closed = true;
                Ok(())
            }
            Poll::Ready(Ok(())) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(()),
        }
    }

    fn goes_on(&self, request: &RequestHead, unread: &[u8]) -> bool {
        // Early bytes after a wish for another protocol are perhaps no request.
        let is_clear = unread.is_empty() || !request.asks_for_upgrade();
        request.is_persistent() && is_clear && !self.is_half_closed
    }

    fn skip_body(request: &RequestHead, unread: &mut Vec<u8>) -> bool {
        let mut decoder = Decoder::new(request.body());
        let mut taken = 0;
        while !decoder.is_ended() {
            match decoder.step(&unread[taken..]) {
                Ok(step) if step.taken > 0 => taken += step.taken,
                _ => return false,
            }
        }
        client::take(unread, taken);
        true
    }

    fn send_interim(&mut self, cx: &mut Context<'_>, head: &ReplyHead, out: &mut Vec<u8>) -> io::Result<()> {
        self.begin(head, out);
        self.wire.send(cx, out, &[])
    }

    fn begin(&mut self, head: &ReplyHead, out: &mut Vec<u8>) {
        out.clear();
        head.write(out);
    }

    fn lend(&mut self, _: Option<Bytes>) {}

    fn send(&mut self, cx: &mut Context<'_>, before: &[u8], piece: &[u8]) -> io::Result<()> {
        self.wire.send(cx, before, piece)
    }

    fn send_shared(&mut self, cx: &mut Context<'_>, before: &[u8], piece: Bytes) -> io::Result<()> {
        self.wire.send_shared(cx, before, piece)
    }

    fn finish(&mut self, _: &mut Context<'_>, _: Option<&[u8]>) -> io::Result<()> {
        Ok(())
    }

    fn is_drained(&self) -> bool {
        self.wire.is_drained()
    }

    fn left(&self) -> usize {
        self.wire.left()
    }

    fn progress(&self) -> (usize, u64) {
        // TLS holds bytes of its own.
        (self.wire.left(), self.wire.io().sent().unwrap_or_default())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_drain(cx)
    }

    fn grace(&mut self, _: Duration) -> Option<Duration> {
        None
    }

    fn socket(&self) -> Option<&TcpStream> {
        self.wire.io().socket()
    }

    async fn carry<S>(
        &mut self,
        early: Vec<u8>,
        server: Wire<S>,
        deadline: &mut Deadline,
        patience: Duration,
    ) -> (u64, Option<io::Error>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let up = Direction::new(early, self.is_half_closed);
        tunnel::carry((&mut self.wire, server), up, deadline, patience).await
    }
}

/// The result of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A head has come.
    Head,
    /// The client has closed the connection.
    Closed,
    /// The client was silent for too long, before a head began.
    Idle,
    /// No request is waited for any more.
    Over,
    /// The connection is to go on elsewhere.
    Leave,
    /// The bytes are refused.
    Refused(Refusal),
}

/// The search for a head.
#[derive(Debug)]
struct Search {
    end: HeadEnd,
    /// The deadline for the head runs.
    begun: bool,
}

impl<T: Transport> Client<Http1<T>> {
    /// Waits for the head of the next request.
    pub(super) async fn next<P: Proxy>(
        &mut self,
        info: &P::Client,
        limits: &Limits,
        place: &Place<'_, P>,
    ) -> Arrival {
        self.sent = Sent::default();
        let mut search = Search { end: HeadEnd::new(), begun: self.down.is_new || !self.unread.is_empty() };
        let head = match self.down.head_by.take() {
            Some(head_by) => head_by.saturating_duration_since(Clock::now()),
            None => limits.head,
        };
        self.deadline.set(if search.begun { head } else { limits.keepalive });
        if !self.unread.is_empty()
            && let Some(arrival) = self.take_head(&mut search.end, limits.head_bytes)
        {
            return arrival;
        }
        if self.down.is_half_closed {
            return Arrival::Closed;
        }
        poll_fn(|cx| {
            // Left over from before the connection came here.
            if !self.down.is_drained()
                && let Poll::Ready(Err(_)) = self.down.poll_drain(cx)
            {
                return Poll::Ready(Arrival::Closed);
            }
            let arrival = self.poll_next(cx, &mut search, limits);
            if arrival.is_pending() && self.unread.is_empty() {
                let is_over = place.is_over(cx);
                if !self.down.is_new && place.proxy().poll_leave(info, is_over, cx).is_ready() {
                    return Poll::Ready(Arrival::Leave);
                }
                if is_over {
                    return Poll::Ready(Arrival::Over);
                }
            }
            arrival
        })
        .await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, search: &mut Search, limits: &Limits) -> Poll<Arrival> {
        loop {
            let Self { down: Http1 { wire, is_new, .. }, unread, request, .. } = self;
            let read = wire.poll_read(cx, |_, _, bytes| {
                // A head that comes whole is not copied here.
                if unread.is_empty()
                    && !matches!(bytes.first(), Some(b'\r' | b'\n'))
                    && let Some(length) = search.end.find(bytes).filter(|length| *length <= limits.head_bytes)
                {
                    unread.extend_from_slice(&bytes[length..]);
                    return Some(read_head(request, &bytes[..length], is_new));
                }
                unread.extend_from_slice(bytes);
                bytes.is_empty().then_some(Arrival::Closed)
            });
            match read {
                Poll::Ready(Ok(Some(arrival))) => return Poll::Ready(arrival),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Arrival::Closed),
                Poll::Pending => {
                    ready!(self.deadline.poll(cx));
                    // Where nothing at all has come, there is nothing to answer.
                    return Poll::Ready(if self.unread.is_empty() && !self.down.is_new {
                        Arrival::Idle
                    } else {
                        Arrival::Refused(Refusal::TimedOut)
                    });
                }
            }
            if !std::mem::replace(&mut search.begun, true) {
                self.deadline.set(limits.head);
            }
            if let Some(arrival) = self.take_head(&mut search.end, limits.head_bytes) {
                return Poll::Ready(arrival);
            }
        }
    }

    /// Takes a head from what was read, if it is complete.
    fn take_head(&mut self, end: &mut HeadEnd, bytes_max: usize) -> Option<Arrival> {
        // Empty lines before a request are none of it (RFC 9112 section 2.2).
        let empty = self.unread.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if empty > 0 {
            self.unread.drain(..empty);
            *end = HeadEnd::new();
        }
        let length = end.find(&self.unread);
        if length.unwrap_or(self.unread.len()) > bytes_max {
            let in_target = !self.unread.contains(&b'\n');
            return Some(Arrival::Refused(Refusal::TooLarge { in_target }));
        }
        let length = length?;
        let arrival = read_head(&mut self.request, &self.unread[..length], &mut self.down.is_new);
        self.take_unread(length);
        Some(arrival)
    }

    /// Ends the connection after a complete reply.
    pub(super) async fn linger(&mut self) {
        self.down.wire.linger(&mut self.deadline, LINGER, LINGER).await;
    }

    /// Sends what is not on its way. Whether all is.
    pub(super) async fn flush(&mut self, patience: Duration) -> bool {
        self.deadline.set(patience);
        poll_fn(|cx| match self.down.poll_drain(cx) {
            Poll::Ready(drained) => Poll::Ready(drained.is_ok()),
            Poll::Pending => self.deadline.poll(cx).map(|()| false),
        })
        .await
    }

    /// Ends a connection on which no reply is under way: TLS says so to the client.
    pub(super) async fn close(&mut self) {
        self.deadline.set(LINGER);
        poll_fn(|cx| match self.down.wire.poll_shutdown(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.deadline.poll(cx),
        })
        .await;
    }
}

/// Reads a head. A connection whose first bytes are no head is perhaps one of another protocol.
fn read_head(request: &mut RequestHead, head: &[u8], is_new: &mut bool) -> Arrival {
    let was_new = std::mem::replace(is_new, false);
    match request.read(head) {
        Ok(()) => Arrival::Head,
        Err(fault) => {
            let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let is_http = line.windows(5).any(|part| part == b"HTTP/");
            let is_other_protocol = was_new && fault == Fault::RequestLine && !is_http;
            Arrival::Refused(Refusal::Malformed { fault, is_other_protocol })
        }
    }
}
