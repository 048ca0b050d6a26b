//! A client: the heads of its current request, and replies of our own.

use super::deadline::Deadline;
use super::downstream::Downstream;
use super::exchange::Sent;
use super::fields::delimit;
use super::proxy::{Answer, Limits};
use crate::h1::{Body, ReplyHead, RequestHead};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Memory that each buffer of a connection keeps between two requests. Bytes.
const KEPT: usize = 4 << 10;

/// A client's side and the heads of its current request, whose memory is used again.
#[derive(Debug)]
pub(super) struct Client<D> {
    pub(super) down: D,
    /// Bytes that were read and not used yet.
    pub(super) unread: Vec<u8>,
    pub(super) request: RequestHead,
    pub(super) reply: ReplyHead,
    /// A head that is being written.
    pub(super) out: Vec<u8>,
    pub(super) deadline: Deadline,
    /// The protocols that the current request asks for (RFC 9110 section 7.8).
    pub(super) protocols: Option<Vec<u8>>,
    /// The client takes trailers of replies, and may need to know that the server does too (RFC 9110 section 6.5.1).
    pub(super) takes_trailers: bool,
    /// The parts of the current reply that were sent.
    pub(super) sent: Sent,
    /// A head of a reply that was put aside.
    aside: Option<Box<ReplyHead>>,
}

impl<D: Downstream> Client<D> {
    pub(super) fn new(down: D, limits: &Limits) -> Self {
        Self {
            down,
            unread: Vec::new(),
            request: RequestHead::new(),
            reply: ReplyHead::new(),
            out: Vec::new(),
            deadline: Deadline::new(limits.head),
            protocols: None,
            takes_trailers: false,
            sent: Sent::default(),
            aside: None,
        }
    }

    /// Begins with another request.
    pub(super) fn begin(&mut self) {
        self.sent = Sent::default();
        self.unread.clear();
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
        self.down.watch(cx, &mut self.unread, half_close)
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
        if D::IS_FRAMED {
            // The end of a stream does not end its connection.
        } else if !goes_on {
            let _ = fields.append(b"Connection", b"close");
        } else if self.request.is_http10() {
            let _ = fields.append(b"Connection", b"keep-alive");
        }
        self.down.begin(&self.reply, &mut self.out);
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
            let Self { down, out, deadline, .. } = self;
            if !std::mem::replace(&mut begun, true) {
                down.send(cx, out, body)?;
                down.finish(cx, Some(&[]))?;
            }
            let before = down.left();
            let drained = down.poll_drain(cx);
            if drained.is_pending() {
                if down.left() < before {
                    deadline.set(patience);
                }
                return deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
            }
            drained
        })
        .await
    }
}
