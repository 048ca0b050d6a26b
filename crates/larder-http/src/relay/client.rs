//! A client's connection: its heads, and replies of our own.

use super::clock::Clock;
use super::deadline::Deadline;
use super::exchange::Sent;
use super::fields::delimit;
use super::proxy::{Answer, Limits, Proxy, Refusal};
use super::wire::Wire;
use super::worker::Place;
use crate::h1::{Body, Decoder, Fault, HeadEnd, ReplyHead, RequestHead};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Time for a client to read the last reply and to close.
const LINGER: Duration = Duration::from_secs(2);
/// Memory that each buffer of a connection keeps between two requests. Bytes.
const KEPT: usize = 4 << 10;

/// A client's connection and the heads of its current request, whose memory is used again.
#[derive(Debug)]
pub(super) struct Client<T> {
    pub(super) wire: Wire<T>,
    /// Bytes that were read and not used yet.
    pub(super) unread: Vec<u8>,
    pub(super) request: RequestHead,
    pub(super) reply: ReplyHead,
    /// A head that is being written.
    pub(super) out: Vec<u8>,
    pub(super) deadline: Deadline,
    /// The protocols that the current request asks for (RFC 9110 section 7.8).
    pub(super) protocols: Option<Vec<u8>>,
    /// The client has ended its side, and still waits for its reply.
    pub(super) is_half_closed: bool,
    /// The parts of the current reply that were sent.
    pub(super) sent: Sent,
    /// The first request has not come.
    is_new: bool,
    /// A head of a reply that was put aside.
    aside: Option<Box<ReplyHead>>,
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

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    pub(super) fn new(io: T, limits: &Limits) -> Self {
        Self {
            wire: Wire::new(io),
            unread: Vec::new(),
            request: RequestHead::new(),
            reply: ReplyHead::new(),
            out: Vec::new(),
            deadline: Deadline::new(limits.head),
            protocols: None,
            is_half_closed: false,
            sent: Sent::default(),
            is_new: true,
            aside: None,
        }
    }

