//! Requests to HTTP/2 servers (RFC 9113). The requests of a thread share connections.

use super::clock::Clock;
use super::fields::write_trailers;
use crate::h1::{FieldName, ReplyHead, RequestHead};
use bytes::Bytes;
use foldhash::fast::RandomState;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;

/// Flow-control window of one reply, in bytes.
const STREAM_WINDOW: u32 = 64 << 10;
/// Flow-control window of all replies on a connection, in bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Bytes of request bodies that h2 buffers per stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Largest size of the head of a reply, in bytes.
const HEAD_BYTES_MAX: u32 = 256 << 10;
/// Largest number of concurrent requests on a connection, if the server allows as many.
const STREAMS_MAX: usize = 100;

/// The connections of a thread to HTTP/2 servers.
#[derive(Debug)]
pub(super) struct Http2Pool<K> {
    by_server: RefCell<HashMap<K, Rc<ServerConnections>, RandomState>>,
}

/// The connections to one server.
#[derive(Debug, Default)]
struct ServerConnections {
    connections: RefCell<Vec<Http2Connection>>,
    /// Locked while a connection is opened, so that concurrent requests share it.
    open_lock: tokio::sync::Mutex<()>,
}

/// An open connection.
#[derive(Debug)]
struct Http2Connection {
    sender: SendRequest<Bytes>,
    state: Rc<ConnectionState>,
}

/// The state of a connection that its streams share.
#[derive(Debug)]
struct ConnectionState {
    /// Number of streams in use.
    streams: Cell<usize>,
    is_closed: Cell<bool>,
    /// Time at which a stream was last in use.
    last_used: Cell<Instant>,
}

/// A reserved stream on a connection. The stream is released when this value is dropped.
#[derive(Debug)]
pub(super) struct StreamReservation {
    sender: SendRequest<Bytes>,
    state: Rc<ConnectionState>,
    /// The connection has served other requests.
    pub(super) reused: bool,
}

impl Drop for StreamReservation {
    fn drop(&mut self) {
        self.state.streams.set(self.state.streams.get().saturating_sub(1));
        self.state.last_used.set(Clock::now());
    }
}

impl<K> Default for Http2Pool<K> {
    fn default() -> Self {
        Self { by_server: RefCell::default() }
    }
}

impl<K: Clone + Eq + Hash> Http2Pool<K> {
    /// Reserves a stream for a request, on a connection with a free stream or on a new one that `connect`
    /// opens.
    pub(super) async fn reserve<S>(
        &self,
        server: &K,
        connect: impl Future<Output = io::Result<S>>,
    ) -> io::Result<StreamReservation>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let server = self.by_server.borrow_mut().entry(server.clone()).or_default().clone();
        if let Some(reservation) = server.try_reserve(true) {
            return Ok(reservation);
        }
        let _open_lock = server.open_lock.lock().await;
        if let Some(reservation) = server.try_reserve(true) {
            return Ok(reservation);
        }
        let (sender, connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .max_header_list_size(HEAD_BYTES_MAX)
            .enable_push(false)
            .handshake(connect.await?)
            .await
            .map_err(to_io_error)?;
        let state = Rc::new(ConnectionState {
            streams: Cell::new(0),
            is_closed: Cell::new(false),
            last_used: Cell::new(Clock::now()),
        });
        let closed_state = state.clone();
        spawn_local(async move {
            // The streams get the error of the connection from h2.
            let _ = connection.await;
            closed_state.is_closed.set(true);
        });
        server.connections.borrow_mut().push(Http2Connection { sender, state });
        server.try_reserve(false).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }

    /// Closes connections that have served no request for `idle`.
    pub(super) fn sweep(&self, now: Instant, idle: Duration) {
        let mut by_server = self.by_server.borrow_mut();
        for server in by_server.values() {
            server.connections.borrow_mut().retain(|Http2Connection { state, .. }| {
                let is_young = now.saturating_duration_since(state.last_used.get()) < idle;
                !state.is_closed.get() && (state.streams.get() > 0 || is_young)
            });
        }
        by_server.retain(|_, server| Rc::strong_count(server) > 1 || !server.connections.borrow().is_empty());
    }
}

