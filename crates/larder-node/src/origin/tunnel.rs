//! Tunnels: WebSocket connections from clients to the origin (RFC 9110 section 7.8, RFC 6455).
//!
//! ```text
//! client --GET, Upgrade: websocket--> node --the same on a connection of its own--> origin
//! client <----------101-------------- node <-----------------101------------------- origin
//! client <==========bytes============ node ================bytes==================> origin
//! ```
//! A reply other than 101 is passed on, and the client's connection stays an HTTP connection. `websocket` is
//! the only protocol. With another one, such as h2c, a client could send requests past the node's rules. A node
//! that signs opens no tunnels.
//!
//! | limit | outcome |
//! |---|---|
//! | `tunnels_max` tunnels | 503 (`tunnels-full`) |
//! | `client_share` percent of them for one client | 429 (`client-share`) |
//! | `tunnel_idle_timeout` without a byte | both connections are closed |
//! | [`HALF_CLOSED_TIMEOUT`] without a byte after one side has ended | both connections are closed |
//! | the origin does not accept a piece within `body_timeout` | both connections are closed |
//! | the client does not accept a piece within `limits.write_timeout` | both connections are closed |
//! | `drain_timeout` after the node was told to shut down | both connections are closed |
//!
//! While its request is in progress, a tunnel uses a slot of the origin too. It counts as load of the node
//! until it ends.

use super::client::{Origin, OriginReply};
use super::client_key::ClientKey;
use super::error::OriginError;
use super::interim::InterimRelay;
use super::origin_slot::OriginCounters;
use super::serve;
use super::slots::{Slot, SlotRefusal};
use crate::access_log;
use crate::body::Body;
use crate::counters::{Counter, Counters};
use crate::http::cache_control::ListMembers;
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::http::fields;
use crate::lock::lock;
use crate::reply::Replies;
use crate::responder::Responder;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use larder_edge::ClientIo;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{Instant, sleep_until, timeout};

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
/// Time that the second side of a tunnel may be silent after the first side has ended.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes per read. A tunnel holds two such pieces.
const PIECE: usize = 8 << 10;

/// Returns whether a request asks for a WebSocket. The header must be unchanged.
pub(crate) fn is_tunnel_request(parts: &Parts) -> bool {
    let headers = &parts.headers;
    let options = headers.get_all(header::CONNECTION).iter();
    is_websocket(headers)
        && parts.method == Method::GET
        && parts.version == Version::HTTP_11
        && options
            .flat_map(|value| ListMembers(value.as_bytes()))
            .any(|option| option.eq_ignore_ascii_case(b"upgrade"))
        && !headers.contains_key(header::CONTENT_LENGTH)
        && !headers.contains_key(header::TRANSFER_ENCODING)
}

/// Returns whether `Upgrade` names WebSocket alone.
fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    let first =
        protocols.next().is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()));
    first && protocols.next().is_none()
}

/// A client's connection that may become a tunnel.
pub(crate) trait UpgradeTarget: Debug + Send + Sync {
    /// Returns the slot for the tunnel.
    fn tunnel_slot(&self) -> &TunnelSlot;
}

/// The connection of a request that asks for a tunnel, as an extension of the request.
#[derive(Clone, Debug)]
pub(crate) struct TunnelConnection(pub(crate) Arc<dyn UpgradeTarget>);

/// The slot of a connection for the tunnel that it may become.
#[derive(Debug, Default)]
pub(crate) struct TunnelSlot(Mutex<Option<Tunnel>>);

impl TunnelSlot {
    fn set(&self, tunnel: Tunnel) {
        *lock(&self.0) = Some(tunnel);
    }

    /// Passes on the access log line of the tunnel's request, which is written when the tunnel ends.
    pub(crate) fn set_log_line(&self, line: Option<Box<access_log::AccessLine>>) {
        if let Some(tunnel) = &mut *lock(&self.0) {
            tunnel.line = line;
        }
    }

    /// Takes the tunnel, once the client has its 101.
    pub(crate) fn take(&self) -> Option<Tunnel> {
        lock(&self.0).take()
    }
}

/// A tunnel whose connection to the origin is open.
#[derive(Debug)]
pub(crate) struct Tunnel {
    origin: TokioIo<Upgraded>,
    permit: TunnelPermit,
    idle_timeout: Duration,
    /// Time in which the origin must accept bytes.
    body_timeout: Duration,
    /// The access log line of the tunnel's request, if there is one.
    line: Option<Box<access_log::AccessLine>>,
}

/// A permit among the tunnels of a node.
#[derive(Debug)]
struct TunnelPermit {
    _slot: Slot,
    counts: Arc<OriginCounters>,
}

/// Counts a tunnel as load of the node until dropped.
struct TunnelLoad(Arc<Counters>);

