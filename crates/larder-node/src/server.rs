//! Accepting connections, serving them, and ending in good order.
//!
//! Threads accept connections and serve them ([`larder_http::relay::Threads`]). A connection that a front-end has handed over comes in
//! one of two ways: by cookie the kernel accepts it, and it is one like any other of the listening socket; by repair it comes as a
//! socket, with the bytes that the front-end has read, and is given to a thread.

use crate::connection::{Brought, Shared};
use crate::cooperate::Departure;
use crate::counts::Counters;
use crate::edge::{Entered, Entry, Listeners, Opening};
use crate::handover::{Bound, Handover, Life, Moved};
use crate::lateral::{Later, Lateral, LateralConfig};
use crate::node::{Node, NodeError};
use crate::origin::tunnel::Tunnel;
use crate::requests::{Client, Requests};
use crate::terms::Terms;
use crate::thread::Thread;
use larder_edge::ClientIo;
use larder_handoff::agent::{Giver, Resting, Restored};
use larder_http::relay::{End, Start, Threads, Worker, serve, serve_http2};
use larder_kernel::FlowKey;
use socket2::SockRef;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

/// How long the last connections that wait to be accepted may take. Busy clients must not hold up the end.
pub(crate) const LAST_LOOK: Duration = Duration::from_millis(20);
/// Refused connections that are told so and closed gently at one time; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// Time aborted connections get to be dropped.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections handed over with their state that wait for a thread.
const GIVEN_MAX: usize = 64;
/// Bytes that the kernel may hold of replies to a client of HTTP/2 and has not sent, so that a reply which is written is nearly at its
/// client.
const HTTP2_UNSENT_MAX: u32 = 128 << 10;

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that had to be cut because their replies did not end in time.
    pub aborted: usize,
}