impl ServerConnections {
    /// Reserves a stream on a connection with a free stream.
    fn try_reserve(&self, reused: bool) -> Option<StreamReservation> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.state.is_closed.get());
        let has_room = |connection: &&Http2Connection| {
            let max = connection.sender.current_max_send_streams().min(STREAMS_MAX);
            connection.state.streams.get() < max.max(1)
        };
        let Http2Connection { sender, state } = connections.iter().find(has_room)?;
        state.streams.set(state.streams.get() + 1);
        Some(StreamReservation { sender: sender.clone(), state: state.clone(), reused })
    }
}

/// A stream to a server, with one request and its reply.
#[derive(Debug)]
pub(super) struct ServerStream {
    /// The request until it is sent, and whether it has a body.
    request: Option<(Request<()>, bool)>,
    reservation: StreamReservation,
    body: Option<SendStream<Bytes>>,
    /// Bytes of the request body that were not sent.
    pending: Bytes,
    /// The request body ends after `pending`.
    end_pending: bool,
    response: Option<ResponseFuture>,
    reply: Option<RecvStream>,
}

/// A part of a reply.
#[derive(Debug)]
pub(super) enum ReplyPart {
    /// The head of an interim or final reply.
    Head,
    /// A piece of the content.
    Data(Bytes),
    /// The end of the reply, with its trailer field lines.
    End(Vec<u8>),
}

impl ServerStream {
    /// Creates a stream for a request that has not been sent. Returns `None` if HTTP/2 cannot express the
    /// request.
    pub(super) fn new(
        reservation: StreamReservation,
        head: &RequestHead,
        is_secure: bool,
        takes_trailers: bool,
    ) -> Option<Self> {
        let mut request = to_http2(head, is_secure)?;
        if takes_trailers {
            request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        }
        let has_body = head.body() != crate::h1::Body::None;
        Some(Self {
            request: Some((request, has_body)),
            reservation,
            body: None,
            pending: Bytes::new(),
            end_pending: false,
            response: None,
            reply: None,
        })
    }

    /// Returns whether all bytes were sent.
    pub(super) fn is_drained(&self) -> bool {
        self.request.is_none() && self.pending.is_empty() && !self.end_pending
    }

