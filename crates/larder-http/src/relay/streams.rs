//! Requests to servers that speak HTTP/2 (RFC 9113): streams of connections that the requests of a thread share.

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

/// Flow-control window of a reply, and of all replies of a connection. Bytes.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Bytes of a request's body that wait for the server.
const SEND_BUFFER: usize = 64 << 10;
/// Bytes of a reply's head.
const HEAD_MAX: u32 = 256 << 10;
/// Requests that share a connection at one time, if the server allows as many.
const STREAMS_MAX: usize = 100;

/// Connections of a thread to servers of HTTP/2.
#[derive(Debug)]
pub(super) struct Connections<K> {
    by_server: RefCell<HashMap<K, Rc<Server>, RandomState>>,
}

/// The connections to one server.
#[derive(Debug, Default)]
struct Server {
    connections: RefCell<Vec<Connection>>,
    /// Held while a connection is opened, so that requests that come together share it.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Bytes>,
    shared: Rc<Shared>,
}

/// The state of a connection that its streams share.
#[derive(Debug)]
struct Shared {
    streams: Cell<usize>,
    is_closed: Cell<bool>,
    used: Cell<Instant>,
}

/// The place of a stream on its connection.
#[derive(Debug)]
pub(super) struct Place {
    sender: SendRequest<Bytes>,
    shared: Rc<Shared>,
    /// The connection has served other requests.
    pub(super) reused: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.streams.set(self.shared.streams.get().saturating_sub(1));
        self.shared.used.set(Clock::now());
    }
}

impl<K> Default for Connections<K> {
    fn default() -> Self {
        Self { by_server: RefCell::default() }
    }
}

impl<K: Clone + Eq + Hash> Connections<K> {
    /// A place for a request: on a connection with room, or on one that `connect` opens.
    pub(super) async fn place<S>(
        &self,
        server: &K,
        connect: impl Future<Output = io::Result<S>>,
    ) -> io::Result<Place>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let server = self.by_server.borrow_mut().entry(server.clone()).or_default().clone();
        if let Some(place) = server.free(true) {
            return Ok(place);
        }
        let _opening = server.opening.lock().await;
        if let Some(place) = server.free(true) {
            return Ok(place);
        }
        let (sender, connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(HEAD_MAX)
            .enable_push(false)
            .handshake(connect.await?)
            .await
            .map_err(as_io)?;
        let shared = Rc::new(Shared {
            streams: Cell::new(0),
            is_closed: Cell::new(false),
            used: Cell::new(Clock::now()),
        });
        let ends = shared.clone();
        spawn_local(async move {
            // Its streams learn of its fault.
            let _ = connection.await;
            ends.is_closed.set(true);
        });
        server.connections.borrow_mut().push(Connection { sender, shared });
        server.free(false).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }

    /// Closes connections that have carried no request for so long.
    pub(super) fn sweep(&self, now: Instant, idle: Duration) {
        let mut by_server = self.by_server.borrow_mut();
        for server in by_server.values() {
            server.connections.borrow_mut().retain(|Connection { shared, .. }| {
                let is_young = now.saturating_duration_since(shared.used.get()) < idle;
                !shared.is_closed.get() && (shared.streams.get() > 0 || is_young)
            });
        }
        by_server.retain(|_, server| Rc::strong_count(server) > 1 || !server.connections.borrow().is_empty());
    }
}

impl Server {
    /// A place on a connection with room.
    fn free(&self, reused: bool) -> Option<Place> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.shared.is_closed.get());
        let has_room = |connection: &&Connection| {
            let max = connection.sender.current_max_send_streams().min(STREAMS_MAX);
            connection.shared.streams.get() < max.max(1)
        };
        let Connection { sender, shared } = connections.iter().find(has_room)?;
        shared.streams.set(shared.streams.get() + 1);
        Some(Place { sender: sender.clone(), shared: shared.clone(), reused })
    }
}

/// A request on its way, and its reply.
#[derive(Debug)]
pub(super) struct Stream {
    /// The request until it is sent, and whether it has a body.
    request: Option<(Request<()>, bool)>,
    place: Place,
    body: Option<SendStream<Bytes>>,
    /// Bytes of the body that were not sent, and whether its end comes behind them.
    pending: Bytes,
    ends: bool,
    response: Option<ResponseFuture>,
    reply: Option<RecvStream>,
}

/// The next part of a reply.
#[derive(Debug)]
pub(super) enum Part {
    /// The head of an interim reply, or of the final one.
    Head,
    /// A piece of the contents.
    Data(Bytes),
    /// The end, with lines of trailers.
    End(Vec<u8>),
}

