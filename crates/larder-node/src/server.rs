//! Accepting connections, serving them, and ending in good order.
//!
//! A connection that a front-end has handed over comes in one of two ways: by cookie the kernel accepts it, and it is one
//! like any other of the listening socket; by repair it comes as a socket, with the bytes that the front-end has read.

use crate::connection::{Bound, Brought, Shared, Socket};
use crate::edge::{Entered, Entry, Listeners};
use crate::handover::{Departure, Handover, Life, Moved};
use crate::lateral::{Later, Lateral, LateralConfig};
use crate::node::{Node, NodeError};
use crate::origin::tunnel::Tunnel;
use crate::stats::Counters;
use crate::terms::Terms;
use bytes::Bytes;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::service_fn;
use larder_edge::ClientIo;
use larder_handoff::FlowKey;
use larder_handoff::agent::{Giver, Resting, Restored};
use rustix::io::Errno;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
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
pub(crate) enum Phase {
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

    /// [`Self::serve`] at several sockets, with TLS or without, and where front-ends hand connections over: `handed` says how they
    /// come. Limits hold for all connections together.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_with(
        self: Arc<Self>,
        listeners: impl Into<Listeners>,
        handed: Handed,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        let mut listeners = listeners.into();
        self.terms().edge.open(&listeners);
        let mut watching = JoinSet::new();
        watching.spawn(Arc::clone(&self).watch_certificates());
        let places = self.places();
        let (phase, _) = watch::channel(Phase::Serving);
        let Handed { restored, services, lateral, giver, by_peers } = handed;
        let lateral = lateral.map(|config| Arc::new(Lateral::new(config, &self.name)));
        let known = Known { services, lateral, by_peers };
        {
            tokio::pin!(shutdown);
            let accepting = self.accept(&mut listeners, (restored, known), giver, &phase, shutdown);
            accepting.await.map_err(NodeError::Listener)?;
        }
        drop(listeners);
        let connections_max = self.begin_to_end();
        self.end_events();
        phase.send_replace(Phase::Draining);
        let drain_timeout = self.terms().limits.drain_timeout;
        let mut aborted = 0;
        if timeout(drain_timeout, places.acquire_many(connections_max)).await.is_err() {
            aborted = usize::try_from(self.counters.connections.read()).unwrap_or(usize::MAX);
            phase.send_replace(Phase::Aborting);
            // A connection is dropped when its task is next polled, which the change of phase brings about.
            let _ = timeout(ABORT_TIMEOUT, places.acquire_many(connections_max)).await;
        }
        self.access.close();
        Ok(Drained { aborted })
    }

    /// Accepts until `shutdown` completes and nothing more waits: what the kernel has accepted would be reset.
    async fn accept(
        self: &Arc<Self>,
        listeners: &mut Listeners,
        (mut restored, known): (mpsc::Receiver<Restored>, Known),
        giver: Option<Giver>,
        phase: &watch::Sender<Phase>,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<()> {
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let mut last_look = None;
        loop {
            let (arrived, entry, place) = tokio::select! {
                () = &mut shutdown, if last_look.is_none() => {
                    // Who hands over a socket now is refused, and keeps it.
                    restored.close();
                    last_look = Some(Instant::now() + LAST_LOOK);
                    continue;
                }
                () = sleep_until(last_look.unwrap_or_else(Instant::now)), if last_look.is_some() => return Ok(()),
                accepted = listeners.accept() => match accepted {
                    Ok((stream, entry)) => {
                        let (arrived, entry) = known.accepted(stream, entry);
                        (Ok(arrived), entry, None)
                    }
                    Err(error) => (Err(error), Entry::Clear, None),
                },
                Some(mut restored) = restored.recv() => {
                    self.count_taken();
                    let place = restored.place.take();
                    (known.restored(restored), Entry::Handed, place)
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
                    tokio::spawn(Arc::clone(self).connection((arrived, entry), place, phase, giver));
                }
                Err(_) => {
                    self.counters.connections_refused.add(1);
                    // An answer by TLS would take the handshake, which is what there is no room for.
                    if entry != Entry::Secure
                        && let Ok(place) = Arc::clone(&refusals).try_acquire_owned()
                    {
                        tokio::spawn(refuse(arrived, place, self.refusal()));
                    }
                }
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        (mut arrived, entry): (Arrived, Entry),
        _place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
        mut giver: Option<Giver>,
    ) {
        let _open = Open::new(&self.counters);
        let terms = self.terms.load_full();
        // Fails only for a connection that is gone already.
        let _ = arrived.stream.tcp().set_nodelay(true);
        if terms.edge.concerns(entry) {
            // Boxed: other connections are not to be larger for it.
            let entered = Box::pin(self.enter(arrived, entry, &terms));
            let entered = tokio::select! {
                biased;
                entered = entered => entered,
                _ = phase.wait_for(|phase| *phase != Phase::Serving) => None,
            };
            let Some(entered) = entered else { return };
            arrived = entered;
            if arrived.entered.as_deref().is_some_and(Entered::speaks_http2) {
                return Box::pin(self.serve_http2(&terms, arrived, &mut phase)).await;
            }
        }
        // A client that ends its side (RFC 9112 section 9.6) may still read, and cannot be told from one that is gone. From a
        // front-end that relays it means that nobody waits any more, and what is under way ends.
        let direct = arrived.bound == Bound::Taken || self.flow_of(&arrived).is_some();
        let mut builder = terms.http.clone();
        builder.half_close(arrived.handed.is_some() || direct);
        arrived.life = self.handover().filter(|_| direct).map(Life::new);
        loop {
            let back = match self
                .serve_connection((&terms, &builder), arrived, &mut phase, giver.as_mut())
                .await
            {
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
    }

    /// Serves a connection to its end, or until it rests and is to be given up.
    async fn serve_connection(
        self: &Arc<Self>,
        (terms, builder): (&Terms, &http1::Builder),
        arrived: Arrived,
        phase: &mut watch::Receiver<Phase>,
        giver: Option<&mut Giver>,
    ) -> After {
        let flow = self.flow_of(&arrived);
        let Arrived { stream, first, unsent, used, handed, bound, life, entered, head_by } = arrived;
        // One that came by relay is the front-end's to end.
        let can_give = giver.is_some() && handed.is_some();
        // One that is gone already sends nothing that could be answered.
        let Some(peer) = peer_of(&stream) else { return After::Ended };
        let peer = Some(peer);
        let brought =
            Brought { handed: handed.clone(), used, flow, bound, life, entered, peer, frames: false };
        let shared = Shared::new(Arc::clone(&self.counters), brought);
        let mut socket = Socket::new(stream, first, unsent, Arc::clone(&shared), &terms.limits);
        if let Some(then) = head_by {
            socket.head_by(then);
        }
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
            ended = &mut connection => Some(ended.is_ok()),
            departure = shared.departing() => {
                let Parts { io, read_buf, .. } = connection.into_parts();
                return match io.into_resting(read_buf, handed) {
                    Some(leaving) => After::Departs(leaving, Box::new(departure)),
                    None => After::Ended,
                };
            }
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => None,
            () = released => None,
        };
        if let Some(tunnel) = shared.tunnel.take().filter(|_| ended == Some(true)) {
            return Box::pin(self.carry(tunnel, connection.into_parts(), phase)).await;
        }
        // hyper closes a connection between two requests, and would wait for the first one of a new connection.
        if ended.is_some() || shared.is_unused() {
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

    /// Serves a connection that has become a tunnel to its end, or to that of the node.
    async fn carry<S>(
        &self,
        tunnel: Tunnel,
        Parts { io, read_buf, .. }: Parts<Socket, S>,
        phase: &mut watch::Receiver<Phase>,
    ) -> After {
        let Some(Arrived { stream, first, .. }) = io.into_resting(read_buf, None) else {
            return After::Ended;
        };
        let write_timeout = self.terms().limits.write_timeout;
        tokio::select! {
            () = tunnel.run(stream, first, &self.counters, write_timeout) => {}
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
    fn flow_of(&self, arrived: &Arrived) -> Option<FlowKey> {
        let handover = self.handover()?;
        if arrived.entered.as_deref().is_some_and(Entered::stays) {
            return None;
        }
        let stream = arrived.stream.tcp();
        handover.flow(stream.peer_addr().ok()?, stream.local_addr().ok()?)
    }

    /// Hands a connection over to a peer; gives it back if that has not taken it.
    async fn depart(&self, leaving: Arrived, departure: Departure) -> Option<Arrived> {
        let Departure { to, node, flow, head, target, serviced } = departure;
        let cooperation = self.cooperation.get()?;
        let handover = cooperation.handover.as_ref()?;
        let Arrived { stream: ClientIo::Clear(stream), first, unsent, used, handed, life, entered, .. } =
            leaving
        else {
            return None;
        };
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
        let stream = ClientIo::Clear(TcpStream::from_std(stays).ok()?);
        let (first, bound) = (first.into(), Bound::Stays);
        Some(Arrived { stream, first, unsent, used, handed, bound, life, entered, head_by: None })
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

/// The address at the other end of a connection; `None` if it is gone.
pub(crate) fn peer_of(stream: &ClientIo) -> Option<IpAddr> {
    stream.tcp().peer_addr().ok().map(|peer| peer.ip().to_canonical())
}

/// A connection to be served.
pub(crate) struct Arrived {
    pub(crate) stream: ClientIo,
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
    /// What is known of it from before its first request, if anything.
    pub(crate) entered: Option<Arc<Entered>>,
    /// When its first head has to be complete, if not so long after now as a head may take.
    pub(crate) head_by: Option<Instant>,
}

/// An open connection, counted until dropped.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: &Arc<Counters>) -> Self {
        counters.connections.rise();
        Self(Arc::clone(counters))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fall(1);
    }
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
    /// What is accepted where TLS is, is a client's own.
    fn accepted(&self, stream: TcpStream, entry: Entry) -> (Arrived, Entry) {
        let services = !self.services.is_empty() && entry == Entry::Clear;
        let local = stream.local_addr().ok().filter(|_| services);
        let of = |local: SocketAddr| SocketAddr::new(local.ip().to_canonical(), local.port());
        let service = local.map(of).filter(|local| self.services.contains(local));
        let handed = service.map(|service| Later { service, lateral: self.lateral.clone() });
        let entry = if handed.is_some() { Entry::Handed } else { entry };
        (Arrived::new(stream, handed), entry)
    }

    fn restored(&self, restored: Restored) -> io::Result<Arrived> {
        let later = Later { service: restored.server, lateral: self.lateral.clone() };
        let (handed, bound) = if self.by_peers { (None, Bound::Taken) } else { (Some(later), Bound::Free) };
        let stream = std::net::TcpStream::from(restored.socket);
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        let (first, unsent) = (restored.first.into(), restored.unsent.into());
        Ok(Arrived { first, unsent, bound, ..Arrived::new(stream, handed) })
    }
}

impl Arrived {
    fn new(stream: TcpStream, handed: Option<Later>) -> Self {
        Self {
            stream: ClientIo::Clear(stream),
            first: Bytes::new(),
            unsent: Bytes::new(),
            used: false,
            handed,
            bound: Bound::Free,
            life: None,
            entered: None,
            head_by: None,
        }
    }

    /// Gives the connection up to another node; comes back if none takes it, unless it has ended.
    async fn give(self, giver: &Giver) -> Option<Self> {
        let Self { stream: ClientIo::Clear(stream), first, handed, entered, .. } = self else { return None };
        let (client, server) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let resting = Resting {
            client: canonical(client),
            server: canonical(server),
            socket: stream.into_std().ok()?.into(),
            unread: first.to_vec(),
        };
        let Resting { socket, unread, .. } = giver.give(resting).await?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket)).ok()?;
        Some(Self { first: unread.into(), used: true, entered, ..Self::new(stream, handed) })
    }
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
