//! The HTTP/1 connection of a client.

use super::buffered_stream::BufferedStream;
use super::client_session::{self, ClientSession, SentReply};
use super::client_side::ClientSide;
use super::clock::Clock;
use super::deadline::Deadline;
use super::fault::Refusal;
use super::limits::Limits;
use super::proxy::Proxy;
use super::splice::Transport;
use super::tunnel::{self, Direction};
use super::worker::Registration;
use crate::h1::{Body, Decoder, Fault, HeadEnd, ReplyHead, RequestHead};
use bytes::Bytes;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Longest time for a client to read the last reply and close the connection.
const LINGER: Duration = Duration::from_secs(2);

/// The HTTP/1 connection of a client.
#[derive(Debug)]
pub(super) struct Http1Connection<T> {
    pub(super) stream: BufferedStream<T>,
    /// The client has ended its side of the connection, and still waits for its reply.
    pub(super) is_half_closed: bool,
    /// The first request has not arrived.
    is_new: bool,
    /// The deadline of the first head, if it started before the engine took over the connection.
    first_head_by: Option<Instant>,
}

impl<T: Transport> Http1Connection<T> {
    /// Creates a connection. `unsent` is written to the client first.
    pub(super) const fn new(io: T, unsent: Vec<u8>, is_new: bool, first_head_by: Option<Instant>) -> Self {
        Self { stream: BufferedStream::with_unsent(io, unsent), is_half_closed: false, is_new, first_head_by }
    }
}

impl<T: Transport> ClientSide for Http1Connection<T> {
    const IS_FRAMED: bool = false;
    /// Pieces are never shared, because the socket accepts them at once.
    const SHARED_BYTES_MIN: usize = usize::MAX;

    fn body(&self, request: &RequestHead) -> Body {
        request.body()
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_fill(cx, buffer)
    }

