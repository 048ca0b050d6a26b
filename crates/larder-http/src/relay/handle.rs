//! The interface through which a proxy uses the connection of a client while it decides about a request. The
//! proxy can read the request body and send interim replies.
//!
//! Only the task of the connection accesses the socket. The proxy may move the ends of the channel to other
//! threads:
//!
//! ```text
//! client --> BodyIntake --piece--> RequestBody     at most one piece: it is read when the proxy waits for it
//! client <-- BodyIntake <--heads-- InterimSender   at most INTERIM_MAX per request; further ones are dropped
//! ```

use crate::h1::{Fault, ReplyHead};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::cell::OnceCell;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Largest number of interim replies that a proxy may send for one request. Further ones are dropped.
const INTERIM_MAX: usize = 32;
/// Largest total size of these interim replies, in bytes.
const INTERIM_BYTES_MAX: usize = 64 << 10;

/// The connection of a client, as a proxy may use it during its decision about a request.
#[derive(Debug)]
pub struct ClientHandle {
    channel: OnceCell<Arc<Channel>>,
    protocols: Option<Vec<u8>>,
    has_body: bool,
    length: Option<u64>,
    takes_interim: bool,
}

impl ClientHandle {
    /// Creates a handle. The client has asked for `protocols`. `length` is the declared length of the request
    /// body.
    pub(super) const fn new(
        protocols: Option<Vec<u8>>,
        (has_body, length): (bool, Option<u64>),
        takes_interim: bool,
    ) -> Self {
        Self { channel: OnceCell::new(), protocols, has_body, length, takes_interim }
    }

    /// Returns the protocols that the request asks for instead of HTTP (RFC 9110 section 7.8), if the proxy
    /// may switch.
    pub fn protocols(&self) -> Option<&[u8]> {
        self.protocols.as_deref()
    }

    /// Returns the request body. A proxy that takes the body must answer the request itself, or
    /// [return](Self::return_body) the content. Further calls return empty bodies.
    pub fn body(&self) -> RequestBody {
        if !self.has_body {
            return RequestBody { channel: None, left: Some(0) };
        }
        let channel = self.channel.get_or_init(Arc::default);
        let is_first = !std::mem::replace(&mut channel.lock().is_body_taken, true);
        RequestBody { channel: is_first.then(|| channel.clone()), left: self.length.filter(|_| is_first) }
    }

    /// Returns the complete content of a body that the proxy has read, so that the request can be sent to a server. It
    /// stays in memory until a server has replied, so that another server can be asked.
    pub fn return_body(&self, content: Vec<u8>) {
        if let Some(channel) = self.channel.get() {
            channel.lock().returned = Some(content);
        }
    }

    /// Returns the shared state, if the proxy has taken an end of the channel.
    pub(super) fn channel(&self) -> Option<&Channel> {
        self.channel.get().map(|channel| &**channel)
    }

    /// Returns the sender of interim replies, or `None` for an HTTP/1.0 client.
    pub fn interim(&self) -> Option<InterimSender> {
        self.takes_interim.then(|| InterimSender(self.channel.get_or_init(Arc::default).clone()))
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.get() {
            let mut state = channel.lock();
            state.end_body(Err(BodyFault::Gone));
            // The pending interim replies are not sent any more.
            (state.interim, state.connection_task, state.is_request_ended) = (Vec::new(), None, true);
        }
    }
}

/// Reason why a request body is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// The client has disconnected, or the request has ended.
    #[error("the client has left before the end of the body")]
    Gone,
    /// The body violates HTTP.
    #[error("the body is malformed: {0}")]
    Malformed(Fault),
}

/// The state that the connection and the proxy share.
#[derive(Debug, Default)]
pub(super) struct Channel(Mutex<ChannelState>);

