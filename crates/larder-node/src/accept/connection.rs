//! The life of a client's connection, from its first byte to its last.

use super::incoming::IncomingConnection;
use super::phase::Phase;
use super::requests::{ClientConnection, Requests};
use crate::connection::{ConnectionFacts, ConnectionRecord};
use crate::cooperate::HandoffRequest;
use crate::counters::Counters;
use crate::edge::{ConnectionInfo, ConnectionSource, PreparedConnection};
use crate::handoff::{HandoffDecision, RequestCounter, TransferOutcome};
use crate::origin::tunnel::Tunnel;
use crate::service::PeerService;
use crate::settings::{CurrentSettings, NodeSettings};
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
    settings: Arc<CurrentSettings>,
    peers: Arc<PeerService>,
    counters: Arc<Counters>,
}

impl Connections {
    pub(super) fn new(
        settings: &Arc<CurrentSettings>,
        peers: &Arc<PeerService>,
        counters: &Arc<Counters>,
    ) -> Self {
        Self { settings: Arc::clone(settings), peers: Arc::clone(peers), counters: Arc::clone(counters) }
    }

    /// Serves a connection that holds a permit, until the connection ends or leaves this node.
    pub(super) async fn serve(
        self: Arc<Self>,
        (mut incoming, source): (IncomingConnection, ConnectionSource),
        _permit: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
        (mut offers, worker): (Option<HandoffOffers>, Rc<Worker<Requests>>),
    ) {
        let _open = OpenConnection::new(&self.counters);
        // Releases that were requested before this connection came do not concern it.
        offers.iter_mut().for_each(HandoffOffers::clear_release);
        let settings = self.settings.load_full();
        // This fails only if the connection is already closed.
        let _ = incoming.stream.tcp().set_nodelay(true);
        if settings.edge.needs_preparation(source) {
            // Boxed, so that the futures of other connections stay small.
            let prepared = Box::pin(prepare(incoming, source, &settings, &self.counters));
            let prepared = tokio::select! {
                biased;
                prepared = prepared => prepared,
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
            };
            let Some(prepared) = prepared else { return };
            incoming = prepared;
            if incoming.info.as_deref().is_some_and(ConnectionInfo::is_http2) {
                return Box::pin(self.serve_http2(settings, incoming, &worker)).await;
            }
        }
        // A client that closes its sending side (RFC 9112 section 9.6) may still read. It cannot be told from a
        // client that has left. If a switch relays the connection, the half-close means that no client waits,
        // and the request ends.
        let direct = incoming.decision == HandoffDecision::Accepted || self.flow_of(&incoming).is_some();
        let half_close = incoming.handoff.is_some() || direct;
        incoming.request_counter = self.peers.peer_handoff().filter(|_| direct).map(RequestCounter::new);
        loop {
            let serving = self.serve_connection((&settings, half_close), incoming, &worker, offers.as_ref());
            let back = match serving.await {
                ConnectionOutcome::Ended => break,
                ConnectionOutcome::Handoff(leaving, handoff_request) => {
                    Box::pin(self.hand_off(leaving, *handoff_request)).await
                }
                ConnectionOutcome::Tunnel(leaving, tunnel) => {
                    break Box::pin(self.relay_tunnel(*tunnel, leaving)).await;
                }
                ConnectionOutcome::Idle(resting) => match &mut offers {
                    // If no node takes the connection, it continues here; while this node drains, it ends.
                    Some(offers) => {
                        offers.clear_release();
                        Box::pin(resting.offer(offers)).await.filter(|_| *phase.borrow() < Phase::Draining)
                    }
                    None => None,
                },
            };
            match back {
                Some(back) => incoming = back,
                None => break,
            }
        }
    }

