//! A client's connection: its heads, and replies of our own.

use super::deadline::Deadline;
use super::proxy::{Answer, Peer, Timeouts};
use super::wire::Wire;
use crate::h1::{Fault, HeadEnd, ReplyHead, RequestHead};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes that are read of a client that is told to go, so that the end of the connection does not overtake the answer.
const LINGER_BYTES: usize = 256 << 10;
/// How long that takes at most.
const LINGER: Duration = Duration::from_secs(2);

/// A client's connection and the heads of its current request, whose memory is used again.
#[derive(Debug)]
pub(super) struct Client<T> {
    pub(super) wire: Wire<T>,
    /// Bytes that were read and belong to no message yet.
    pub(super) unread: Vec<u8>,
    pub(super) request: RequestHead,
    pub(super) reply: ReplyHead,
    /// A head that is being written.
    pub(super) out: Vec<u8>,
    pub(super) deadline: Deadline,
    pub(super) peer: Peer,
}

/// What comes of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A head has come.
    Head,
    /// The client has left, or was silent for too long, before a head began.
    Nothing,
    /// A head has begun and was not complete in time, or its client has left.
    Late,
    /// A head is larger than it may be.
    TooLarge,
    /// It is no head.
    Malformed(Fault),
}

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    pub(super) fn new(io: T, peer: Peer, timeouts: Timeouts) -> Self {
        Self {
            wire: Wire::new(io),
            unread: Vec::new(),
            request: RequestHead::new(),
            reply: ReplyHead::new(),
            out: Vec::new(),
            deadline: Deadline::new(timeouts.head),
            peer,
        }
    }

    /// Waits for the head of the next request.
    pub(super) async fn next(&mut self, timeouts: Timeouts, bytes_max: usize) -> Arrival {
        let mut end = HeadEnd::new();
        if !self.unread.is_empty() {
            self.deadline.set(timeouts.head);
            if let Some(arrival) = self.take_head(&mut end, bytes_max) {
                return arrival;
            }
        }
        poll_fn(|cx| self.poll_next(cx, &mut end, timeouts, bytes_max)).await
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        end: &mut HeadEnd,
        timeouts: Timeouts,
        bytes_max: usize,
    ) -> Poll<Arrival> {
        loop {
            let had = self.unread.len();
            let Self { wire, unread, request, .. } = self;
            let read = wire.poll_read(cx, |_, _, bytes| {
                // A head that comes whole is not copied here.
                if unread.is_empty()
                    && !matches!(bytes.first(), Some(b'\r' | b'\n'))
                    && let Some(length) = end.find(bytes).filter(|length| *length <= bytes_max)
                {
                    unread.extend_from_slice(&bytes[length..]);
                    return Some(match request.read(&bytes[..length]) {
                        Ok(()) => Arrival::Head,
                        Err(fault) => Arrival::Malformed(fault),
                    });
                }
                unread.extend_from_slice(bytes);
                bytes.is_empty().then_some(if had == 0 { Arrival::Nothing } else { Arrival::Late })
            });
            match read {
                Poll::Ready(Ok(Some(arrival))) => return Poll::Ready(arrival),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Arrival::Nothing),
                Poll::Pending => {
                    ready!(self.deadline.poll(cx));
                    return Poll::Ready(if had == 0 { Arrival::Nothing } else { Arrival::Late });
                }
            }
            if had == 0 {
                self.deadline.set(timeouts.head);
            }
            if let Some(arrival) = self.take_head(end, bytes_max) {
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

    /// What a future comes to; nothing if the client leaves before. Of what the client sends meanwhile one read is kept.
    pub(super) async fn unless_it_leaves<R>(&mut self, future: impl Future<Output = R>) -> Option<R> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            if self.unread.is_empty() {
                let Self { wire, unread, .. } = self;
                match wire.poll_read(cx, |_, _, bytes| unread.extend_from_slice(bytes)) {
                    Poll::Ready(Ok(())) if !unread.is_empty() => {}
                    Poll::Ready(_) => return Poll::Ready(None),
                    Poll::Pending => {}
                }
            }
            Poll::Pending
        })
        .await
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
        let out = &mut self.out;
        out.clear();
        out.extend_from_slice(format!("HTTP/1.1 {} {}\r\n", answer.status, reason(answer.status)).as_bytes());
        for (name, value) in &answer.fields {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if !matches!(answer.status, 204 | 304) {
            out.extend_from_slice(format!("Content-Length: {}\r\n", answer.body.len()).as_bytes());
        }
        if !goes_on {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if self.request.is_http10() {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        out.extend_from_slice(b"\r\n");
        let body = if self.request.method() == b"HEAD" { &[][..] } else { &answer.body };
        self.deadline.set(patience);
        let mut begun = false;
        poll_fn(|cx| {
            let Self { wire, out, deadline, .. } = self;
            if !std::mem::replace(&mut begun, true) {
                wire.send(cx, out, body)?;
            }
            match wire.poll_drain(cx) {
                Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                ready => ready,
            }
        })
        .await
    }

    /// Ends the connection after an answer, when the client has had time to read it.
    pub(super) async fn linger(&mut self) {
        self.deadline.set(LINGER);
        let mut left = LINGER_BYTES;
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
                match wire.poll_read(cx, |_, _, bytes| bytes.len()) {
                    Poll::Ready(Ok(length)) if length > 0 && length < left => left -= length,
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return deadline.poll(cx),
                }
            }
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