impl TunnelLoad {
    fn new(counters: &Arc<Counters>) -> Self {
        counters.in_flight.increment();
        Self(Arc::clone(counters))
    }
}

impl Drop for TunnelLoad {
    fn drop(&mut self) {
        self.0.in_flight.decrement(1);
    }
}

impl Origin {
    /// Returns whether WebSocket requests open tunnels. Otherwise they are treated like any other request.
    pub(crate) fn opens_tunnels(&self) -> bool {
        let config = &self.settings().config;
        config.tunnels_max > 0 && config.sign.is_none()
    }

    /// Takes a permit for a tunnel, without waiting.
    async fn acquire_tunnel(&self, client: ClientKey) -> Result<TunnelPermit, OriginError> {
        match self.tunnels.take(client).await {
            Ok(slot) => Ok(TunnelPermit { _slot: slot, counts: Arc::clone(&self.counts) }),
            Err(SlotRefusal::Full) => {
                self.counts.tunnels_full.add(1);
                Err(OriginError::TunnelsFull)
            }
            Err(SlotRefusal::Share) => {
                self.counts.client_share.add(1);
                Err(OriginError::ClientShare)
            }
        }
    }
}

/// A request that asks for a tunnel.
#[derive(Clone, Copy)]
pub(super) struct TunnelRequest<'a> {
    pub(super) parts: &'a Parts,
    /// The host that the origin is sent.
    pub(super) host: &'a str,
    pub(super) target: &'a PathAndQuery,
    /// The client whose share of tunnels and slots the request uses.
    pub(super) client: ClientKey,
}

/// Asks the origin for a tunnel. If the reply is 101, the client's connection becomes the tunnel.
pub(super) async fn open(
    origin: &Origin,
    replies: &Replies,
    request: TunnelRequest<'_>,
    line: &TunnelConnection,
) -> Response<Body> {
    match request_tunnel(origin, request).await {
        Err(error) => serve::failed(replies, error, ForwardReason::Bypass),
        Ok((fetched, _)) if fetched.reply.status() != StatusCode::SWITCHING_PROTOCOLS => {
            let outcome = outcome(fetched.reply.status());
            serve::forward_reply(replies, origin, request.parts, fetched, outcome)
        }
        Ok((OriginReply { mut reply, origin: authority, .. }, permit)) => {
            let upgraded =
                hyper::upgrade::on(&mut reply).await.ok().filter(|_| is_websocket(reply.headers()));
            let Some(upgraded) = upgraded else {
                return serve::failed(replies, OriginError::BadReply, ForwardReason::Bypass);
            };
            let (idle_timeout, body_timeout) = {
                let config = &origin.settings().config;
                (config.tunnel_idle_timeout, config.body_timeout)
            };
            origin.counts.tunnels_opened.add(1);
            line.0.tunnel_slot().set(Tunnel {
                origin: TokioIo::new(upgraded),
                permit,
                idle_timeout,
                body_timeout,
                line: None,
            });
            let (head, _) = reply.into_parts();
            let mut headers = head.headers;
            fields::remove_hop_by_hop(&mut headers);
            let outcome = outcome(head.status);
            let mut reply = serve::merge_reply(replies, origin, head.status, headers, outcome, Body::empty());
            reply.headers_mut().insert(header::CONNECTION, UPGRADE);
            reply.headers_mut().insert(header::UPGRADE, WEBSOCKET);
            Responder::mark(reply, Some(authority))
        }
    }
}

async fn request_tunnel(
    origin: &Origin,
    request: TunnelRequest<'_>,
) -> Result<(OriginReply, TunnelPermit), OriginError> {
    let TunnelRequest { parts, host, target, client } = request;
    let permit = origin.acquire_tunnel(client).await?;
    let slot = origin.acquire_slot(client).await?;
    let mut headers = origin.request_headers(&parts.headers, host);
    headers.insert(header::UPGRADE, WEBSOCKET);
    let interim = InterimRelay::of_request(parts);
    Ok((origin.send(slot, &parts.method, target, headers, None, interim).await?, permit))
}

fn outcome(status: StatusCode) -> Outcome {
    let (status, detail) = (Some(status.as_u16()), Some("upgrade"));
    Outcome::OriginForward { reason: ForwardReason::Bypass, status, stored: false, collapsed: false, detail }
}

