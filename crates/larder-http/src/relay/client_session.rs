//! The session of a client: the heads of the current request and reply, and the state of the reply.

use super::client_side::ClientSide;
use super::deadline::Deadline;
use super::limits::Limits;
use crate::h1::{ReplyHead, RequestHead};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

/// Memory that each buffer of a connection keeps between two requests, in bytes.
const KEPT_BYTES: usize = 4 << 10;
/// Capacity above which the buffer of unread bytes is shrunk, in bytes.
const LARGE_BYTES: usize = 64 << 10;

/// The client side of a connection or a stream, with the heads of the current request. The memory is reused
/// for the next request.
#[derive(Debug)]
pub(super) struct ClientSession<D> {
    pub(super) side: D,
    /// Bytes that were read and not yet used.
    pub(super) unread: Vec<u8>,
    pub(super) request: RequestHead,
    pub(super) reply: ReplyHead,
    /// The head that is being written.
    pub(super) out: Vec<u8>,
    pub(super) deadline: Deadline,
    /// The protocols that the current request asks for (RFC 9110 section 7.8).
    pub(super) protocols: Option<Vec<u8>>,
    /// The client accepts trailers in replies. Some servers must know that (RFC 9110 section 6.5.1).
    pub(super) takes_trailers: bool,
    /// The parts of the current reply that were sent.
    pub(super) sent: SentReply,
    /// The head of a reply that was put aside by [`Self::swap_reply`].
    saved_reply: Option<Box<ReplyHead>>,
}

/// The parts of the reply that the client was sent. Several servers may have contributed to the reply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentReply {
    /// The status, once a head was sent.
    pub(super) status: Option<u16>,
    /// Bytes of the body that were sent.
    pub(super) body_bytes: u64,
    /// The length that the sent head declares, if the reply has a body of known length.
    pub(super) length: Option<u64>,
    /// The body ends with the connection.
    pub(super) ends_by_close: bool,
    /// The connection can serve another request after this reply.
    pub(super) keep_alive: bool,
}

impl SentReply {
    /// Returns the bytes of the body that were sent, if another server can send the rest.
    pub(super) fn resumable(&self) -> Option<u64> {
        self.length.filter(|length| self.body_bytes < *length).map(|_| self.body_bytes)
    }
}

impl<D: ClientSide> ClientSession<D> {
    pub(super) fn new(side: D, limits: &Limits) -> Self {
        Self {
            side,
            unread: Vec::new(),
            request: RequestHead::new(),
            reply: ReplyHead::new(),
            out: Vec::new(),
            deadline: Deadline::new(limits.head),
            protocols: None,
            takes_trailers: false,
            sent: SentReply::default(),
            saved_reply: None,
        }
    }

    /// Starts the next request.
    pub(super) fn begin_request(&mut self) {
        self.sent = SentReply::default();
        self.unread.clear();
    }

    /// Waits for a future. Returns `None` if the client disconnects before. The bytes of at most one read
    /// from the client are kept.
    pub(super) async fn run_until_disconnect<R>(
        &mut self,
        future: impl Future<Output = R>,
        half_close: bool,
    ) -> Option<R> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            if self.check_disconnect(cx, half_close).is_err() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    /// Detects that a client disconnects while it waits for its reply. The bytes of at most one read from the
    /// client are kept.
    pub(super) fn check_disconnect(&mut self, cx: &mut Context<'_>, half_close: bool) -> io::Result<()> {
        self.side.check_disconnect(cx, &mut self.unread, half_close)
    }

    /// Exchanges the head of the current reply with the head that was put aside.
    pub(super) fn swap_reply(&mut self) {
        std::mem::swap(&mut self.reply, self.saved_reply.get_or_insert_default());
    }

    /// Releases the memory of large heads after a request.
    pub(super) fn shrink(&mut self) {
        (self.protocols, self.saved_reply) = (None, None);
        self.request.shrink(KEPT_BYTES);
        self.reply.shrink(KEPT_BYTES);
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
    }

    /// Puts back the content of a request body of which everything was read.
    pub(super) fn return_body(&mut self, mut content: Vec<u8>) {
        self.request.hold_body(content.len() as u64);
        content.append(&mut self.unread);
        self.unread = content;
    }

    /// Removes bytes that were used.
    pub(super) fn consume_unread(&mut self, length: usize) {
        consume(&mut self.unread, length);
    }
}

/// Removes the first `length` bytes of a buffer. Releases the memory if no bytes remain, or few of a large buffer.
pub(super) fn consume(unread: &mut Vec<u8>, length: usize) {
    if length == unread.len() {
        *unread = Vec::new();
    } else {
        unread.drain(..length);
        if unread.capacity() > LARGE_BYTES && unread.len() < unread.capacity() / 4 {
            unread.shrink_to_fit();
        }
    }
}
