//! Data links: forwarded requests to members, as HTTP/2 (RFC 9113) over persistent connections.
//!
//! A member opens a connection to another member at the first request to it, and further ones when all streams of the open
//! connections are in use. Each stream has its own flow-control window, and the window of the connection is the sum of
//! them. So a client that reads slowly blocks only its own stream. A connection is closed if the peer does not answer a
//! ping in time. A member that has left, or was declared down, gets no further requests. Requests in flight to it continue
//! as long as it answers pings, because the failure detector may be wrong.

use crate::config::LinksConfig;
use crate::control_links::next_link_id;
use crate::counters::{GaugeGuard, increment};
use crate::handshaker::{Handshaker, LinkError};
use crate::hello::LinkKind;
use crate::member::Member;
use crate::name::Name;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

#[cfg(test)]
pub(crate) mod tests;

/// Error of a request's or reply's body.
pub type BodyError = Box<dyn Error + Send + Sync>;
type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// Why a forwarded request got no reply.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// There is no member of this name. The caller's view of membership is outdated.
    #[error("{0} is not a member")]
    NotMember(Name),
    /// All streams of all connections to the member are in use.
    #[error("too many requests in flight to {0}")]
    Full(Name),
    /// The member could not be connected to.
    #[error("cannot connect to {name}: {source}")]
    Connect {
        /// The member.
        name: Name,
        /// The cause, shared by all requests that waited for this connection.
        #[source]
        source: Arc<LinkError>,
    },
    /// The request's target is invalid. The caller is at fault.
    #[error("invalid request target")]
    Target,
    /// The request's head is too large. Sending it would make the peer close the connection.
    #[error("request head of {bytes} bytes exceeds the limit of {max} bytes")]
    Head {
        /// Size as HTTP/2 counts it.
        bytes: usize,
        /// [`LinksConfig::head_bytes_max`].
        max: u32,
    },
    /// The connection or the stream ended before the reply.
    #[error("connection to {name} lost before the reply: {source}")]
    Lost {
        /// The member.
        name: Name,
        /// Whether the member may have processed the request.
        may_be_processed: bool,
        /// The cause.
        #[source]
        source: hyper::Error,
    },
}

impl ForwardError {
    /// Whether the member may have processed the request. If so, only an idempotent request (RFC 9110, section 9.2.2) may be
    /// sent to another node.
    pub const fn may_be_processed(&self) -> bool {
        match self {
            Self::Lost { may_be_processed, .. } => *may_be_processed,
            Self::NotMember(_) | Self::Full(_) | Self::Connect { .. } | Self::Target | Self::Head { .. } => {
                false
            }
        }
    }
}

/// Data links to all members.
#[derive(Debug)]
pub(crate) struct DataLinks {
    config: LinksConfig,
    handshaker: Arc<Handshaker>,
    pools: Mutex<BTreeMap<Name, Arc<ConnectionPool>>>,
}

/// Connections to one process of a member.
#[derive(Debug)]
struct ConnectionPool {
    member: Member,
    connections: Mutex<Vec<Connection>>,
    /// Locked while a connection is opened. Holds time and cause of the last failure.
    connecting: tokio::sync::Mutex<Option<(Instant, Arc<LinkError>)>>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    sender: SendRequest<RequestBody>,
    streams_free: Arc<Semaphore>,
    /// Sending closes the connection at once; dropping closes it after its last stream.
    abort: oneshot::Sender<()>,
}

/// The right to one stream of a connection.
#[derive(Debug)]
struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _stream: GaugeGuard,
}

/// Body of a forwarded request's reply. Dropping it resets the stream.
#[derive(Debug)]
pub struct ReplyBody {
    incoming: Incoming,
    /// Released after the last byte.
    permit: Option<StreamPermit>,
}

impl DataLinks {
    pub(crate) fn new(config: LinksConfig, handshaker: Arc<Handshaker>) -> Self {
        Self { config, handshaker, pools: Mutex::default() }
    }

