//! Accepting connections, serving them, and ending in good order.
//!
//! A connection that a front-end has handed over comes in one of two ways: by cookie the kernel accepts it, and it is one
//! like any other of the listening socket; by repair it comes as a socket, with the bytes that the front-end has read.

use crate::config::Limits;
use crate::connection::{Bound, Shared, Socket};
use crate::handover::{Departure, Handover, Life, Moved};
use crate::lateral::{Later, Lateral, LateralConfig};
use crate::node::{Node, NodeError};
use bytes::Bytes;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::service_fn;
use larder_handoff::FlowKey;
use larder_handoff::agent::{Giver, Resting, Restored};
use rustix::io::Errno;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long the last connections that wait to be accepted may take. Busy clients must not hold up the end.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Refused connections that are told so and closed gently at one time; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// Time a refused client gets to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time aborted connections get to be dropped.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that had to be cut because their replies did not end in time.
    pub aborted: usize,
}

/// What connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Aborting,
}

impl Node {
    /// Serves the connections of `listener` until `shutdown` completes; then accepts no more, closes idle
    /// connections, lets replies under way end, and cuts what is left after `drain_timeout`.
    ///
    /// # Errors
    /// If the listening socket breaks. Failures of single connections are counted, not returned.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        self.serve_with(listener, Handed::none(), shutdown).await
    }

    /// [`Self::serve`], where front-ends hand connections over: `handed` says how they come. Limits hold for all
    /// connections together.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_with(
        self: Arc<Self>,
        listener: TcpListener,
        handed: Handed,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        let connections_max = self.limits.connections_max;
        let places = self.places();
        let (phase, _) = watch::channel(Phase::Serving);
        let Handed { restored, services, lateral, giver, by_peers } = handed;
        let lateral = lateral.map(|config| Arc::new(Lateral::new(config, &self.name)));
        let known = Known { services, lateral, by_peers };
        tracing::info!(node = %self.describe(), "serving");
        {
            tokio::pin!(shutdown);
            let accepting = self.accept(&listener, (restored, known), giver, &phase, shutdown);
            accepting.await.map_err(NodeError::Listener)?;
        }
        drop(listener);
        self.set_draining(true);
        self.end_events();
        phase.send_replace(Phase::Draining);
        if timeout(self.limits.drain_timeout, places.acquire_many(connections_max)).await.is_ok() {
            return Ok(Drained { aborted: 0 });
        }
        let aborted = connections_max as usize - places.available_permits();
        phase.send_replace(Phase::Aborting);
        // A connection is dropped when its task is next polled, which the change of phase brings about.
        let _ = timeout(ABORT_TIMEOUT, places.acquire_many(connections_max)).await;
        Ok(Drained { aborted })
    }

    /// Accepts until `shutdown` completes and nothing more waits: what the kernel has accepted would be reset.
    async fn accept(
        self: &Arc<Self>,
        listener: &TcpListener,
        (mut restored, known): (mpsc::Receiver<Restored>, Known),
        giver: Option<Giver>,
        phase: &watch::Sender<Phase>,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<()> {
        let builder = http(&self.limits);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let mut last_look = None;
        loop {
            let (arrived, place) = tokio::select! {
                () = &mut shutdown, if last_look.is_none() => {
                    // Who hands over a socket now is refused, and keeps it.
                    restored.close();
                    last_look = Some(Instant::now() + LAST_LOOK);
                    continue;
                }
                () = sleep_until(last_look.unwrap_or_else(Instant::now)), if last_look.is_some() => return Ok(()),
                accepted = listener.accept() => (accepted.map(|(stream, _)| known.accepted(stream)), None),
                Some(mut restored) = restored.recv() => {
                    self.count_taken();
                    let place = restored.place.take();
                    (known.restored(restored), place)
                }
            };
            let arrived = match arrived {
                Ok(arrived) => arrived,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    self.counters.accept_errors.add(1);
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match place.map_or_else(|| self.places().try_acquire_owned(), Ok) {
                Ok(place) => {
                    self.counters.connections_accepted.add(1);
                    let (phase, giver) = (phase.subscribe(), giver.clone());
                    let connection =
                        Arc::clone(self).connection(builder.clone(), arrived, place, phase, giver);
                    tokio::spawn(connection);
                }
                Err(_) => {
                    self.counters.connections_refused.add(1);
                    if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                        tokio::spawn(refuse(arrived, place, self.refusal()));
                    }
                }
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        mut builder: http1::Builder,
        mut arrived: Arrived,
        _place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
        mut giver: Option<Giver>,
    ) {
        // A client that ends its side (RFC 9112 section 9.6) may still read, and cannot be told from one that is gone. From a
        // front-end that relays it means that nobody waits any more, and what is under way ends.
        let direct = arrived.bound == Bound::Taken || self.flow_of(&arrived.stream).is_some();
        builder.half_close(arrived.handed.is_some() || direct);
        arrived.life = self.handover().filter(|_| direct).map(Life::new);
        // Fails only for a connection that is gone already.
        let _ = arrived.stream.set_nodelay(true);
        let counters = Arc::clone(&self.counters);
        counters.connections.rise();
        loop {
            let back = match self.serve_connection(&builder, arrived, &mut phase, giver.as_mut()).await {
                After::Ended => break,
                After::Departs(leaving, departure) => self.depart(leaving, *departure).await,
                After::Rests(resting) => match &giver {
                    // Nobody takes it: it goes on here, or ends if this node drains.
                    Some(giver) => resting.give(giver).await.filter(|_| *phase.borrow() == Phase::Serving),
                    None => None,
                },
            };
            match back {
                Some(back) => arrived = back,
                None => break,
            }
        }
        counters.connections.fall(1);
    }

    /// Serves a connection to its end, or until it rests and is to be given up.
    async fn serve_connection(
        self: &Arc<Self>,
        builder: &http1::Builder,
        arrived: Arrived,
        phase: &mut watch::Receiver<Phase>,
        giver: Option<&mut Giver>,
    ) -> After {
        let Arrived { stream, first, unsent, used, handed, bound, life } = arrived;
        // One that came by relay is the front-end's to end.
        let can_give = giver.is_some() && handed.is_some();
        let flow = self.flow_of(&stream);
        let shared = Shared::new(Arc::clone(&self.counters), handed.clone(), used, (flow, bound, life));
        let socket = Socket::new(stream, first, unsent, Arc::clone(&shared), &self.limits);
        let (node, requests) = (Arc::clone(self), Arc::clone(&shared));
        let service = service_fn(move |request| {
            let reply = Arc::clone(&node).handle(Arc::clone(&requests), request);
            async move { Ok::<_, Infallible>(reply.await) }
        });
        let mut connection = builder.serve_connection(socket, service);
        let released = async {
            match giver {
                Some(giver) => loop {
                    giver.released().await;
                    if shared.rests() {
                        break;
                    }
                },
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            // Errors are the client's: what it sent is no HTTP, or it went away. Deadlines are counted where they
            // pass.
            _ = &mut connection => true,
            departure = shared.departing() => {
                let Parts { io, read_buf, .. } = connection.into_parts();
                return match io.into_resting(read_buf, handed) {
                    Some(leaving) => After::Departs(leaving, Box::new(departure)),
                    None => After::Ended,
                };
            }
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => false,
            () = released => false,
        };
        // hyper closes a connection between two requests, and would wait for the first one of a new connection.
        if ended || shared.is_unused() {
            return After::Ended;
        }
        let rests = can_give && shared.rests();
        Pin::new(&mut connection).graceful_shutdown();
        if rests {
            // Nothing is under way, so this does not wait.
            shared.keep_open();
            let given_up = (&mut connection).await;
            let Parts { io, read_buf, .. } = connection.into_parts();
            let resting = given_up.ok().and_then(|()| io.into_resting(read_buf, handed));
            return resting.map_or(After::Ended, After::Rests);
        }
        tokio::select! {
            biased;
            _ = &mut connection => {}
            _ = phase.wait_for(|phase| *phase == Phase::Aborting) => {}
        }
        After::Ended
    }

    /// A connection has come from a peer, or from a switch.
    fn count_taken(&self) {
        if let Some(handover) = self.handover() {
            handover.count_taken();
        }
    }

    fn handover(&self) -> Option<&Arc<Handover>> {
        self.cooperation.get()?.handover.as_ref()
    }

    /// A connection by its addresses, if it can be handed over to a peer.
    fn flow_of(&self, stream: &TcpStream) -> Option<FlowKey> {
        let handover = self.handover()?;
        handover.flow(stream.peer_addr().ok()?, stream.local_addr().ok()?)
    }

    /// Hands a connection over to a peer; gives it back if that has not taken it.
    async fn depart(&self, leaving: Arrived, departure: Departure) -> Option<Arrived> {
        let Departure { to, node, flow, head, target, serviced } = departure;
        let cooperation = self.cooperation.get()?;
        let handover = cooperation.handover.as_ref()?;
        let Arrived { stream, first, unsent, used, handed, life, .. } = leaving;
        let first = [&head[..], &first].concat();
        let socket = stream.into_std().ok()?.into();
        // Once it is on its way the peer counts it, and a dispatcher goes on.
        let sent = || serviced.hold();
        let stays = match handover.hand_over(&to, flow, socket, first.clone(), sent).await {
            Moved::Gone => {
                cooperation.answered(node);
                cooperation.count_departed(target);
                life.into_iter().for_each(Life::leave);
                return None;
            }
            Moved::Lost => {
                life.into_iter().for_each(Life::leave);
                return None;
            }
            Moved::Stays(socket) => std::net::TcpStream::from(socket),
        };
        let stream = TcpStream::from_std(stays).ok()?;
        Some(Arrived { stream, first: first.into(), unsent, used, handed, bound: Bound::Stays, life })
    }

    fn refusal(&self) -> Vec<u8> {
        let name = self.speller.name();
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nCache-Status: {name}; detail=connections-full\r\n\
             Retry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .into_bytes()
    }
}

/// A connection to be served.
pub(crate) struct Arrived {
    pub(crate) stream: TcpStream,
    /// The client's bytes that come before what the socket delivers.
    pub(crate) first: Bytes,
    /// Bytes to be written before anything else.
    pub(crate) unsent: Bytes,
    /// It has had requests before.
    pub(crate) used: bool,
    /// A front-end has handed it over.
    pub(crate) handed: Option<Later>,
    /// What is settled of its first request.
    pub(crate) bound: Bound,
    /// What is known of its requests, if it can be handed over to a peer or was.
    pub(crate) life: Option<Life>,
}

/// What became of a connection.
enum After {
    Ended,
    /// It rests between two requests, and is to be given up.
    Rests(Arrived),
    /// It is to be handed over to a peer, with a request.
    Departs(Arrived, Box<Departure>),
}

/// Connections that front-ends hand over.
#[derive(Debug)]
pub struct Handed {
    /// Those that come with their state.
    pub restored: mpsc::Receiver<Restored>,
    /// The addresses that clients connect to: what is accepted on one of them was handed over.
    pub services: Vec<SocketAddr>,
    /// How later requests that belong to other nodes are fetched from there; `None`: they are served here.
    pub lateral: Option<LateralConfig>,
    /// Gives connections that rest between two requests up to other nodes when a front-end asks for it, and when this
    /// node drains; `None`: they end then.
    pub giver: Option<Giver>,
    /// It is peers that hand them over, and not front-ends: the first request of each is served here, the others as those of
    /// any client.
    pub by_peers: bool,
}

impl Handed {
    /// None are.
    pub fn none() -> Self {
        let restored = mpsc::channel(1).1;
        Self { restored, services: Vec::new(), lateral: None, giver: None, by_peers: false }
    }
}

/// What tells handed-over connections from others.
struct Known {
    services: Vec<SocketAddr>,
    lateral: Option<Arc<Lateral>>,
    by_peers: bool,
}

impl Known {
    fn accepted(&self, stream: TcpStream) -> Arrived {
        let local = stream.local_addr().ok().filter(|_| !self.services.is_empty());
        let of = |local: SocketAddr| SocketAddr::new(local.ip().to_canonical(), local.port());
        let service = local.map(of).filter(|local| self.services.contains(local));
        let handed = service.map(|service| Later { service, lateral: self.lateral.clone() });
        Arrived {
            stream,
            first: Bytes::new(),
            unsent: Bytes::new(),
            used: false,
            handed,
            bound: Bound::Free,
            life: None,
        }
    }

    fn restored(&self, restored: Restored) -> io::Result<Arrived> {
        let later = Later { service: restored.server, lateral: self.lateral.clone() };
        let (handed, bound) = if self.by_peers { (None, Bound::Taken) } else { (Some(later), Bound::Free) };
        let stream = std::net::TcpStream::from(restored.socket);
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        let (first, unsent) = (restored.first.into(), restored.unsent.into());
        Ok(Arrived { stream, first, unsent, used: false, handed, bound, life: None })
    }
}

impl Arrived {
    /// Gives the connection up to another node; comes back if none takes it, unless it has ended.
    async fn give(self, giver: &Giver) -> Option<Self> {
        let (used, handed) = (true, self.handed);
        let (client, server) = (self.stream.peer_addr().ok()?, self.stream.local_addr().ok()?);
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let resting = Resting {
            client: canonical(client),
            server: canonical(server),
            socket: self.stream.into_std().ok()?.into(),
            unread: self.first.to_vec(),
        };
        let Resting { socket, unread, .. } = giver.give(resting).await?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket)).ok()?;
        let first = unread.into();
        Some(Self { stream, first, unsent: Bytes::new(), used, handed, bound: Bound::Free, life: None })
    }
}

/// The HTTP side of connections. Deadlines are the socket's, not hyper's: hyper has one for heads and silence alike.
fn http(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_headers(limits.headers_max)
        .max_header_size(limits.head_bytes_max)
        .max_buf_size(limits.head_bytes_max.max(64 << 10));
    builder
}

/// Tells a client that there is no place, and waits until it has heard: closing with its request unread would reset
/// the connection and lose the reply.
async fn refuse(arrived: Arrived, _place: OwnedSemaphorePermit, refusal: Vec<u8>) {
    let Arrived { mut stream, unsent, .. } = arrived;
    let told = async {
        stream.write_all(&unsent).await?;
        stream.write_all(&refusal).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1_024];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIMEOUT, told).await;
}

/// Whether the listening socket itself is broken, rather than a connection or the machine's supply.
fn is_fatal(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::BADF | Errno::NOTSOCK | Errno::INVAL | Errno::OPNOTSUPP))
}
