//! Forwarding requests to members: HTTP/2 (RFC 9113) over connections that stay.
//!
//! A member has a connection of its own to each it forwards to, made when first needed; further ones when the streams of
//! the others are used up. Many requests share one, each with credit of its own, and the connection has credit for all of
//! them together: a client that takes nothing holds up its own stream and no other. A connection whose other side has
//! vanished ends when a ping is not answered in time. A member that has gone, or is taken for gone, is asked for nothing
//! more; what is under way with it goes on while it answers pings, since whoever says that it is gone may be wrong.

use crate::config::LinksConfig;
use crate::connect::{Ends, LinkError};
use crate::control::link_id;
use crate::counters::{Counters, Held, rise};
use crate::hello::Kind;
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
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

#[cfg(test)]
pub(crate) mod tests;

/// What a body may fail with.
pub type BodyError = Box<dyn Error + Send + Sync>;
type Outgoing = UnsyncBoxBody<Bytes, BodyError>;

/// Whether a request that failed may have been worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was not, and may be sent elsewhere whatever it is.
    Unsent,
    /// It may have been: only one that may be repeated (RFC 9110, section 9.2.2) is sent elsewhere.
    Maybe,
}

/// Why there is no reply to a forwarded request.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// No such member. The caller's view is old.
    #[error("{0} is no member")]
    NotMember(Name),
    /// All streams of all connections to the member are used.
    #[error("too many requests to {0}")]
    Full(Name),
    /// There is no connection to the member.
    #[error("no connection to {name}: {source}")]
    Connect {
        /// The member.
        name: Name,
        /// What went wrong. The same for all who waited for this connection.
        #[source]
        source: Arc<LinkError>,
    },
    /// The request cannot be sent as it is: its target is none. The caller's fault.
    #[error("the request has no sound target")]
    Target,
    /// The request's head is larger than members take from one another: it would cost them their connection.
    #[error("a request head of {bytes} bytes, members take {max}")]
    Head {
        /// As HTTP/2 counts it.
        bytes: usize,
        /// [`LinksConfig::head_bytes_max`].
        max: u32,
    },
    /// The connection or the stream ended before there was a reply.
    #[error("{name} gave no reply: {source}")]
    Lost {
        /// The member.
        name: Name,
        /// Whether it may have been worked on.
        sent: Sent,
        /// What went wrong.
        #[source]
        source: hyper::Error,
    },
}

impl ForwardError {
    /// Whether the request may have been worked on.
    pub const fn sent(&self) -> Sent {
        match self {
            Self::Lost { sent, .. } => *sent,
            Self::NotMember(_) | Self::Full(_) | Self::Connect { .. } | Self::Target | Self::Head { .. } => {
                Sent::Unsent
            }
        }
    }
}

/// Data connections to members.
#[derive(Debug)]
pub(crate) struct Links {
    config: LinksConfig,
    ends: Arc<Ends>,
    ways: Mutex<BTreeMap<Name, Arc<Way>>>,
}

/// The way to one life of a member.
#[derive(Debug)]
struct Way {
    member: Member,
    connections: Mutex<Vec<Connection>>,
    /// Held by the one that makes a connection; inside, when that last failed and why.
    making: tokio::sync::Mutex<Option<(Instant, Arc<LinkError>)>>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    sender: SendRequest<Outgoing>,
    places: Arc<Semaphore>,
    /// Dropped: the connection ends with its last stream. Sent: it ends now.
    cut: oneshot::Sender<()>,
}

type Gauge = fn(&Counters) -> &AtomicU64;

/// A stream of a connection, taken.
#[derive(Debug)]
struct Place {
    _permit: OwnedSemaphorePermit,
    _stream: Held<Gauge>,
}

/// The body of a forwarded request's reply. Dropping it ends the stream.
#[derive(Debug)]
pub struct ReplyBody {
    incoming: Incoming,
    /// Until the last byte.
    place: Option<Place>,
}

impl Links {
    pub(crate) fn new(config: LinksConfig, ends: Arc<Ends>) -> Self {
        Self { config, ends, ways: Mutex::default() }
    }