    fn check_disconnect(
        &mut self,
        cx: &mut Context<'_>,
        unread: &mut Vec<u8>,
        half_close: bool,
    ) -> io::Result<()> {
        if !unread.is_empty() || self.is_half_closed {
            return Ok(());
        }
        match self.stream.poll_read(cx, |_, _, bytes| unread.extend_from_slice(bytes)) {
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

    fn can_continue(&self, request: &RequestHead, unread: &[u8]) -> bool {
        // Bytes after a request for another protocol may be no request.
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
        client_session::consume(unread, taken);
        true
    }

    fn send_interim(&mut self, cx: &mut Context<'_>, head: &ReplyHead, out: &mut Vec<u8>) -> io::Result<()> {
        self.begin_reply(head, out);
        self.stream.send(cx, out, &[])
    }

    fn begin_reply(&mut self, head: &ReplyHead, out: &mut Vec<u8>) {
        out.clear();
        head.write(out);
    }

    fn set_shared_buffer(&mut self, _: Option<Bytes>) {}

    fn send(&mut self, cx: &mut Context<'_>, before: &[u8], piece: &[u8]) -> io::Result<()> {
        self.stream.send(cx, before, piece)
    }

    fn send_shared(&mut self, cx: &mut Context<'_>, before: &[u8], piece: Bytes) -> io::Result<()> {
        self.stream.send_shared(cx, before, piece)
    }

    fn flush_pieces(&mut self, _: &mut Context<'_>, _: Option<&[u8]>) -> io::Result<()> {
        Ok(())
    }

    fn is_drained(&self) -> bool {
        self.stream.is_drained()
    }

    fn unsent_bytes(&self) -> usize {
        self.stream.unwritten_bytes()
    }

    fn progress(&self) -> (usize, u64) {
        // TLS buffers bytes itself.
        (self.stream.unwritten_bytes(), self.stream.io().sent().unwrap_or_default())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_drain(cx)
    }

    fn extra_time(&mut self, _: Duration) -> Option<Duration> {
        None
    }

    fn socket(&self) -> Option<&TcpStream> {
        self.stream.io().socket()
    }

    async fn run_tunnel<S>(
        &mut self,
        early: Vec<u8>,
        server: BufferedStream<S>,
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> (u64, Option<io::Error>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let up = Direction::new(early, self.is_half_closed);
        tunnel::run((&mut self.stream, server), up, deadline, timeout).await
    }
}

/// The result of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadOutcome {
    /// A head has arrived.
    Head,
    /// The client has closed the connection.
    Closed,
    /// The client was silent for too long before the start of a head.
    Idle,
    /// The worker is draining.
    Draining,
    /// The proxy takes over the connection.
    Detach,
    /// The received bytes are refused.
    Refused(Refusal),
}

/// The search for a head.
#[derive(Debug)]
struct HeadSearch {
    end: HeadEnd,
    /// The deadline of the head has started.
    deadline_started: bool,
}

impl<T: Transport> ClientSession<Http1Connection<T>> {
    /// Waits for the head of the next request.
    pub(super) async fn wait_for_head<P: Proxy>(
        &mut self,
        client_data: &P::Client,
        limits: &Limits,
        registration: &Registration<'_, P>,
    ) -> HeadOutcome {
        self.sent = SentReply::default();
        let mut search =
            HeadSearch { end: HeadEnd::new(), deadline_started: self.side.is_new || !self.unread.is_empty() };
        let head = match self.side.first_head_by.take() {
            Some(first_head_by) => first_head_by.saturating_duration_since(Clock::now()),
            None => limits.head,
        };
        self.deadline.set(if search.deadline_started { head } else { limits.keepalive });
        if !self.unread.is_empty()
            && let Some(outcome) = self.take_head(&mut search.end, limits.head_bytes)
        {
            return outcome;
        }
        if self.side.is_half_closed {
            return HeadOutcome::Closed;
        }
        poll_fn(|cx| {
            // Bytes may be left over from before the engine took over the connection.
            if !self.side.is_drained()
                && let Poll::Ready(Err(_)) = self.side.poll_drain(cx)
            {
                return Poll::Ready(HeadOutcome::Closed);
            }
            let outcome = self.poll_head(cx, &mut search, limits);
            if outcome.is_pending() && self.unread.is_empty() {
                let must_end = registration.must_end(cx);
                if !self.side.is_new && registration.proxy().poll_leave(client_data, must_end, cx).is_ready()
                {
                    return Poll::Ready(HeadOutcome::Detach);
                }
                if must_end {
                    return Poll::Ready(HeadOutcome::Draining);
                }
            }
            outcome
        })
        .await
    }

    /// Reads until a head is complete, or the connection cannot be used any more.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        search: &mut HeadSearch,
        limits: &Limits,
    ) -> Poll<HeadOutcome> {
        loop {
            let Self { side: Http1Connection { stream, is_new, .. }, unread, request, .. } = self;
            let read = stream.poll_read(cx, |_, _, bytes| {
                // A head that arrives in one piece is not copied.
                if unread.is_empty()
                    && !matches!(bytes.first(), Some(b'\r' | b'\n'))
                    && let Some(length) = search.end.find(bytes).filter(|length| *length <= limits.head_bytes)
                {
                    unread.extend_from_slice(&bytes[length..]);
                    return Some(read_head(request, &bytes[..length], is_new));
                }
                unread.extend_from_slice(bytes);
                bytes.is_empty().then_some(HeadOutcome::Closed)
            });
            match read {
                Poll::Ready(Ok(Some(outcome))) => return Poll::Ready(outcome),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(HeadOutcome::Closed),
                Poll::Pending => {
                    ready!(self.deadline.poll(cx));
                    // An idle connection gets no answer. A client that has started a head, or is new, gets
                    // 408.
                    return Poll::Ready(if self.unread.is_empty() && !self.side.is_new {
                        HeadOutcome::Idle
                    } else {
                        HeadOutcome::Refused(Refusal::TimedOut)
                    });
                }
            }
            if !std::mem::replace(&mut search.deadline_started, true) {
                self.deadline.set(limits.head);
            }
            if let Some(outcome) = self.take_head(&mut search.end, limits.head_bytes) {
                return Poll::Ready(outcome);
            }
        }
    }

    /// Takes a head from the bytes that were read, if it is complete.
    fn take_head(&mut self, end: &mut HeadEnd, bytes_max: usize) -> Option<HeadOutcome> {
        // Empty lines before a request are ignored (RFC 9112 section 2.2).
        let empty = self.unread.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if empty > 0 {
            self.unread.drain(..empty);
            *end = HeadEnd::new();
        }
        let length = end.find(&self.unread);
        if length.unwrap_or(self.unread.len()) > bytes_max {
            let in_target = !self.unread.contains(&b'\n');
            return Some(HeadOutcome::Refused(Refusal::TooLarge { in_target }));
        }
        let length = length?;
        let outcome = read_head(&mut self.request, &self.unread[..length], &mut self.side.is_new);
        self.consume_unread(length);
        Some(outcome)
    }

    /// Closes the connection after a complete reply. Gives the client time to read the reply.
    pub(super) async fn linger(&mut self) {
        self.side.stream.linger(&mut self.deadline, LINGER, LINGER).await;
    }

    /// Sends the bytes that have not been sent. Returns whether all were sent within `timeout`.
    pub(super) async fn flush(&mut self, timeout: Duration) -> bool {
        self.deadline.set(timeout);
        poll_fn(|cx| match self.side.poll_drain(cx) {
            Poll::Ready(drained) => Poll::Ready(drained.is_ok()),
            Poll::Pending => self.deadline.poll(cx).map(|()| false),
        })
        .await
    }

    /// Closes a connection without a pending reply. TLS announces the end to the client.
    pub(super) async fn close(&mut self) {
        self.deadline.set(LINGER);
        poll_fn(|cx| match self.side.stream.poll_shutdown(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.deadline.poll(cx),
        })
        .await;
    }
}

/// Reads a head. If the first head of a connection does not resemble HTTP, the connection may use another
/// protocol.
fn read_head(request: &mut RequestHead, head: &[u8], is_new: &mut bool) -> HeadOutcome {
    let was_new = std::mem::replace(is_new, false);
    match request.read(head) {
        Ok(()) => HeadOutcome::Head,
        Err(fault) => {
            let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let is_http = line.windows(5).any(|part| part == b"HTTP/");
            let is_other_protocol = was_new && fault == Fault::RequestLine && !is_http;
            HeadOutcome::Refused(Refusal::Malformed { fault, is_other_protocol })
        }
    }
}