/// The progress of the node's end, as its threads know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Connections that wait to be accepted are the last ones.
    Closing,
    /// None is accepted any more, and idle ones end.
    Draining,
    /// All end.
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
        let listeners = listeners.into();
        self.terms().edge.open(&listeners);
        let mut watching = JoinSet::new();
        watching.spawn(Arc::clone(&self).watch_certificates());
        let phase = watch::Sender::new(Phase::Serving);
        let Handed { mut restored, services, lateral, giver, by_peers } = handed;
        let lateral = lateral.map(|config| Arc::new(Lateral::new(config, &self.name)));
        let known = Arc::new(Known { services, lateral, by_peers });
        let (accepting, mut accepted_all) = mpsc::channel(1);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let (mut given, mut works) = (Vec::new(), Vec::new());
        for _ in 0..self.threads {
            let (give, taken) = mpsc::channel(GIVEN_MAX);
            let thread = Thread {
                node: Arc::clone(&self),
                listeners: listeners.try_clone().map_err(NodeError::Listener)?,
                known: Arc::clone(&known),
                giver: giver.clone(),
                given: taken,
                phase: phase.subscribe(),
                refusals: Arc::clone(&refusals),
                accepting: accepting.clone(),
            };
            given.push(give);
            works.push(move |begun| thread.run(begun));
        }
        drop((accepting, listeners));
        let mut threads = Threads::start("requests", works).map_err(NodeError::Threads)?;
        let mut turns = given.iter().cycle();
        let mut give = async |restored| {
            self.count_taken();
            if let Some(thread) = turns.next() {
                let _ = thread.send(restored).await;
            }
        };
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(error) = accepted_all.recv() => return Err(self.failed(error)),
                Some(restored) = restored.recv() => give(restored).await,
            }
        }
        // Who hands over a socket now is refused, and keeps it.
        restored.close();
        let rest = async {
            while let Some(restored) = restored.recv().await {
                give(restored).await;
            }
        };
        let _ = timeout(LAST_LOOK, rest).await;
        drop(given);
        phase.send_replace(Phase::Closing);
        if let Some(error) = accepted_all.recv().await {
            return Err(self.failed(error));
        }
        let aborted = self.drain(&phase).await;
        // They end by themselves, unless one hangs.
        let _ = timeout(ABORT_TIMEOUT, threads.ended()).await;
        self.access.close();
        Ok(Drained { aborted })
    }

    /// A listening socket has failed: the node ends, and its log has all lines.
    fn failed(&self, error: io::Error) -> NodeError {
        self.access.close();
        NodeError::Listener(error)
    }

    /// Lets replies under way end, for some time. Returns the number of connections that are cut.
    async fn drain(&self, phase: &watch::Sender<Phase>) -> usize {
        let places = self.places();
        let connections_max = self.begin_to_end();
        self.end_events();
        phase.send_replace(Phase::Draining);
        let mut aborted = 0;
        if timeout(self.terms().limits.drain_timeout, places.acquire_many(connections_max)).await.is_err() {
            aborted = usize::try_from(self.counters.connections.read()).unwrap_or(usize::MAX);
            phase.send_replace(Phase::Aborting);
            let _ = timeout(ABORT_TIMEOUT, places.acquire_many(connections_max)).await;
        }
        // Threads end with their last connections.
        phase.send_replace(Phase::Aborting);
        aborted
    }

    pub(crate) async fn connection(
        self: Arc<Self>,
        (mut arrived, entry): (Arrived, Entry),
        _place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
        (mut giver, worker): (Option<Giver>, Rc<Worker<Requests>>),
    ) {
        let _open = Open::new(&self.counters);
        // The connection comes after earlier wishes to have connections elsewhere.
        giver.iter_mut().for_each(Giver::forget_released);
        let terms = self.terms.load_full();
        // Fails only for a connection that is gone already.
        let _ = arrived.stream.tcp().set_nodelay(true);
        if terms.edge.concerns(entry) {
            // Boxed: other connections are not to be larger for it.
            let entered = Box::pin(enter(arrived, entry, &terms, &self.counters));
            let entered = tokio::select! {
                biased;
                entered = entered => entered,
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
            };
            let Some(entered) = entered else { return };
            arrived = entered;
            if arrived.entered.as_deref().is_some_and(Entered::speaks_http2) {
                return Box::pin(self.serve_http2(terms, arrived, &worker)).await;
            }
        }
        // A client that ends its side (RFC 9112 section 9.6) may still read, and cannot be told from one that is gone. From a
        // front-end that relays it means that nobody waits any more, and what is under way ends.
        let direct = arrived.bound == Bound::Taken || self.flow_of(&arrived).is_some();
        let half_close = arrived.handed.is_some() || direct;
        arrived.life = self.handover().filter(|_| direct).map(Life::new);
        loop {
            let served = self.serve_connection((&terms, half_close), arrived, &worker, giver.as_ref());
            let back = match served.await {
                After::Ended => break,
                After::Departs(leaving, departure) => Box::pin(self.depart(leaving, *departure)).await,
                After::Tunnel(leaving, tunnel) => break Box::pin(self.carry(*tunnel, leaving)).await,
                After::Rests(resting) => match &mut giver {
                    // Nobody takes it: it goes on here, or ends if this node drains.
                    Some(giver) => {
                        giver.forget_released();
                        Box::pin(resting.give(giver)).await.filter(|_| *phase.borrow() < Phase::Draining)
                    }
                    None => None,
                },
            };
            match back {
                Some(back) => arrived = back,
                None => break,
            }
        }
    }

    /// Serves a connection of HTTP/1 to its end, or until it is to go on elsewhere.
    async fn serve_connection(
        self: &Arc<Self>,
        (terms, half_close): (&Arc<Terms>, bool),
        arrived: Arrived,
        worker: &Worker<Requests>,
        giver: Option<&Giver>,
    ) -> After {
        let flow = self.flow_of(&arrived);
        let Arrived { stream, first, unsent, used, handed, bound, life, entered, head_by } = arrived;
        // One that is gone already sends nothing that could be answered.
        let Some(peer) = peer_of(&stream) else { return After::Ended };
        let brought = Brought {
            handed: handed.clone(),
            used,
            flow,
            bound,
            life,
            entered: entered.clone(),
            peer: Some(peer),
        };
        let shared = Shared::new(Arc::clone(&self.counters), brought);
        let mut client = Client::new(Arc::clone(&shared), Arc::clone(terms), half_close);
        // One that came by relay is the front-end's to end.
        if let Some(giver) = giver.filter(|_| handed.is_some()) {
            client = client.released_by(giver.clone());
        }
        let head_by = head_by.map(Instant::into_std);
        let start = Start { io: stream, unread: first, unsent, is_used: used, head_by };
        let (stream, unread) = match serve(start, &client, worker).await {
            End::Closed => return After::Ended,
            End::Reset(stream) => {
                // Fails only for a connection that is reset already.
                let _ = SockRef::from(stream.tcp()).set_linger(Some(Duration::ZERO));
                return After::Ended;
            }
            End::Left { io, unread } => (io, unread),
        };
        let leaving = Arrived {
            stream,
            first: unread,
            unsent: Vec::new(),
            used: true,
            handed,
            bound: Bound::Free,
            life: shared.take_life(),
            entered,
            head_by: None,
        };
        match (shared.take_departure(), shared.tunnel.take()) {
            (Some(departure), _) => After::Departs(leaving, Box::new(departure)),
            (None, Some(tunnel)) => After::Tunnel(leaving, Box::new(tunnel)),
            (None, None) => After::Rests(leaving),
        }
    }

    /// Serves a connection of HTTP/2 to its end. Nothing of it can be handed over.
    async fn serve_http2(&self, terms: Arc<Terms>, arrived: Arrived, worker: &Worker<Requests>) {
        let Arrived { stream, entered, head_by, .. } = arrived;
        let first_by = head_by.map(Instant::into_std);
        self.counters.http2_connections.add(1);
        // Fails only for a connection that is gone already.
        let _ = SockRef::from(stream.tcp()).set_tcp_notsent_lowat(HTTP2_UNSENT_MAX);
        let Some(peer) = peer_of(&stream) else { return };
        let brought = Brought { entered, peer: Some(peer), ..Brought::default() };
        let shared = Shared::new(Arc::clone(&self.counters), brought);
        serve_http2(stream, first_by, &Client::new(shared, terms, false), worker).await;
    }

    /// Serves a connection that has become a tunnel to its end.
    async fn carry(&self, tunnel: Tunnel, Arrived { stream, first, .. }: Arrived) {
        let write_timeout = self.terms().limits.write_timeout;
        tunnel.run(stream, first, &self.counters, write_timeout).await;
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
        let bound = Bound::Stays;
        Some(Arrived { stream, first, unsent, used, handed, bound, life, entered, head_by: None })
    }

    /// Counts and logs a panic of the task that served a connection.
    pub(crate) fn note_end(&self, ended: &Result<(), JoinError>) {
        if let Err(error) = ended
            && error.is_panic()
        {
            self.counters.panics.add(1);
            tracing::error!(%error, "connection lost: its task panicked");
        }
    }

    pub(crate) fn refusal(&self) -> Vec<u8> {
        let name = self.speller.name();
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nCache-Status: {name}; detail=connections-full\r\n\
             Retry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .into_bytes()
    }
}

