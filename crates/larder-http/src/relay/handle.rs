//! The use that a proxy makes of a client's connection while it decides: it reads the request's body and sends interim replies.
//!
//! Only the task of the connection touches the socket. The proxy may give its ends to other threads:
//!
//! ```text
//! client --> Intake --piece--> RequestBody     a piece is read when the proxy waits for one, so that one is held at most
//! client <-- Intake <--heads-- InterimSender   up to INTERIM_MAX for a request; further ones are dropped
//! ```

use crate::h1::{Fault, ReplyHead};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::cell::OnceCell;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Interim replies that a proxy may send for one request. Further ones are dropped.
const INTERIM_MAX: usize = 32;
/// Bytes of all of them.
const INTERIM_BYTES_MAX: usize = 64 << 10;

/// A client's connection, as the proxy may use it while it decides about a request.
#[derive(Debug)]
pub struct ClientHandle {
    channel: OnceCell<Arc<Channel>>,
    protocols: Option<Vec<u8>>,
    has_body: bool,
    length: Option<u64>,
    takes_interim: bool,
}

impl ClientHandle {
    /// A connection whose client has asked for `protocols`. The request's body has this `length`, if it has one and states that.
    pub(super) const fn new(
        protocols: Option<Vec<u8>>,
        (has_body, length): (bool, Option<u64>),
        takes_interim: bool,
    ) -> Self {
        Self { channel: OnceCell::new(), protocols, has_body, length, takes_interim }
    }

    /// The protocols that the request asks for in place of HTTP (RFC 9110 section 7.8), if it may have one.
    pub fn protocols(&self) -> Option<&[u8]> {
        self.protocols.as_deref()
    }

    /// The request's body. A proxy that takes it must answer the request itself. Further calls return bodies that have ended.
    pub fn body(&self) -> RequestBody {
        if !self.has_body {
            return RequestBody { channel: None, left: Some(0) };
        }
        let channel = self.channel.get_or_init(Arc::default);
        let is_first = !std::mem::replace(&mut channel.lock().is_read, true);
        RequestBody { channel: is_first.then(|| channel.clone()), left: self.length.filter(|_| is_first) }
    }

    /// The state that the ends share, if the proxy has taken one.
    pub(super) fn channel(&self) -> Option<&Channel> {
        self.channel.get().map(|channel| &**channel)
    }

    /// The way of interim replies to the client; `None` if it knows none (HTTP/1.0).
    pub fn interim(&self) -> Option<InterimSender> {
        self.takes_interim.then(|| InterimSender(self.channel.get_or_init(Arc::default).clone()))
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.get() {
            let mut state = channel.lock();
            state.end_with(Err(BodyFault::Gone));
            // Nobody sends them any more.
            (state.interim, state.engine, state.is_over) = (Vec::new(), None, true);
        }
    }
}

/// The reason why a request's body has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// The client has left, or the request has ended.
    #[error("the client has left before the end of the body")]
    Gone,
    /// It is no body of HTTP.
    #[error("the body is malformed: {0}")]
    Malformed(Fault),
}

/// The state that the ends share.
#[derive(Debug, Default)]
pub(super) struct Channel(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The body has a reader, or had one.
    is_read: bool,
    /// The reader has left.
    is_left: bool,
    /// The reader waits for a piece.
    is_wanted: bool,
    /// Contents that the reader has not taken.
    piece: Bytes,
    end: Option<Result<(), BodyFault>>,
    reader: Option<Waker>,
    interim: Vec<ReplyHead>,
    /// Interim replies that were given, sent or not, and their bytes.
    interim_count: usize,
    interim_bytes: usize,
    /// The request has ended.
    is_over: bool,
    /// The task of the connection.
    engine: Option<Waker>,
}

impl State {
    fn end_with(&mut self, end: Result<(), BodyFault>) {
        self.end.get_or_insert(end);
        self.wake_reader();
    }

    fn wake_reader(&mut self) {
        self.is_wanted = false;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn wake_engine(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.wake();
        }
    }
}

impl Channel {
    /// Whether the proxy has taken the body.
    pub(super) fn is_taken(&self) -> bool {
        self.lock().is_read
    }

    /// Whether the reader of the body, if there was one, has left.
    pub(super) fn is_left(&self) -> bool {
        self.lock().is_left
    }

    /// Whether the reader waits for a piece. The task of the connection is woken once it does.
    pub(super) fn is_wanted(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.engine = Some(cx.waker().clone());
        state.is_wanted
    }

    /// Gives the reader a piece of the body.
    pub(super) fn give(&self, piece: Bytes, is_last: bool) {
        let mut state = self.lock();
        state.piece = piece;
        if is_last {
            state.end.get_or_insert(Ok(()));
        }
        state.wake_reader();
    }

    /// Ends the body before its end.
    pub(super) fn fail(&self, fault: BodyFault) {
        self.lock().end_with(Err(fault));
    }

    /// The interim replies that wait.
    pub(super) fn take_interim(&self) -> Vec<ReplyHead> {
        std::mem::take(&mut self.lock().interim)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends interim replies to the client of a request, until the final reply begins.
#[derive(Clone, Debug)]
pub struct InterimSender(Arc<Channel>);

impl InterimSender {
    /// Sends the head of an interim reply (RFC 9110 section 15.2), as soon as the task of the connection runs.
    pub fn send(&self, head: ReplyHead) {
        let mut state = self.0.lock();
        let bytes = state.interim_bytes + head.fields.text().len();
        if !state.is_over && state.interim_count < INTERIM_MAX && bytes <= INTERIM_BYTES_MAX {
            state.interim_count += 1;
            state.interim_bytes = bytes;
            state.interim.push(head);
            state.wake_engine();
        }
    }
}

/// The body of a request, read as it comes.
#[derive(Debug)]
pub struct RequestBody {
    channel: Option<Arc<Channel>>,
    /// Bytes that are not read yet, if the request states a length.
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
                state.is_wanted = true;
                state.reader = Some(cx.waker().clone());
                state.wake_engine();
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
            (state.is_wanted, state.reader, state.piece) = (false, None, Bytes::new());
            state.is_left = true;
        }
    }
}
