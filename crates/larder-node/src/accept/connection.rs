//! The life of a client's connection, from its first byte to its last.

use super::arrived::Arrived;
use super::phase::Phase;
use super::requests::{Client, Requests};
use crate::connection::{Brought, Shared};
use crate::cooperate::Departure;
use crate::counts::Counters;
use crate::edge::{Entered, Entry, Opening};
use crate::handoff::{HandoffDecision, RequestCounter, TransferOutcome};
use crate::origin::tunnel::Tunnel;
use crate::service::PeerService;
use crate::terms::{CurrentTerms, Terms};
use larder_edge::ClientIo;
use larder_handoff::agent::HandoffOffers;
use larder_http::relay::{End, Start, Worker, serve, serve_http2};
use larder_kernel::FlowKey;
use socket2::SockRef;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinError;
use tokio::time::Instant;

/// Most bytes of HTTP/2 replies that the kernel may hold unsent per connection. The limit keeps a written reply
/// close to its client.
const HTTP2_UNSENT_MAX: u32 = 128 << 10;

/// Serves connections.
#[derive(Debug)]
pub(crate) struct Connections {
    terms: Arc<CurrentTerms>,
    peers: Arc<PeerService>,
    counters: Arc<Counters>,
}

impl Connections {
    pub(super) fn new(terms: &Arc<CurrentTerms>, peers: &Arc<PeerService>, counters: &Arc<Counters>) -> Self {
        Self { terms: Arc::clone(terms), peers: Arc::clone(peers), counters: Arc::clone(counters) }
    }