    /// Adds a member, or replaces it by a newer process of the same name.
    pub(crate) fn add(&self, member: Member) {
        let name = member.name.clone();
        let pool = ConnectionPool {
            member,
            connections: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        };
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Arc::new(pool));
    }

    /// Removes a member. Requests in flight to it continue.
    pub(crate) fn remove(&self, member: &Member) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.get(&member.name).is_none_or(|pool| pool.member != *member) {
            return;
        }
        let Some(pool) = pools.remove(&member.name) else { return };
        drop(pools);
        pool.connections().clear();
    }

    #[cfg(test)]
    pub(crate) fn handshaker(&self) -> &Arc<Handshaker> {
        &self.handshaker
    }

    /// Closes all connections at once.
    pub(crate) fn abort_all(&self) {
        let pools = std::mem::take(&mut *self.pools.lock().unwrap_or_else(PoisonError::into_inner));
        for pool in pools.into_values() {
            pool.abort();
        }
    }

    /// Forwards a request to a member and waits for the head of the reply. There is no time limit, because pings detect a
    /// dead connection. Dropping the future resets the stream.
    pub(crate) async fn forward<B>(
        &self,
        to: &Name,
        request: Request<B>,
    ) -> Result<Response<ReplyBody>, ForwardError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let counters = &self.handshaker.counters;
        let result = self.try_forward(to, request).await;
        increment(match &result {
            Ok(_) => &counters.requests_out,
            Err(error) if !error.may_be_processed() => &counters.requests_unsent,
            Err(_) => &counters.requests_lost,
        });
        result
    }

    async fn try_forward<B>(
        &self,
        to: &Name,
        request: Request<B>,
    ) -> Result<Response<ReplyBody>, ForwardError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let pool = self.pools.lock().unwrap_or_else(PoisonError::into_inner).get(to).map(Arc::clone);
        let pool = pool.ok_or_else(|| ForwardError::NotMember(to.clone()))?;
        let mut request = to_http2(request, to).ok_or(ForwardError::Target)?;
        let (bytes, max) = (head_bytes(&request), self.config.head_bytes_max);
        if bytes > max as usize {
            return Err(ForwardError::Head { bytes, max });
        }
        // A pooled connection may be closed already. A request that it has not sent is retried once on another connection.
        let mut may_retry = true;
        loop {
            let (mut sender, permit) = self.acquire(&pool).await?;
            match sender.try_send_request(request).await {
                Ok(reply) => {
                    return Ok(reply.map(|incoming| ReplyBody { incoming, permit: Some(permit) }));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if may_retry => (request, may_retry) = (unsent, false),
                    unsent => {
                        let source = error.into_error();
                        let may_be_processed = unsent.is_none() && !is_refusal(&source);
                        return Err(ForwardError::Lost { name: to.clone(), may_be_processed, source });
                    }
                },
            }
        }
    }

    /// Acquires a stream to the member. Opens a connection if all streams are in use.
    async fn acquire(
        &self,
        pool: &Arc<ConnectionPool>,
    ) -> Result<(SendRequest<RequestBody>, StreamPermit), ForwardError> {
        let started = Instant::now();
        if let Some(stream) = self.try_acquire(pool) {
            return Ok(stream);
        }
        let mut connecting = pool.connecting.lock().await;
        // Another request may have opened a connection meanwhile, or failed to.
        if let Some(stream) = self.try_acquire(pool) {
            return Ok(stream);
        }
        let name = &pool.member.name;
        if pool.connections().len() >= self.config.connections_max {
            return Err(ForwardError::Full(name.clone()));
        }
        if let Some((_, source)) = connecting.as_ref().filter(|(failed, _)| *failed >= started) {
            return Err(ForwardError::Connect { name: name.clone(), source: Arc::clone(source) });
        }
        match self.connect(pool).await {
            Ok(()) => *connecting = None,
            Err(source) => {
                tracing::debug!(%name, error = %source, "data link: connect failed");
                let source = Arc::new(source);
                *connecting = Some((Instant::now(), Arc::clone(&source)));
                return Err(ForwardError::Connect { name: name.clone(), source });
            }
        }
        self.try_acquire(pool).ok_or_else(|| ForwardError::Full(name.clone()))
    }

    /// Acquires a stream of an open connection.
    fn try_acquire(&self, pool: &ConnectionPool) -> Option<(SendRequest<RequestBody>, StreamPermit)> {
        let mut connections = pool.connections();
        connections.retain(|connection| !connection.sender.is_closed());
        connections.iter().find_map(|connection| {
            let permit = Arc::clone(&connection.streams_free).try_acquire_owned().ok()?;
            let stream = GaugeGuard::new(&self.handshaker.counters, |counters| &counters.streams);
            Some((connection.sender.clone(), StreamPermit { _permit: permit, _stream: stream }))
        })
    }

    /// Opens a connection and adds it to the pool.
    async fn connect(&self, pool: &Arc<ConnectionPool>) -> Result<(), LinkError> {
        let stream = self.handshaker.connect(&pool.member, LinkKind::Data).await?;
        let config = &self.config;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(config.window_bytes)
            .initial_connection_window_size(config.connection_window_bytes())
            .initial_max_send_streams(config.streams_max as usize)
            .max_header_list_size(config.head_bytes_max)
            .max_send_buf_size(config.window_bytes as usize)
            .keep_alive_interval(config.ping)
            .keep_alive_timeout(config.ping_timeout)
            .keep_alive_while_idle(true);
        let secret = stream.secret().clone();
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| LinkError::Io(std::io::Error::other(error)))?;
        let (abort, aborted) = oneshot::channel();
        let link = GaugeGuard::new(&self.handshaker.counters, |counters| &counters.data_links);
        let streams_free = Arc::new(Semaphore::new(config.streams_max as usize));
        let id = next_link_id();
        pool.connections().push(Connection { id, sender, streams_free, abort });
        let (name, weak_pool, keyring) =
            (pool.member.name.clone(), Arc::downgrade(pool), Arc::clone(&self.handshaker.keyring));
        tokio::spawn(async move {
            let _link = link;
            tokio::pin!(connection);
            let result = tokio::select! {
                result = &mut connection => result,
                // A dropped sender gives an error, which disables this branch.
                Ok(()) = aborted => return,
                () = keyring.replaced(&secret) => {
                    // The connection gets no further requests and closes after the last one in flight.
                    if let Some(pool) = weak_pool.upgrade() {
                        pool.connections().retain(|connection| connection.id != id);
                    }
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!(%name, %error, "data link: failed");
            }
        });
        Ok(())
    }
}

