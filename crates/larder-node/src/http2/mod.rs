//! HTTP/2 from clients with TLS (RFC 9113): a connection with many requests at a time, each of which is answered by itself.
//!
//! A request is given the form that it has in HTTP/1 before anything else looks at it, so that origins, programs and peers see no
//! difference ([`request`]); what could be read in two ways there is refused here. It counts until its reply is written
//! ([`delivery`]). Nothing of such a connection can be handed over.
//!
//! | | bound |
//! |---|---|
//! | requests of a connection at one time | [`STREAMS_MAX`]; each beside another takes the place of a connection ([`Limits::connections_max`]), waits while nine tenths of these are taken, and gets 503 after [`PLACE_PATIENCE`] |
//! | a request's header | [`Limits::head_bytes_max`] and [`Limits::headers_max`]; 431 beyond |
//! | what of a request's body nobody has read | [`STREAM_WINDOW`], of all requests of a connection [`CONNECTION_WINDOW`] |
//! | what is held of a reply that the client has no room for | [`SEND_BUFFER`] |
//! | a reply of which the client takes nothing, though it takes others | [`Limits::write_timeout`]; then that request ends, or the connection if all of the reply is with h2 |
//! | requests that the client ends before their end, or that are none | 500 and 33 a second; then it may ask no more, and if it goes on the connection ends |
//! | frames that carry nothing, with or without a request under way | [`larder_http::http2`]: 1,000 and 100 a second, and more for requests and bodies; then the connection ends |
//! | a connection without a request | [`Limits::head_timeout`] before the first, [`Limits::idle_timeout`] after it, whatever else it sends |

mod delivery;
mod request;

use crate::body::Body;
use crate::config::Limits;
use crate::connection::{Brought, LINGER_MAX, Shared, Socket};
use crate::http::cache_status::Outcome;
use crate::node::Node;
use crate::server::{Arrived, Phase, peer_of};
use crate::terms::Terms;
use delivery::{Paced, Place, Streams, Turn, UnderWay, pace_of_task};
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use socket2::SockRef;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Requests that one client may have under way on a connection.
const STREAMS_MAX: u32 = 128;
/// What a client may send of one request's body before anybody has read of it. Bytes.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same of all requests of a connection.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What h2 may hold of one reply. Bytes.
const SEND_BUFFER: usize = 64 << 10;
/// What the kernel may hold that it has not sent, so that a reply which has left is nearly at its client. Bytes.
const UNSENT_MAX: u32 = 128 << 10;
/// Time a request beside others waits for a place.
const PLACE_PATIENCE: Duration = Duration::from_secs(5);
/// Time a client has to see that it may ask no more, before a connection without a request ends.
const FAREWELL: Duration = Duration::from_secs(10);

impl Node {
    /// Serves a connection of HTTP/2 to its end.
    pub(crate) async fn serve_http2(
        self: &Arc<Self>,
        terms: &Terms,
        arrived: Arrived,
        phase: &mut watch::Receiver<Phase>,
    ) {
        let Arrived { stream, first, unsent, entered, head_by, .. } = arrived;
        self.counters.http2_connections.add(1);
        let limits = &terms.limits;
        // At worst all of it waits there, as with HTTP/1.
        let _ = SockRef::from(stream.tcp()).set_tcp_notsent_lowat(UNSENT_MAX);
        let Some(peer) = peer_of(&stream) else { return };
        let brought = Brought { entered, peer: Some(peer), frames: true, ..Brought::default() };
        let shared = Shared::new(Arc::clone(&self.counters), brought);
        let socket = Socket::new(stream, first, unsent, Arc::clone(&shared), limits).of_frames();
        let under_way = Arc::new(UnderWay::new());
        let (node, requests, streams) = (Arc::clone(self), Arc::clone(&shared), Arc::clone(&under_way));
        let headers_max = limits.headers_max;
        let service = service_fn(move |request: Request<Incoming>| {
            let (node, shared, turn) = (Arc::clone(&node), Arc::clone(&requests), streams.begin());
            async move { Ok::<_, Infallible>(node.serve_stream(shared, request, turn, headers_max).await) }
        });
        let (ends, patience) = (Arc::clone(&under_way), limits.write_timeout);
        let streams = Streams { shared: Arc::clone(&shared), under_way: ends, patience };
        let mut connection = pin!(builder(limits, streams).serve_connection(socket, service));
        let mut aborting = phase.clone();
        let first_by = head_by.unwrap_or_else(|| Instant::now() + limits.head_timeout);
        let ends_at = |left_at: Option<Instant>| {
            // Replies that TLS has taken are not at the client while it takes no bytes.
            let idle =
                under_way.idle_since().filter(|_| !shared.blocked.is_blocked()).unwrap_or_else(Instant::now);
            match left_at {
                _ if shared.lingers() => idle.max(left_at.unwrap_or(idle)) + LINGER_MAX,
                Some(left) => idle.max(left) + FAREWELL,
                None if under_way.is_unused() => first_by,
                None => idle + limits.idle_timeout,
            }
        };
        let mut left_at = None;
        loop {
            tokio::select! {
                // The connection last: a client that sends without end would not let the others have their turn.
                biased;
                _ = aborting.wait_for(|phase| *phase == Phase::Aborting) => return,
                _ = phase.wait_for(|phase| *phase != Phase::Serving), if left_at.is_none() => {}
                () = under_way.stuck() => return,
                () = under_way.overdone() => {
                    if left_at.is_some() {
                        self.counters.http2_floods.add(1);
                        return;
                    }
                }
                () = sleep_until(ends_at(left_at)) => {
                    // There may have been requests meanwhile.
                    if ends_at(left_at) > Instant::now() {
                        continue;
                    }
                    if left_at.is_some() || shared.lingers() {
                        return;
                    }
                    if under_way.is_unused() {
                        self.counters.head_timeouts.add(1);
                    } else {
                        self.counters.idle_timeouts.add(1);
                    }
                }
                // Errors are the client's, as with HTTP/1.
                _ = &mut connection => return,
            }
            left_at = Some(Instant::now());
            connection.as_mut().graceful_shutdown();
        }
    }