#[derive(Debug, Default)]
struct ChannelState {
    /// The proxy has taken the body.
    is_body_taken: bool,
    /// The reader of the body was dropped.
    is_reader_gone: bool,
    /// The content that the proxy has returned.
    returned: Option<Vec<u8>>,
    /// The reader waits for a piece.
    is_reader_waiting: bool,
    /// The piece that the reader has not taken.
    piece: Bytes,
    /// The end of the body, once it is known.
    end: Option<Result<(), BodyFault>>,
    reader: Option<Waker>,
    interim: Vec<ReplyHead>,
    /// Number and total size in bytes of the accepted interim replies, sent or pending.
    interim_count: usize,
    interim_bytes: usize,
    /// The request has ended.
    is_request_ended: bool,
    /// Waker of the task of the connection.
    connection_task: Option<Waker>,
}

impl ChannelState {
    /// Ends the body, unless it has ended already.
    fn end_body(&mut self, end: Result<(), BodyFault>) {
        self.end.get_or_insert(end);
        self.wake_reader();
    }

    fn wake_reader(&mut self) {
        self.is_reader_waiting = false;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn wake_connection_task(&mut self) {
        if let Some(connection_task) = self.connection_task.take() {
            connection_task.wake();
        }
    }
}

impl Channel {
    /// Returns whether the proxy has taken the body.
    pub(super) fn is_body_taken(&self) -> bool {
        self.lock().is_body_taken
    }

    /// Takes the content that the proxy has returned.
    pub(super) fn take_returned(&self) -> Option<Vec<u8>> {
        self.lock().returned.take()
    }

    /// Returns whether the reader of the body was dropped.
    pub(super) fn is_reader_gone(&self) -> bool {
        self.lock().is_reader_gone
    }

    /// Returns whether the reader waits for a piece. The task of the connection is woken when the reader
    /// starts to wait.
    pub(super) fn is_reader_waiting(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.connection_task = Some(cx.waker().clone());
        state.is_reader_waiting
    }

    /// Passes a piece of the body to the reader.
    pub(super) fn push_piece(&self, piece: Bytes, is_last: bool) {
        let mut state = self.lock();
        state.piece = piece;
        if is_last {
            state.end.get_or_insert(Ok(()));
        }
        state.wake_reader();
    }

    /// Ends an incomplete body.
    pub(super) fn fail(&self, fault: BodyFault) {
        self.lock().end_body(Err(fault));
    }

    /// Takes the pending interim replies.
    pub(super) fn take_interim(&self) -> Vec<ReplyHead> {
        std::mem::take(&mut self.lock().interim)
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sender of interim replies. It has no effect after the final reply has started.
#[derive(Clone, Debug)]
pub struct InterimSender(Arc<Channel>);

impl InterimSender {
    /// Sends the head of an interim reply (RFC 9110 section 15.2) when the task of the connection runs next.
    /// Drops the head if a limit is exceeded.
    pub fn send(&self, head: ReplyHead) {
        let mut state = self.0.lock();
        let bytes = state.interim_bytes + head.fields.text().len();
        if !state.is_request_ended && state.interim_count < INTERIM_MAX && bytes <= INTERIM_BYTES_MAX {
            state.interim_count += 1;
            state.interim_bytes = bytes;
            state.interim.push(head);
            state.wake_connection_task();
        }
    }
}

/// The body of a request, which is read as it arrives.
#[derive(Debug)]
pub struct RequestBody {
    channel: Option<Arc<Channel>>,
    /// Bytes that have not been read, if the request declares a length.
    left: Option<u64>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let Self { channel, left } = &mut *self;
        let Some(channel) = channel else { return Poll::Ready(None) };
        let mut state = channel.lock();
        let piece = std::mem::take(&mut state.piece);
        if !piece.is_empty() {
            if let Some(left) = left {
                *left = left.saturating_sub(piece.len() as u64);
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(fault)) => Poll::Ready(Some(Err(fault))),
            None => {
                state.is_reader_waiting = true;
                state.reader = Some(cx.waker().clone());
                state.wake_connection_task();
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
            || self.channel.as_ref().is_none_or(|channel| {
                let state = channel.lock();
                state.piece.is_empty() && state.end == Some(Ok(()))
            })
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            Some(left) => SizeHint::with_exact(left),
            None if self.channel.is_none() => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            let mut state = channel.lock();
            (state.is_reader_waiting, state.reader, state.piece) = (false, None, Bytes::new());
            state.is_reader_gone = true;
        }
    }
}