    /// Serves an HTTP/1 connection until it ends or leaves this node.
    async fn serve_connection(
        self: &Arc<Self>,
        (settings, half_close): (&Arc<NodeSettings>, bool),
        incoming: IncomingConnection,
        worker: &Worker<Requests>,
        offers: Option<&HandoffOffers>,
    ) -> ConnectionOutcome {
        let flow = self.flow_of(&incoming);
        let IncomingConnection {
            stream,
            unread,
            unsent,
            is_reused,
            handoff,
            decision,
            request_counter,
            info,
            head_by,
        } = incoming;
        // A closed connection sends nothing that needs a reply.
        let Some(peer) = peer_of(&stream) else { return ConnectionOutcome::Ended };
        let facts = ConnectionFacts {
            handoff: handoff.clone(),
            is_reused,
            flow,
            decision,
            request_counter,
            info: info.clone(),
            peer: Some(peer),
        };
        let connection = ConnectionRecord::new(Arc::clone(&self.counters), facts);
        let mut client = ClientConnection::new(Arc::clone(&connection), Arc::clone(settings), half_close);
        // The switch ends the connections that it relays. Only a handed-off connection can be released to
        // another node.
        if let Some(offers) = offers.filter(|_| handoff.is_some()) {
            client = client.with_release(offers.clone());
        }
        let head_by = head_by.map(Instant::into_std);
        let start = Start { io: stream, unread, unsent, is_used: is_reused, head_by };
        let (stream, unread) = match serve(start, &client, worker).await {
            End::Closed => return ConnectionOutcome::Ended,
            End::Reset(stream) => {
                // This fails only if the connection is already reset.
                let _ = SockRef::from(stream.tcp()).set_linger(Some(Duration::ZERO));
                return ConnectionOutcome::Ended;
            }
            End::Left { io, unread } => (io, unread),
        };
        let leaving = IncomingConnection {
            stream,
            unread,
            unsent: Vec::new(),
            is_reused: true,
            handoff,
            decision: HandoffDecision::Pending,
            request_counter: connection.take_request_counter(),
            info,
            head_by: None,
        };
        match (connection.take_handoff_request(), connection.tunnel.take()) {
            (Some(handoff_request), _) => ConnectionOutcome::Handoff(leaving, Box::new(handoff_request)),
            (None, Some(tunnel)) => ConnectionOutcome::Tunnel(leaving, Box::new(tunnel)),
            (None, None) => ConnectionOutcome::Idle(leaving),
        }
    }

    /// Serves an HTTP/2 connection until it ends. An HTTP/2 connection is never handed off.
    async fn serve_http2(
        &self,
        settings: Arc<NodeSettings>,
        incoming: IncomingConnection,
        worker: &Worker<Requests>,
    ) {
        let IncomingConnection { stream, info, head_by, .. } = incoming;
        let first_by = head_by.map(Instant::into_std);
        self.counters.http2_connections.add(1);
        // This fails only if the connection is already closed.
        let _ = SockRef::from(stream.tcp()).set_tcp_notsent_lowat(HTTP2_UNSENT_MAX);
        let Some(peer) = peer_of(&stream) else { return };
        let facts = ConnectionFacts { info, peer: Some(peer), ..ConnectionFacts::default() };
        let connection = ConnectionRecord::new(Arc::clone(&self.counters), facts);
        serve_http2(stream, first_by, &ClientConnection::new(connection, settings, false), worker).await;
    }

    /// Serves a connection that has become a tunnel, until the tunnel ends.
    async fn relay_tunnel(
        &self,
        tunnel: Tunnel,
        IncomingConnection { stream, unread, .. }: IncomingConnection,
    ) {
        let write_timeout = self.settings.load().limits.write_timeout;
        tunnel.run(stream, unread, &self.counters, write_timeout).await;
    }

    /// Returns the flow key of a connection, if the connection can be handed off to a peer.
    fn flow_of(&self, incoming: &IncomingConnection) -> Option<FlowKey> {
        let peer_handoff = self.peers.peer_handoff()?;
        if incoming.info.as_deref().is_some_and(ConnectionInfo::is_pinned) {
            return None;
        }
        let stream = incoming.stream.tcp();
        peer_handoff.flow(stream.peer_addr().ok()?, stream.local_addr().ok()?)
    }