    /// Takes a piece of the request body, and sends as much as possible.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, piece: &[u8], is_last: bool) -> io::Result<()> {
        if !piece.is_empty() {
            self.pending = if self.pending.is_empty() {
                Bytes::copy_from_slice(piece)
            } else {
                [&self.pending, piece].concat().into()
            };
        }
        self.end_pending |= is_last;
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends the pending bytes as far as the flow-control window of the server allows.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.request.is_some() {
            let ready = ready!(self.reservation.sender.poll_ready(cx));
            if let Some((request, has_body)) = self.request.take() {
                let sent = ready.and_then(|()| self.reservation.sender.send_request(request, !has_body));
                // Later requests do not use a connection that accepts no request.
                self.reservation.state.is_closed.set(sent.is_err());
                let (response, body) = sent.map_err(to_io_error)?;
                self.response = Some(response);
                self.body = has_body.then_some(body);
            }
        }
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        while !self.pending.is_empty() {
            body.reserve_capacity(self.pending.len());
            let room = match ready!(body.poll_capacity(cx)) {
                Some(room) => room.map_err(to_io_error)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
            let piece = self.pending.split_to(room.min(self.pending.len()));
            let is_last = self.end_pending && self.pending.is_empty();
            body.send_data(piece, is_last).map_err(to_io_error)?;
            self.end_pending &= !is_last;
        }
        if std::mem::take(&mut self.end_pending) {
            body.send_data(Bytes::new(), true).map_err(to_io_error)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the next part of the reply to a request with this method. A head is read into `head`.
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ReplyHead,
        method: &[u8],
    ) -> Poll<io::Result<ReplyPart>> {
        if let Some(response) = &mut self.response {
            match response.poll_informational(cx) {
                Poll::Ready(Some(Ok(interim))) => {
                    let read = read_head(head, interim.status().as_u16(), interim.headers(), false);
                    return Poll::Ready(read.map(|()| ReplyPart::Head));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(to_io_error(error))),
                Poll::Ready(None) | Poll::Pending => {}
            }
            let (parts, reply) = ready!(Pin::new(response).poll(cx)).map_err(to_io_error)?.into_parts();
            let status = parts.status.as_u16();
            let is_empty = reply.is_end_stream() && method != b"HEAD" && !matches!(status, 204 | 304);
            self.response = None;
            self.reply = Some(reply);
            return Poll::Ready(read_head(head, status, &parts.headers, is_empty).map(|()| ReplyPart::Head));
        }
        let Some(reply) = &mut self.reply else { return Poll::Pending };
        match ready!(reply.poll_data(cx)) {
            Some(data) => {
                let data = data.map_err(to_io_error)?;
                // The window is released immediately, because the exchange reads no more until the client has
                // this piece.
                let _ = reply.flow_control().release_capacity(data.len());
                Poll::Ready(Ok(ReplyPart::Data(data)))
            }
            None => {
                let trailers = ready!(reply.poll_trailers(cx)).map_err(to_io_error)?;
                let mut lines = Vec::new();
                for (name, value) in &trailers.unwrap_or_default() {
                    let line = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat();
                    write_trailers(&line, &mut lines);
                }
                Poll::Ready(Ok(ReplyPart::End(lines)))
            }
        }
    }
}

impl Drop for ServerStream {
    /// Resets the stream if the server has not replied completely, or still receives the request.
    fn drop(&mut self) {
        if let Some(body) = &mut self.body
            && (self.end_pending || !self.pending.is_empty() || self.response.is_some())
        {
            body.send_reset(Reason::CANCEL);
        }
    }
}

/// Converts a request to HTTP/2 (RFC 9113 section 8.3.1).
fn to_http2(head: &RequestHead, is_secure: bool) -> Option<Request<()>> {
    let host = head.fields.named(FieldName::Host).unwrap_or_default();
    let scheme: &[u8] = if is_secure { b"https://" } else { b"http://" };
    let target = if head.target() == b"*" { b"/" } else { head.target() };
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(head.method()).ok()?;
    *request.uri_mut() = if host.is_empty() {
        Uri::try_from(target).ok()?
    } else {
        Uri::try_from([scheme, host, target].concat()).ok()?
    };
    let fields = request.headers_mut();
    for field in head.fields.iter() {
        let is_hop_by_hop = matches!(
            field.kind,
            FieldName::Connection | FieldName::Host | FieldName::TransferEncoding | FieldName::Upgrade
        );
        if !is_hop_by_hop {
            let value = HeaderValue::from_bytes(field.value).ok()?;
            fields.append(HeaderName::from_bytes(field.name).ok()?, value);
        }
    }
    Some(request)
}

/// Reads the head of a reply. If `is_empty` is true, no content follows.
fn read_head(head: &mut ReplyHead, status: u16, fields: &HeaderMap, is_empty: bool) -> io::Result<()> {
    head.begin(status);
    for (name, value) in fields {
        // Fields that concern a connection make a message malformed (RFC 9113 section 8.2.2).
        let is_hop_by_hop =
            matches!(name.as_str(), "connection" | "keep-alive" | "transfer-encoding" | "upgrade");
        if is_hop_by_hop || head.fields.append(name.as_str().as_bytes(), value.as_bytes()).is_err() {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    head.end(is_empty).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Converts an error of a connection or a stream.
fn to_io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into());
    }
    let kind = if error.is_remote() { io::ErrorKind::ConnectionReset } else { io::ErrorKind::InvalidData };
    io::Error::new(kind, error)
}