impl ConnectionPool {
    /// Closes the connections at once.
    fn abort(&self) {
        for connection in std::mem::take(&mut *self.connections()) {
            // An error means that the connection has closed already.
            let _ = connection.abort.send(());
        }
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a request to HTTP/2, with scheme, authority and path. `None` if the target is invalid.
fn to_http2<B>(request: Request<B>, to: &Name) -> Option<Request<RequestBody>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    let (mut parts, body) = request.into_parts();
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    if uri.authority.is_none() {
        let host = parts.headers.get(header::HOST).map(HeaderValue::as_bytes);
        let host = host.and_then(|host| Authority::try_from(host).ok());
        // A missing or invalid `Host` is not an error between members. The serving node judges the request.
        let fallback = || Authority::try_from(to.as_str()).unwrap_or(Authority::from_static("larder"));
        uri.authority = Some(host.unwrap_or_else(fallback));
    }
    uri.scheme.get_or_insert(Scheme::HTTP);
    uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    parts.uri = Uri::from_parts(uri).ok()?;
    parts.version = Version::HTTP_2;
    Some(Request::from_parts(parts, body.map_err(Into::into).boxed_unsync()))
}

/// Size of a request's head as HTTP/2 counts it: name, value and 32 bytes for each field (RFC 9113, section 6.5.2).
fn head_bytes<B>(request: &Request<B>) -> usize {
    let field = |name: usize, value: usize| name + value + 32;
    let uri = request.uri();
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let path = uri.path_and_query().map_or(1, |path| path.as_str().len());
    let pseudo = field(":method".len(), request.method().as_str().len())
        + field(":scheme".len(), "https".len())
        + field(":authority".len(), authority)
        + field(":path".len(), path);
    request
        .headers()
        .iter()
        .fold(pseudo, |sum, (name, value)| sum + field(name.as_str().len(), value.as_bytes().len()))
}

/// Whether the peer states that it has not processed the request: the stream was refused, or it lies beyond the last stream
/// of a connection that is closing (RFC 9113, section 8.7).
fn is_refusal(error: &hyper::Error) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_some_and(|error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        let closing = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (refused || closing)
    })
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || self.incoming.is_end_stream() {
            self.permit = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