    /// Waits for the head of the next request.
    pub(super) async fn next<P: Proxy>(&mut self, limits: &Limits, place: &Place<'_, P>) -> Arrival {
        self.sent = Sent::default();
        let mut search = Search { end: HeadEnd::new(), begun: self.is_new || !self.unread.is_empty() };
        self.deadline.set(if search.begun { limits.head } else { limits.keepalive });
        if !self.unread.is_empty()
            && let Some(arrival) = self.take_head(&mut search.end, limits.head_bytes)
        {
            return arrival;
        }
        if self.is_half_closed {
            return Arrival::Closed;
        }
        poll_fn(|cx| {
            let arrival = self.poll_next(cx, &mut search, limits);
            if arrival.is_pending() && self.unread.is_empty() && place.is_over(cx) {
                return Poll::Ready(Arrival::Idle);
            }
            arrival
        })
        .await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, search: &mut Search, limits: &Limits) -> Poll<Arrival> {
        loop {
            let Self { wire, unread, request, is_new, .. } = self;
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
                    return Poll::Ready(if self.unread.is_empty() && !self.is_new {
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
        let arrival = read_head(&mut self.request, &self.unread[..length], &mut self.is_new);
        self.take_unread(length);
        Some(arrival)
    }

    /// Waits for a future; `None` if the client leaves before. One read of what the client sends meanwhile is kept.
    pub(super) async fn unless_it_leaves<R>(
        &mut self,
        future: impl Future<Output = R>,
        half_close: bool,
    ) -> Option<R> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            if self.watch(cx, half_close).is_err() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    /// Notices that a client leaves that waits for its reply. One read of what it sends meanwhile is kept.
    pub(super) fn watch(&mut self, cx: &mut Context<'_>, half_close: bool) -> io::Result<()> {
        if !self.unread.is_empty() || self.is_half_closed {
            return Ok(());
        }
        let Self { wire, unread, .. } = self;
        match wire.poll_read(cx, |_, _, bytes| unread.extend_from_slice(bytes)) {
            Poll::Ready(Ok(())) if !self.unread.is_empty() => Ok(()),
            Poll::Ready(Ok(())) if half_close => {
                self.is_half_closed = true;
                Ok(())
            }
            Poll::Ready(Ok(())) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(()),
        }
    }

    /// Takes the body of a request that is not passed on, if all of it has come. Whether it has.
    pub(super) fn take_body(&mut self) -> bool {
        let mut decoder = Decoder::new(self.request.body());
        let mut taken = 0;
        while !decoder.is_ended() {
            match decoder.step(&self.unread[taken..]) {
                Ok(step) if step.taken > 0 => taken += step.taken,
                _ => return false,
            }
        }
        self.take_unread(taken);
        true
    }

    /// Puts the head of the current reply aside, or back.
    pub(super) fn swap_reply(&mut self) {
        std::mem::swap(&mut self.reply, self.aside.get_or_insert_default());
    }

    /// Gives back the memory of large heads when a request has ended.
    pub(super) fn rest(&mut self) {
        (self.protocols, self.aside) = (None, None);
        self.request.shrink(KEPT);
        self.reply.shrink(KEPT);
        if self.out.capacity() > KEPT {
            self.out = Vec::new();
        }
    }

    /// Removes bytes that were used. Keeps no memory while there are none.
    pub(super) fn take_unread(&mut self, length: usize) {
        if length == self.unread.len() {
            self.unread = Vec::new();
        } else {
            self.unread.drain(..length);
        }
    }

    /// Answers. The connection `goes_on` or is told to end.
    pub(super) async fn answer(
        &mut self,
        answer: Answer,
        goes_on: bool,
        patience: Duration,
    ) -> io::Result<()> {
        let Answer { head, body, .. } = answer;
        self.reply = head;
        let has_contents = !matches!(self.reply.status(), 100..=199 | 204 | 304);
        let length = has_contents.then_some(body.len() as u64);
        let fields = &mut self.reply.fields;
        // The limit of fields is far above what a proxy puts into an answer of its own.
        let _ = delimit(fields, Body::None, length);
        if !goes_on {
            let _ = fields.append(b"Connection", b"close");
        } else if self.request.is_http10() {
            let _ = fields.append(b"Connection", b"keep-alive");
        }
        self.out.clear();
        self.reply.write(&mut self.out);
        let body = if has_contents && self.request.method() != b"HEAD" { &body[..] } else { &[] };
        self.sent = Sent {
            status: Some(self.reply.status()),
            body_bytes: body.len() as u64,
            goes_on,
            ..Sent::default()
        };
        self.deadline.set(patience);
        let mut begun = false;
        poll_fn(|cx| {
            let Self { wire, out, deadline, .. } = self;
            if !std::mem::replace(&mut begun, true) {
                wire.send(cx, out, body)?;
            }
            let before = wire.left();
            let drained = wire.poll_drain(cx);
            if drained.is_pending() {
                if wire.left() < before {
                    deadline.set(patience);
                }
                return deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
            }
            drained
        })
        .await
    }

    /// Ends the connection after a complete reply. Closing at once would reset it if the client has sent more, and the client might
    /// lose the reply.
    pub(super) async fn linger(&mut self) {
        self.deadline.set(LINGER);
        let mut is_shut = false;
        poll_fn(|cx| {
            let Self { wire, deadline, .. } = self;
            if !is_shut {
                match wire.poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => is_shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            loop {
                match wire.poll_read(cx, |_, _, bytes| bytes.is_empty()) {
                    // A client that never stops sending is not waited for.
                    Poll::Ready(Ok(false)) if Clock::now() < deadline.at() => {}
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return deadline.poll(cx),
                }
            }
        })
        .await;
    }

    /// Ends a connection on which no reply is under way: TLS says so to the client.
    pub(super) async fn close(&mut self) {
        self.deadline.set(LINGER);
        poll_fn(|cx| match self.wire.poll_shutdown(cx) {
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