    /// Serves a connection that holds a permit, until the connection ends or leaves this node.
    pub(super) async fn serve(
        self: Arc<Self>,
        (mut arrived, entry): (Arrived, Entry),
        _place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
        (mut giver, worker): (Option<HandoffOffers>, Rc<Worker<Requests>>),
    ) {
        let _open = Open::new(&self.counters);
        // Releases that were requested before this connection came do not concern it.
        giver.iter_mut().for_each(HandoffOffers::clear_release);
        let terms = self.terms.load_full();
        // This fails only if the connection is already closed.
        let _ = arrived.stream.tcp().set_nodelay(true);
        if terms.edge.concerns(entry) {
            // Boxed, so that the futures of other connections stay small.
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
        // A client that closes its sending side (RFC 9112 section 9.6) may still read. It cannot be told from a
        // client that has left. If a switch relays the connection, the half-close means that no client waits,
        // and the request ends.
        let direct = arrived.decision == HandoffDecision::Accepted || self.flow_of(&arrived).is_some();
        let half_close = arrived.handed.is_some() || direct;
        arrived.request_counter = self.peers.peer_handoff().filter(|_| direct).map(RequestCounter::new);
        loop {
            let served = self.serve_connection((&terms, half_close), arrived, &worker, giver.as_ref());
            let back = match served.await {
                After::Ended => break,
                After::Departs(leaving, departure) => Box::pin(self.depart(leaving, *departure)).await,
                After::Tunnel(leaving, tunnel) => break Box::pin(self.carry(*tunnel, leaving)).await,
                After::Rests(resting) => match &mut giver {
                    // If no node takes the connection, it continues here; while this node drains, it ends.
                    Some(giver) => {
                        giver.clear_release();
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

    /// Serves an HTTP/1 connection until it ends or leaves this node.
    async fn serve_connection(
        self: &Arc<Self>,
        (terms, half_close): (&Arc<Terms>, bool),
        arrived: Arrived,
        worker: &Worker<Requests>,
        giver: Option<&HandoffOffers>,
    ) -> After {
        let flow = self.flow_of(&arrived);
        let Arrived { stream, first, unsent, used, handed, decision, request_counter, entered, head_by } =
            arrived;
        // A closed connection sends nothing that needs a reply.
        let Some(peer) = peer_of(&stream) else { return After::Ended };
        let brought = Brought {
            handed: handed.clone(),
            used,
            flow,
            decision,
            request_counter,
            entered: entered.clone(),
            peer: Some(peer),
        };
        let shared = Shared::new(Arc::clone(&self.counters), brought);
        let mut client = Client::new(Arc::clone(&shared), Arc::clone(terms), half_close);
        // The switch ends the connections that it relays. Only a handed-off connection can be released to
        // another node.
        if let Some(giver) = giver.filter(|_| handed.is_some()) {
            client = client.released_by(giver.clone());
        }
        let head_by = head_by.map(Instant::into_std);
        let start = Start { io: stream, unread: first, unsent, is_used: used, head_by };
        let (stream, unread) = match serve(start, &client, worker).await {
            End::Closed => return After::Ended,
            End::Reset(stream) => {
                // This fails only if the connection is already reset.
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
            decision: HandoffDecision::Pending,
            request_counter: shared.take_request_counter(),
            entered,
            head_by: None,
        };
        match (shared.take_departure(), shared.tunnel.take()) {
            (Some(departure), _) => After::Departs(leaving, Box::new(departure)),
            (None, Some(tunnel)) => After::Tunnel(leaving, Box::new(tunnel)),
            (None, None) => After::Rests(leaving),
        }
    }

    /// Serves an HTTP/2 connection until it ends. An HTTP/2 connection is never handed off.
    async fn serve_http2(&self, terms: Arc<Terms>, arrived: Arrived, worker: &Worker<Requests>) {
        let Arrived { stream, entered, head_by, .. } = arrived;
        let first_by = head_by.map(Instant::into_std);
        self.counters.http2_connections.add(1);
        // This fails only if the connection is already closed.
        let _ = SockRef::from(stream.tcp()).set_tcp_notsent_lowat(HTTP2_UNSENT_MAX);
        let Some(peer) = peer_of(&stream) else { return };
        let brought = Brought { entered, peer: Some(peer), ..Brought::default() };
        let shared = Shared::new(Arc::clone(&self.counters), brought);
        serve_http2(stream, first_by, &Client::new(shared, terms, false), worker).await;
    }

    /// Serves a connection that has become a tunnel, until the tunnel ends.
    async fn carry(&self, tunnel: Tunnel, Arrived { stream, first, .. }: Arrived) {
        let write_timeout = self.terms.load().limits.write_timeout;
        tunnel.run(stream, first, &self.counters, write_timeout).await;
    }

    /// Returns the flow key of a connection, if the connection can be handed off to a peer.
    fn flow_of(&self, arrived: &Arrived) -> Option<FlowKey> {
        let peer_handoff = self.peers.peer_handoff()?;
        if arrived.entered.as_deref().is_some_and(Entered::stays) {
            return None;
        }
        let stream = arrived.stream.tcp();
        peer_handoff.flow(stream.peer_addr().ok()?, stream.local_addr().ok()?)
    }

    /// Hands a connection off to a peer. Returns the connection if it stays at this node.
    async fn depart(&self, leaving: Arrived, departure: Departure) -> Option<Arrived> {
        let Departure { to, node, flow, head, target, serviced } = departure;
        let cooperation = self.peers.cooperation()?;
        let peer_handoff = cooperation.peer_handoff.as_ref()?;
        let Arrived {
            stream: ClientIo::Clear(stream),
            first,
            unsent,
            used,
            handed,
            request_counter,
            entered,
            ..
        } = leaving
        else {
            return None;
        };
        let first = [&head[..], &first].concat();
        let socket = stream.into_std().ok()?.into();
        // Once the state is sent, the peer counts the connection, and the dispatcher's count continues.
        let sent = || serviced.hold();
        let stays = match peer_handoff.hand_off(&to, flow, socket, first.clone(), sent).await {
            TransferOutcome::Delivered => {
                cooperation.answered(node);
                cooperation.count_departed(target);
                request_counter.into_iter().for_each(RequestCounter::discard);
                return None;
            }
            TransferOutcome::Lost => {
                request_counter.into_iter().for_each(RequestCounter::discard);
                return None;
            }
            TransferOutcome::Returned(socket) => std::net::TcpStream::from(socket),
        };
        let stream = ClientIo::Clear(TcpStream::from_std(stays).ok()?);
        let decision = HandoffDecision::Declined;
        Some(Arrived {
            stream,
            first,
            unsent,
            used,
            handed,
            decision,
            request_counter,
            entered,
            head_by: None,
        })
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
}

/// Performs the announcement and the TLS handshake that precede the first request; `None` if one of them fails.
async fn enter(arrived: Arrived, entry: Entry, terms: &Terms, counters: &Counters) -> Option<Arrived> {
    let Arrived { stream: ClientIo::Clear(tcp), .. } = arrived else { return Some(arrived) };
    let opening = terms.edge.enter(tcp, entry, terms.limits.head_timeout, counters).await?;
    let Opening { stream, entered, head_by } = opening;
    Some(Arrived { stream, entered: Some(Arc::new(entered)), head_by: Some(head_by), ..arrived })
}

/// Returns the address at the other end of a connection; `None` if the connection is closed.
pub(crate) fn peer_of(stream: &ClientIo) -> Option<IpAddr> {
    stream.tcp().peer_addr().ok().map(|peer| peer.ip().to_canonical())
}

/// An open connection; it is counted until this value is dropped.
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
    /// The connection has ended.
    Ended,
    /// The connection is idle between two requests and is offered to another node.
    Rests(Arrived),
    /// The connection is handed off to a peer together with a request.
    Departs(Arrived, Box<Departure>),
    /// The connection has become a tunnel.
    Tunnel(Arrived, Box<Tunnel>),
}