    async fn serve_stream(
        self: Arc<Self>,
        shared: Arc<Shared>,
        request: Request<Incoming>,
        mut turn: Turn,
        headers_max: usize,
    ) -> Response<Paced> {
        let begun = std::time::Instant::now();
        let pace = pace_of_task(&shared.blocked);
        let (mut parts, body) = request.into_parts();
        let head = parts.method == Method::HEAD;
        let place = turn.place(PLACE_PATIENCE, || self.place_beside()).await;
        let refused = if place.is_err() {
            self.counters.connections_refused.add(1);
            let mut reply = self.refused_stream(StatusCode::SERVICE_UNAVAILABLE, "connections-full");
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            Some(reply)
        } else {
            self.refuses(&mut parts, body.is_end_stream(), &mut turn, headers_max)
        };
        let reply = match refused {
            Some(reply) => {
                let line = self.access.line(&self.terms(), &shared, &parts, begun);
                line.into_iter().for_each(|mut line| line.answers(&reply));
                reply
            }
            None => self.handle(shared, Request::from_parts(parts, body)).await,
        };
        // Whoever is refused needs none.
        let place = place.unwrap_or(Place::Ending);
        reply.map(|body| Paced::new(if head { body.of_head() } else { body }, pace, turn, place))
    }

    /// Gives a request the form that it has in HTTP/1, or says why it is refused; `empty`: whether it has no body.
    fn refuses(
        &self,
        parts: &mut Parts,
        empty: bool,
        turn: &mut Turn,
        headers_max: usize,
    ) -> Option<Response<Body>> {
        if request::as_http1(parts, empty).is_none() {
            turn.refuse();
            Some(self.refused_stream(StatusCode::BAD_REQUEST, "request"))
        } else if parts.headers.len() > headers_max {
            turn.refuse();
            Some(self.refused_stream(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers"))
        } else if parts.headers.contains_key(header::EXPECT) && !empty {
            // Nobody would say 100, and the client may wait for it (RFC 9110 section 10.1.1).
            Some(self.refused_stream(StatusCode::EXPECTATION_FAILED, "expect"))
        } else {
            None
        }
    }

    /// A place for a request beside others, unless nearly all are taken: those are for connections.
    fn place_beside(&self) -> Option<Place> {
        if self.is_ending() {
            return Some(Place::Ending);
        }
        let kept = self.terms().limits.connections_max as usize / 10;
        let places = self.places();
        (places.available_permits() > kept).then(|| places.try_acquire_owned().ok())?.map(Place::Further)
    }

    fn refused_stream(&self, status: StatusCode, detail: &'static str) -> Response<Body> {
        self.counters.requests.add(1);
        self.plain(status, Outcome::Local(detail), "")
    }
}

fn builder(limits: &Limits, streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX));
    builder
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
