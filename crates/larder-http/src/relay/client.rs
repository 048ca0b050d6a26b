//! A client: the heads of its current request, and the parts of the reply that it was sent.

use super::deadline::Deadline;
use super::downstream::Downstream;
use super::limits::Limits;
use crate::h1::{ReplyHead, RequestHead};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

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

/// The parts of a reply that the client was sent, perhaps of several servers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// The status, once the client was sent a head.
    pub(super) status: Option<u16>,
    /// Bytes of the body.
    pub(super) body_bytes: u64,
    /// The length that the head states, if the body has one.
    pub(super) length: Option<u64>,
    /// The end of the connection is that of the body.
    pub(super) ends_by_close: bool,
    /// The connection can serve another request.
    pub(super) goes_on: bool,
}

impl Sent {
    /// Bytes of the body that the client was sent, if another server can send the rest.
    pub(super) fn resumable(&self) -> Option<u64> {
        self.length.filter(|length| self.body_bytes < *length).map(|_| self.body_bytes)
    }
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

    /// Removes bytes that were used.
    pub(super) fn take_unread(&mut self, length: usize) {
        take(&mut self.unread, length);
    }
}

/// Removes the first `length` bytes of those that were read. Keeps no memory while there are none.
pub(super) fn take(unread: &mut Vec<u8>, length: usize) {
    if length == unread.len() {
        *unread = Vec::new();
    } else {
        unread.drain(..length);
    }
}