    /// Hands a connection off to a peer. Returns the connection if it stays at this node.
    async fn hand_off(
        &self,
        leaving: IncomingConnection,
        handoff_request: HandoffRequest,
    ) -> Option<IncomingConnection> {
        let HandoffRequest { to, node, flow, head, target, load } = handoff_request;
        let cooperation = self.peers.cooperation()?;
        let peer_handoff = cooperation.peer_handoff.as_ref()?;
        let IncomingConnection {
            stream: ClientIo::Clear(stream),
            unread,
            unsent,
            is_reused,
            handoff,
            request_counter,
            info,
            ..
        } = leaving
        else {
            return None;
        };
        let unread = [&head[..], &unread].concat();
        let socket = stream.into_std().ok()?.into();
        // Once the state is sent, the peer counts the connection, and the dispatcher's count continues.
        let sent = || load.into_handoff_guard();
        let socket_back = match peer_handoff.hand_off(&to, flow, socket, unread.clone(), sent).await {
            TransferOutcome::Delivered => {
                cooperation.record_answer(node);
                cooperation.report_handoff(target);
                request_counter.into_iter().for_each(RequestCounter::discard);
                return None;
            }
            TransferOutcome::Lost => {
                request_counter.into_iter().for_each(RequestCounter::discard);
                return None;
            }
            TransferOutcome::Returned(socket) => std::net::TcpStream::from(socket),
        };
        let stream = ClientIo::Clear(TcpStream::from_std(socket_back).ok()?);
        let decision = HandoffDecision::Declined;
        Some(IncomingConnection {
            stream,
            unread,
            unsent,
            is_reused,
            handoff,
            decision,
            request_counter,
            info,
            head_by: None,
        })
    }

    /// Counts and logs a panic of the task that served a connection.
    pub(crate) fn record_task_end(&self, result: &Result<(), JoinError>) {
        if let Err(error) = result
            && error.is_panic()
        {
            self.counters.panics.add(1);
            larder_log::limited_warn!(%error, "connection: lost, its task panicked");
        }
    }
}

/// Performs the announcement and the TLS handshake that precede the first request; `None` if one of them fails.
async fn prepare(
    incoming: IncomingConnection,
    source: ConnectionSource,
    settings: &NodeSettings,
    counters: &Counters,
) -> Option<IncomingConnection> {
    let IncomingConnection { stream: ClientIo::Clear(tcp), .. } = incoming else { return Some(incoming) };
    let prepared = settings.edge.prepare(tcp, source, settings.limits.head_timeout, counters).await?;
    let PreparedConnection { stream, info, head_by } = prepared;
    Some(IncomingConnection { stream, info: Some(Arc::new(info)), head_by: Some(head_by), ..incoming })
}

/// Returns the address at the other end of a connection; `None` if the connection is closed.
pub(crate) fn peer_of(stream: &ClientIo) -> Option<IpAddr> {
    stream.tcp().peer_addr().ok().map(|peer| peer.ip().to_canonical())
}

/// An open connection; it is counted until this value is dropped.
struct OpenConnection(Arc<Counters>);

impl OpenConnection {
    fn new(counters: &Arc<Counters>) -> Self {
        counters.connections.increment();
        Self(Arc::clone(counters))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.decrement(1);
    }
}

/// The result of serving a connection.
enum ConnectionOutcome {
    /// The connection has ended.
    Ended,
    /// The connection is idle between two requests and is offered to another node.
    Idle(IncomingConnection),
    /// The connection is handed off to a peer together with a request.
    Handoff(IncomingConnection, Box<HandoffRequest>),
    /// The connection has become a tunnel.
    Tunnel(IncomingConnection, Box<Tunnel>),
}