/// Has a connection enter before its first request; `None` if nothing came of it.
async fn enter(arrived: Arrived, entry: Entry, terms: &Terms, counters: &Counters) -> Option<Arrived> {
    let Arrived { stream: ClientIo::Clear(tcp), .. } = arrived else { return Some(arrived) };
    let opening = terms.edge.enter(tcp, entry, terms.limits.head_timeout, counters).await?;
    let Opening { stream, entered, head_by } = opening;
    Some(Arrived { stream, entered: Some(Arc::new(entered)), head_by: Some(head_by), ..arrived })
}

/// The address at the other end of a connection; `None` if it is gone.
pub(crate) fn peer_of(stream: &ClientIo) -> Option<IpAddr> {
    stream.tcp().peer_addr().ok().map(|peer| peer.ip().to_canonical())
}

/// A connection to be served.
pub(crate) struct Arrived {
    pub(crate) stream: ClientIo,
    /// The client's bytes that come before what the socket delivers.
    pub(crate) first: Vec<u8>,
    /// Bytes to be written before anything else.
    pub(crate) unsent: Vec<u8>,
    /// It has had requests before.
    pub(crate) used: bool,
    /// A front-end has handed it over.
    pub(crate) handed: Option<Later>,
    /// The decision about its first request, if there is one already.
    pub(crate) bound: Bound,
    /// The count of its requests, if it can be handed over to a peer or was.
    pub(crate) life: Option<Life>,
    /// The announced client and the state of TLS, if there are any.
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

/// The result of serving a connection.
enum After {
    Ended,
    /// It rests between two requests, and is to be given up.
    Rests(Arrived),
    /// It is to be handed over to a peer, with a request.
    Departs(Arrived, Box<Departure>),
    /// It has become a tunnel.
    Tunnel(Arrived, Box<Tunnel>),
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

/// The addresses and settings of connections that switches and peers hand over.
pub(crate) struct Known {
    services: Vec<SocketAddr>,
    lateral: Option<Arc<Lateral>>,
    by_peers: bool,
}

impl Known {
    /// A connection that was accepted. With TLS it is always a client's own.
    pub(crate) fn accepted(&self, stream: TcpStream, entry: Entry) -> (Arrived, Entry) {
        let services = !self.services.is_empty() && entry == Entry::Clear;
        let local = stream.local_addr().ok().filter(|_| services);
        let of = |local: SocketAddr| SocketAddr::new(local.ip().to_canonical(), local.port());
        let service = local.map(of).filter(|local| self.services.contains(local));
        let handed = service.map(|service| Later { service, lateral: self.lateral.clone() });
        let entry = if handed.is_some() { Entry::Handed } else { entry };
        (Arrived::new(stream, handed), entry)
    }

    pub(crate) fn restored(&self, restored: Restored) -> io::Result<Arrived> {
        let later = Later { service: restored.server, lateral: self.lateral.clone() };
        let (handed, bound) = if self.by_peers { (None, Bound::Taken) } else { (Some(later), Bound::Free) };
        let stream = std::net::TcpStream::from(restored.socket);
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        let Restored { first, unsent, .. } = restored;
        Ok(Arrived { first, unsent, bound, ..Arrived::new(stream, handed) })
    }
}

impl Arrived {
    fn new(stream: TcpStream, handed: Option<Later>) -> Self {
        Self {
            stream: ClientIo::Clear(stream),
            first: Vec::new(),
            unsent: Vec::new(),
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
            unread: first,
        };
        let Resting { socket, unread, .. } = giver.give(resting).await?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket)).ok()?;
        Some(Self { first: unread, used: true, entered, ..Self::new(stream, handed) })
    }
}