    /// A member has come, or a later life of one.
    pub(crate) fn joined(&self, member: Member) {
        let name = member.name.clone();
        let way = Way { member, connections: Mutex::default(), making: tokio::sync::Mutex::default() };
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Arc::new(way));
    }

    /// A member has gone, or is taken for gone.
    pub(crate) fn left(&self, member: &Member) {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if ways.get(&member.name).is_none_or(|way| way.member != *member) {
            return;
        }
        let Some(way) = ways.remove(&member.name) else { return };
        drop(ways);
        way.connections().clear();
    }

    #[cfg(test)]
    pub(crate) fn ends(&self) -> &Arc<Ends> {
        &self.ends
    }

    /// Cuts all.
    pub(crate) fn end(&self) {
        let ways = std::mem::take(&mut *self.ways.lock().unwrap_or_else(PoisonError::into_inner));
        for way in ways.into_values() {
            way.cut();
        }
    }

    /// Forwards a request to a member and waits for its reply's head, without a limit on time: a connection that is dead
    /// is noticed by its pings. Dropping the future ends the stream.
    pub(crate) async fn forward<B>(
        &self,
        to: &Name,
        request: Request<B>,
    ) -> Result<Response<ReplyBody>, ForwardError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let counters = &self.ends.counters;
        let result = self.try_forward(to, request).await;
        rise(match &result {
            Ok(_) => &counters.requests_out,
            Err(error) if error.sent() == Sent::Unsent => &counters.requests_unsent,
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
        let way = self.ways.lock().unwrap_or_else(PoisonError::into_inner).get(to).map(Arc::clone);
        let way = way.ok_or_else(|| ForwardError::NotMember(to.clone()))?;
        let mut request = outgoing(request, to).ok_or(ForwardError::Target)?;
        let (bytes, max) = (head_bytes(&request), self.config.head_bytes_max);
        if bytes > max as usize {
            return Err(ForwardError::Head { bytes, max });
        }
        // A kept connection may prove to have ended; a request that it has not taken goes on a new one, once.
        let mut again = true;
        loop {
            let (mut sender, place) = self.place(&way).await?;
            match sender.try_send_request(request).await {
                Ok(reply) => {
                    return Ok(reply.map(|incoming| ReplyBody { incoming, place: Some(place) }));
                }
                Err(mut error) => match error.take_message() {
                    Some(back) if again => (request, again) = (back, false),
                    back => {
                        let source = error.into_error();
                        let sent =
                            if back.is_some() || is_refusal(&source) { Sent::Unsent } else { Sent::Maybe };
                        return Err(ForwardError::Lost { name: to.clone(), sent, source });
                    }
                },
            }
        }
    }

    /// A stream of a connection to the member, which is made if need be.
    async fn place(&self, way: &Arc<Way>) -> Result<(SendRequest<Outgoing>, Place), ForwardError> {
        let asked = Instant::now();
        if let Some(place) = self.take(way) {
            return Ok(place);
        }
        let mut making = way.making.lock().await;
        // Others may have made one meanwhile, or tried.
        if let Some(place) = self.take(way) {
            return Ok(place);
        }
        let name = &way.member.name;
        if way.connections().len() >= self.config.connections_max {
            return Err(ForwardError::Full(name.clone()));
        }
        if let Some((_, source)) = making.as_ref().filter(|(failed, _)| *failed >= asked) {
            return Err(ForwardError::Connect { name: name.clone(), source: Arc::clone(source) });
        }
        match self.connect(way).await {
            Ok(()) => *making = None,
            Err(source) => {
                tracing::debug!(%name, error = %source, "no data connection");
                let source = Arc::new(source);
                *making = Some((Instant::now(), Arc::clone(&source)));
                return Err(ForwardError::Connect { name: name.clone(), source });
            }
        }
        self.take(way).ok_or_else(|| ForwardError::Full(name.clone()))
    }

    fn take(&self, way: &Way) -> Option<(SendRequest<Outgoing>, Place)> {
        let mut connections = way.connections();
        connections.retain(|connection| !connection.sender.is_closed());
        connections.iter().find_map(|connection| {
            let permit = Arc::clone(&connection.places).try_acquire_owned().ok()?;
            let stream = Held::new(&self.ends.counters, (|counters| &counters.streams) as Gauge);
            Some((connection.sender.clone(), Place { _permit: permit, _stream: stream }))
        })
    }

    async fn connect(&self, way: &Arc<Way>) -> Result<(), LinkError> {
        let stream = self.ends.connect(&way.member, Kind::Data).await?;
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
        let (cut, to_cut) = oneshot::channel();
        let link = Held::new(&self.ends.counters, (|counters| &counters.data_links) as Gauge);
        let places = Arc::new(Semaphore::new(config.streams_max as usize));
        let id = link_id();
        way.connections().push(Connection { id, sender, places, cut });
        let (name, of, keyring) =
            (way.member.name.clone(), Arc::downgrade(way), Arc::clone(&self.ends.keyring));
        tokio::spawn(async move {
            let _link = link;
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                // Dropped, it says nothing.
                Ok(()) = to_cut => return,
                () = keyring.replaced(&secret) => {
                    // It takes no further requests, and ends with the last one that is under way.
                    if let Some(way) = of.upgrade() {
                        way.connections().retain(|connection| connection.id != id);
                    }
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%name, %error, "a data connection broke");
            }
        });
        Ok(())
    }
}

impl Way {
    fn cut(&self) {
        for connection in std::mem::take(&mut *self.connections()) {
            // It may have ended already.
            let _ = connection.cut.send(());
        }
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request as HTTP/2 wants it: its target whole. `None` if there is none.
fn outgoing<B>(request: Request<B>, to: &Name) -> Option<Request<Outgoing>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    let (mut parts, body) = request.into_parts();
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    if uri.authority.is_none() {
        let host = parts.headers.get(header::HOST).map(HeaderValue::as_bytes);
        let host = host.and_then(|host| Authority::try_from(host).ok());
        // What a client has left out or misspelt is not for the way between members to mend.
        let name = || Authority::try_from(to.as_str()).unwrap_or(Authority::from_static("larder"));
        uri.authority = Some(host.unwrap_or_else(name));
    }
    uri.scheme.get_or_insert(Scheme::HTTP);
    uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    parts.uri = Uri::from_parts(uri).ok()?;
    parts.version = Version::HTTP_2;
    Some(Request::from_parts(parts, body.map_err(Into::into).boxed_unsync()))
}

/// Size of a request's head as HTTP/2 counts it: 32 bytes for each field more than name and value (RFC 9113, section 6.5.2).
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

/// Whether the other side says that it has not worked on the request: a refused stream, or one beyond the last that a
/// closing connection takes (RFC 9113, section 8.7).
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
            self.place = None;
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
