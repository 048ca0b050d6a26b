//! A client's connection: its heads, and replies of our own.

use super::clock::Clock;
use super::deadline::Deadline;
use super::proxy::{Answer, ClientInfo, Limits};
use super::wire::Wire;
use crate::h1::{Fault, HeadEnd, ReplyHead, RequestHead};
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
    pub(super) info: ClientInfo,
    /// The protocols that the current request asks for (RFC 9110 section 7.8).
    pub(super) protocols: Option<Vec<u8>>,
    /// The client has ended its side, and still waits for its reply.
    pub(super) is_half_closed: bool,
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
    /// A head was not complete in time.
    TimedOut,
    /// A head is larger than it may be.
    TooLarge,
    /// The bytes are no head.
    Malformed(Fault),
}

/// The search for a head.
#[derive(Debug)]
struct Search {
    end: HeadEnd,
    /// The deadline for the head runs.
    begun: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    pub(super) fn new(io: T, info: ClientInfo, limits: Limits) -> Self {
        Self {
            wire: Wire::new(io),
            unread: Vec::new(),
            request: RequestHead::new(),
            reply: ReplyHead::new(),
            out: Vec::new(),
            deadline: Deadline::new(limits.head),
            info,
            protocols: None,
            is_half_closed: false,
        }
    }

    /// Waits for the head of the next request, the `first` of the connection or a later one.
    pub(super) async fn next(&mut self, limits: Limits, first: bool) -> Arrival {
        let mut search = Search { end: HeadEnd::new(), begun: first || !self.unread.is_empty() };
        self.deadline.set(if search.begun { limits.head } else { limits.keepalive });
        if !self.unread.is_empty()
            && let Some(arrival) = self.take_head(&mut search.end, limits.head_bytes)
        {
            return arrival;
        }
        if self.is_half_closed {
            return Arrival::Closed;
        }
        poll_fn(|cx| self.poll_next(cx, &mut search, limits)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, search: &mut Search, limits: Limits) -> Poll<Arrival> {
        loop {
            let Self { wire, unread, request, .. } = self;
            let read = wire.poll_read(cx, |_, _, bytes| {
                // A head that comes whole is not copied here.
                if unread.is_empty()
                    && !matches!(bytes.first(), Some(b'\r' | b'\n'))
                    && let Some(length) = search.end.find(bytes).filter(|length| *length <= limits.head_bytes)
                {
                    unread.extend_from_slice(&bytes[length..]);
                    return Some(match request.read(&bytes[..length]) {
                        Ok(()) => Arrival::Head,
                        Err(fault) => Arrival::Malformed(fault),
                    });
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
                    return Poll::Ready(if self.unread.is_empty() {
                        Arrival::Idle
                    } else {
                        Arrival::TimedOut
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
            return Some(Arrival::TooLarge);
        }
        let length = length?;
        let read = self.request.read(&self.unread[..length]);
        self.take_unread(length);
        Some(match read {
            Ok(()) => Arrival::Head,
            Err(fault) => Arrival::Malformed(fault),
        })
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

    /// Gives back the memory of large heads when a request has ended.
    pub(super) fn rest(&mut self) {
        self.protocols = None;
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
        answer: &Answer,
        goes_on: bool,
        patience: Duration,
    ) -> io::Result<()> {
        let (out, status) = (&mut self.out, answer.status);
        out.clear();
        out.extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", reason(status)).as_bytes());
        for (name, value) in &answer.fields {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let has_contents = !matches!(status, 100..=199 | 204 | 304);
        if has_contents {
            out.extend_from_slice(format!("Content-Length: {}\r\n", answer.body.len()).as_bytes());
        }
        if !goes_on {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if self.request.is_http10() {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        out.extend_from_slice(b"\r\n");
        let body = if has_contents && self.request.method() != b"HEAD" { &answer.body[..] } else { &[] };
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

/// The words for a status.
const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}
