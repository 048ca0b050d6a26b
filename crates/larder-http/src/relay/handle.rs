//! The use that a proxy makes of a client's connection while it decides: it reads the request's body and sends interim replies.
//!
//! Only the task of the connection touches the socket. The proxy may give its ends to other threads:
//!
//! ```text
//! client --> Intake --piece--> RequestBody     a piece is read when the proxy waits for one, so that one is held at most
//! client <-- Intake <--heads-- InterimSender   up to INTERIM_MAX for a request; further ones are dropped
//! ```

use super::client::Client;
use super::downstream::Downstream;
use super::scratch;
use crate::h1::{Decoder, Fault, Piece, ReplyHead};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use std::cell::OnceCell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::ReadBuf;

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
struct Channel(Mutex<State>);

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

/// A [`ClientHandle`] and the connection's side of it.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) handle: ClientHandle,
    pub(super) reading: Reading,
}

/// The connection's side of a [`ClientHandle`].
#[derive(Debug)]
pub(super) struct Reading {
    decoder: Decoder,
    /// The client waits for 100 before it sends the body (RFC 9110 section 10.1.1).
    expects_continue: bool,
}

impl Intake {
    /// The intake of the client's current request.
    pub(super) fn new<D: Downstream>(client: &Client<D>) -> Self {
        let Client { down, request, protocols, .. } = client;
        let decoder = Decoder::new(down.body(request));
        let handle = ClientHandle {
            channel: OnceCell::new(),
            protocols: protocols.clone(),
            has_body: !decoder.is_ended(),
            length: decoder.left(),
            takes_interim: !request.is_http10(),
        };
        Self { handle, reading: Reading { decoder, expects_continue: request.expects_continue() } }
    }

    /// Whether the proxy has taken the body.
    pub(super) fn is_taken(&self) -> bool {
        self.handle.channel.get().is_some_and(|channel| channel.lock().is_read)
    }

    /// Takes what has come of a body that nobody reads any more, so that the next request can follow.
    pub(super) fn skip<D: Downstream>(&mut self, client: &mut Client<D>) {
        let has_reader = self.handle.channel.get().is_some_and(|channel| !channel.lock().is_left);
        if !has_reader {
            self.reading.skip(client);
        }
    }

    /// Whether the body has come to its end.
    pub(super) const fn is_ended(&self) -> bool {
        self.reading.decoder.is_ended()
    }
}

impl Reading {
    /// Sends the interim replies that wait.
    ///
    /// # Errors
    /// The client has left.
    pub(super) fn send_interim<D: Downstream>(
        &self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
        handle: &ClientHandle,
    ) -> io::Result<()> {
        let Some(channel) = handle.channel.get() else { return Ok(()) };
        if !client.down.is_drained()
            && let Poll::Ready(drained) = client.down.poll_drain(cx)
        {
            drained?;
        }
        if !client.down.is_drained() {
            // The client takes nothing: they wait within their limit.
            return Ok(());
        }
        let waiting = std::mem::take(&mut channel.lock().interim);
        for head in waiting {
            client.down.send_interim(cx, &head, &mut client.out)?;
        }
        match client.down.poll_drain(cx) {
            Poll::Ready(drained) => drained,
            Poll::Pending => Ok(()),
        }
    }

    fn skip<D: Downstream>(&mut self, client: &mut Client<D>) {
        if !client.unread.is_empty()
            && !self.decoder.is_ended()
            && let Ok((taken, _)) = decode(&mut self.decoder, &client.unread)
        {
            client.take_unread(taken);
        }
    }

    /// Reads a piece of the request's body if the proxy waits for one. Returns whether it does, so that the departure of the client is
    /// noticed here. `asks`: a client that waits for 100 is sent it.
    ///
    /// # Errors
    /// The client has left.
    pub(super) fn advance<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
        handle: &ClientHandle,
        asks: bool,
    ) -> io::Result<bool> {
        let Some(channel) = handle.channel.get() else { return Ok(false) };
        let is_wanted = {
            let mut state = channel.lock();
            state.engine = Some(cx.waker().clone());
            state.is_wanted
        };
        if !is_wanted || self.decoder.is_ended() {
            return Ok(false);
        }
        if std::mem::take(&mut self.expects_continue) && asks && client.unread.is_empty() {
            client.down.send_interim(cx, &ReplyHead::with_status(100), &mut client.out)?;
        }
        match self.read(cx, client) {
            Poll::Ready(Ok(piece)) => {
                let mut state = channel.lock();
                state.piece = piece;
                if self.decoder.is_ended() {
                    state.end.get_or_insert(Ok(()));
                }
                state.wake_reader();
            }
            Poll::Ready(Err(BodyFault::Gone)) => {
                channel.lock().end_with(Err(BodyFault::Gone));
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Poll::Ready(Err(fault)) => channel.lock().end_with(Err(fault)),
            Poll::Pending => {}
        }
        Ok(true)
    }

    /// Reads until there are contents, or the body has ended.
    fn read<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
    ) -> Poll<Result<Bytes, BodyFault>> {
        let decoder = &mut self.decoder;
        loop {
            if !client.unread.is_empty() {
                let bytes = std::mem::take(&mut client.unread);
                let decoded = decode(decoder, &bytes);
                client.unread = bytes;
                let (taken, piece) = decoded?;
                client.take_unread(taken);
                if !piece.is_empty() || decoder.is_ended() {
                    return Poll::Ready(Ok(piece));
                }
            }
            let Client { down, unread, .. } = &mut *client;
            let read = scratch::with(|buffer| {
                let mut buffer = ReadBuf::new(buffer);
                match down.poll_fill(cx, &mut buffer) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() && decoder.ends_by_close() => {
                        *decoder = Decoder::new(crate::h1::Body::None);
                        Poll::Ready(Ok(Bytes::new()))
                    }
                    Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                        let (taken, piece) = decode(decoder, buffer.filled())?;
                        unread.extend_from_slice(&buffer.filled()[taken..]);
                        Poll::Ready(Ok(piece))
                    }
                    Poll::Ready(_) => Poll::Ready(Err(BodyFault::Gone)),
                }
            });
            match read {
                Poll::Ready(Ok(piece)) if piece.is_empty() && !decoder.is_ended() => {}
                read => return read,
            }
        }
    }
}

/// The contents in `bytes`, and how many of these belong to the body.
fn decode(decoder: &mut Decoder, bytes: &[u8]) -> Result<(usize, Bytes), BodyFault> {
    let (mut taken, mut contents) = (0, BytesMut::new());
    while taken < bytes.len() && !decoder.is_ended() {
        let step = decoder.step(&bytes[taken..]).map_err(BodyFault::Malformed)?;
        if step.piece == Piece::Data {
            contents.extend_from_slice(&bytes[taken..taken + step.taken]);
        }
        taken += step.taken;
    }
    Ok((taken, contents.freeze()))
}