impl Stream {
    /// A request that is to be sent. Fails if HTTP/2 cannot express it.
    pub(super) fn new(
        place: Place,
        head: &RequestHead,
        is_secure: bool,
        takes_trailers: bool,
    ) -> Option<Self> {
        let mut request = request(head, is_secure)?;
        if takes_trailers {
            request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        }
        let has_body = head.body() != crate::h1::Body::None;
        Some(Self {
            request: Some((request, has_body)),
            place,
            body: None,
            pending: Bytes::new(),
            ends: false,
            response: None,
            reply: None,
        })
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_drained(&self) -> bool {
        self.request.is_none() && self.pending.is_empty() && !self.ends
    }

    /// Takes a piece of the body.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, piece: &[u8], is_last: bool) -> io::Result<()> {
        if !piece.is_empty() {
            self.pending = if self.pending.is_empty() {
                Bytes::copy_from_slice(piece)
            } else {
                [&self.pending, piece].concat().into()
            };
        }
        self.ends |= is_last;
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends what waits, as far as the server's window goes.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.request.is_some() {
            let ready = ready!(self.place.sender.poll_ready(cx));
            if let Some((request, has_body)) = self.request.take() {
                let sent = ready.and_then(|()| self.place.sender.send_request(request, !has_body));
                // A connection that takes no request is left alone by later ones.
                self.place.shared.is_closed.set(sent.is_err());
                let (response, body) = sent.map_err(as_io)?;
                self.response = Some(response);
                self.body = has_body.then_some(body);
            }
        }
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        while !self.pending.is_empty() {
            body.reserve_capacity(self.pending.len());
            let room = match ready!(body.poll_capacity(cx)) {
                Some(room) => room.map_err(as_io)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
            let piece = self.pending.split_to(room.min(self.pending.len()));
            let is_last = self.ends && self.pending.is_empty();
            body.send_data(piece, is_last).map_err(as_io)?;
            self.ends &= !is_last;
        }
        if std::mem::take(&mut self.ends) {
            body.send_data(Bytes::new(), true).map_err(as_io)?;
        }
        Poll::Ready(Ok(()))
    }

    /// The next part of the reply to a request of this method. A head is read into `head`.
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ReplyHead,
        method: &[u8],
    ) -> Poll<io::Result<Part>> {
        if let Some(response) = &mut self.response {
            match response.poll_informational(cx) {
                Poll::Ready(Some(Ok(interim))) => {
                    let read = read_head(head, interim.status().as_u16(), interim.headers(), false);
                    return Poll::Ready(read.map(|()| Part::Head));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(as_io(error))),
                Poll::Ready(None) | Poll::Pending => {}
            }
            let (parts, reply) = ready!(Pin::new(response).poll(cx)).map_err(as_io)?.into_parts();
            let status = parts.status.as_u16();
            let is_empty = reply.is_end_stream() && method != b"HEAD" && !matches!(status, 204 | 304);
            self.response = None;
            self.reply = Some(reply);
            return Poll::Ready(read_head(head, status, &parts.headers, is_empty).map(|()| Part::Head));
        }
        let Some(reply) = &mut self.reply else { return Poll::Pending };
        match ready!(reply.poll_data(cx)) {
            Some(data) => {
                let data = data.map_err(as_io)?;
                // The exchange asks for no more until the client has this.
                let _ = reply.flow_control().release_capacity(data.len());
                Poll::Ready(Ok(Part::Data(data)))
            }
            None => {
                let trailers = ready!(reply.poll_trailers(cx)).map_err(as_io)?;
                let mut lines = Vec::new();
                for (name, value) in &trailers.unwrap_or_default() {
                    let line = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat();
                    write_trailers(&line, &mut lines);
                }
                Poll::Ready(Ok(Part::End(lines)))
            }
        }
    }
}

impl Drop for Stream {
    /// A server that has not replied in full, or that takes more of the request, is told that nobody waits.
    fn drop(&mut self) {
        if let Some(body) = &mut self.body
            && (self.ends || !self.pending.is_empty() || self.response.is_some())
        {
            body.send_reset(Reason::CANCEL);
        }
    }
}

/// The request in the form of HTTP/2 (RFC 9113 section 8.3.1).
fn request(head: &RequestHead, is_secure: bool) -> Option<Request<()>> {
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
        let is_of_hop = matches!(
            field.kind,
            FieldName::Connection | FieldName::Host | FieldName::TransferEncoding | FieldName::Upgrade
        );
        if !is_of_hop {
            let value = HeaderValue::from_bytes(field.value).ok()?;
            fields.append(HeaderName::from_bytes(field.name).ok()?, value);
        }
    }
    Some(request)
}

/// Reads the head of a reply. `is_empty`: no contents follow.
fn read_head(head: &mut ReplyHead, status: u16, fields: &HeaderMap, is_empty: bool) -> io::Result<()> {
    head.begin(status);
    for (name, value) in fields {
        // RFC 9113 section 8.2.2: these make a message malformed.
        let is_of_hop =
            matches!(name.as_str(), "connection" | "keep-alive" | "transfer-encoding" | "upgrade");
        if is_of_hop || head.fields.append(name.as_str().as_bytes(), value.as_bytes()).is_err() {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    head.end(is_empty).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// An error of a connection or a stream.
fn as_io(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into());
    }
    let kind = if error.is_remote() { io::ErrorKind::ConnectionReset } else { io::ErrorKind::InvalidData };
    io::Error::new(kind, error)
}