impl Tunnel {
    /// Relays bytes until both sides have ended, one of them fails, or the tunnel is silent for too long.
    /// `first` are bytes of the client that have already been read.
    pub(crate) async fn run(
        self,
        client: ClientIo,
        first: Vec<u8>,
        counters: &Arc<Counters>,
        write_timeout: Duration,
    ) {
        let _load = TunnelLoad::new(counters);
        let Self { origin, permit, idle_timeout, body_timeout, line } = self;
        let logged = line.as_ref().map(|line| line.bytes_sent());
        let counts = &permit.counts;
        let idle_timer = IdleTimer::new(idle_timeout);
        let ((from_client, to_client), (from_origin, mut to_origin)) = (split(client), split(origin));
        let up = async {
            counts.tunnel_received.add(first.len() as u64);
            write_with_timeout(&mut to_origin, &first, (body_timeout, &counts.write_timeouts)).await?;
            let write_limit = (body_timeout, &counts.write_timeouts);
            relay(from_client, to_origin, &idle_timer, (&counts.tunnel_received, None), write_limit).await
        };
        let write_limit = (write_timeout, &counters.write_timeouts);
        let down = relay(from_origin, to_client, &idle_timer, (&counts.tunnel_sent, logged), write_limit);
        tokio::select! {
            _ = async { tokio::try_join!(up, down) } => {}
            () = idle_timer.wait() => counts.tunnels_idle.add(1),
        }
    }
}

/// Relays bytes in one direction until they end, and then closes the other side.
async fn relay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    idle_timer: &IdleTimer,
    (count, logged): (&Counter, Option<&Counter>),
    write_limit: (Duration, &Counter),
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let len = from.read(&mut piece).await?;
        idle_timer.record_bytes(len == 0);
        if len == 0 {
            return to.shutdown().await;
        }
        for count in std::iter::once(count).chain(logged) {
            count.add(len as u64);
        }
        write_with_timeout(&mut to, &piece[..len], write_limit).await?;
    }
}

/// Writes bytes to a side within `time`. Counts a timeout in `late`.
async fn write_with_timeout(
    to: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    (time, late): (Duration, &Counter),
) -> io::Result<()> {
    let writing = async {
        to.write_all(bytes).await?;
        // TLS buffers bytes until a flush.
        to.flush().await
    };
    let written = timeout(time, writing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    // A connection to the origin has deadlines of its own.
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        late.add(1);
    }
    written
}

/// The time of the last byte, and the longest time without one.
struct IdleTimer(Mutex<(Instant, Duration)>);

impl IdleTimer {
    fn new(idle_time: Duration) -> Self {
        Self(Mutex::new((Instant::now(), idle_time)))
    }

    fn record_bytes(&self, ends: bool) {
        let (last_byte, idle_time) = &mut *lock(&self.0);
        *last_byte = Instant::now();
        if ends {
            *idle_time = HALF_CLOSED_TIMEOUT.min(*idle_time);
        }
    }

    fn deadline(&self) -> Instant {
        let (last_byte, idle_time) = *lock(&self.0);
        last_byte + idle_time
    }

    /// Waits until no bytes have moved for too long. A shortened limit takes effect within a second.
    async fn wait(&self) {
        loop {
            let deadline = self.deadline();
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline.min(Instant::now() + Duration::from_secs(1))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn only_a_websocket_request_opens_a_tunnel() {
        let is_request = |method: &str, version, fields: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).version(version).uri("/");
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            is_tunnel_request(&request.body(()).unwrap().into_parts().0)
        };
        let (upgrade, websocket) = (("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket"));
        assert!(is_request("GET", Version::HTTP_11, &[upgrade, websocket]));
        for (method, version, fields) in [
            ("POST", Version::HTTP_11, &[upgrade, websocket][..]),
            ("GET", Version::HTTP_10, &[upgrade, websocket]),
            ("GET", Version::HTTP_11, &[websocket]),
            ("GET", Version::HTTP_11, &[upgrade]),
            ("GET", Version::HTTP_11, &[upgrade, ("upgrade", "h2c")]),
            ("GET", Version::HTTP_11, &[upgrade, ("upgrade", "websocket, h2c")]),
            ("GET", Version::HTTP_11, &[upgrade, websocket, ("upgrade", "h2c")]),
            ("GET", Version::HTTP_11, &[upgrade, websocket, ("content-length", "1")]),
            ("GET", Version::HTTP_11, &[upgrade, websocket, ("transfer-encoding", "chunked")]),
        ] {
            assert!(!is_request(method, version, fields), "{method} {version:?} {fields:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_closed_tunnel_has_a_shorter_idle_time() {
        let idle_timer = IdleTimer::new(Duration::from_secs(60));
        let start = Instant::now();
        idle_timer.wait().await;
        assert_eq!(start.elapsed().as_secs(), 60);
        let idle_timer = IdleTimer::new(Duration::from_secs(60));
        let start = Instant::now();
        idle_timer.record_bytes(true);
        idle_timer.wait().await;
        assert_eq!(start.elapsed().as_secs(), HALF_CLOSED_TIMEOUT.as_secs());
    }
}
