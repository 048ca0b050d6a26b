//! Connections to serve, and the settings for connections that switches and peers hand off.

use crate::contents::{HandoffContext, LateralFetcher};
use crate::edge::{ConnectionInfo, ConnectionSource};
use crate::handoff::{HandoffDecision, RequestCounter};
use larder_edge::ClientIo;
use larder_handoff::agent::{HandoffOffers, IdleConnection, RestoredConnection};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A connection to serve.
pub(crate) struct IncomingConnection {
    pub(crate) stream: ClientIo,
    /// Bytes from the client that precede the socket's own stream.
    pub(crate) unread: Vec<u8>,
    /// Bytes to write before any reply.
    pub(crate) unsent: Vec<u8>,
    /// Whether the connection has carried requests before.
    pub(crate) is_reused: bool,
    /// The handoff that brought the connection, if a switch handed it off.
    pub(crate) handoff: Option<HandoffContext>,
    /// The decision about the connection's next request, if a peer or this node has already made it.
    pub(crate) decision: HandoffDecision,
    /// The request counter, if the connection can be handed off to a peer or came from one.
    pub(crate) request_counter: Option<RequestCounter>,
    /// The announced client and the TLS state, if there are any.
    pub(crate) info: Option<Arc<ConnectionInfo>>,
    /// Deadline for the first head; `None` applies the head timeout from now.
    pub(crate) head_by: Option<Instant>,
}

impl IncomingConnection {
    fn new(stream: TcpStream, handoff: Option<HandoffContext>) -> Self {
        Self {
            stream: ClientIo::Clear(stream),
            unread: Vec::new(),
            unsent: Vec::new(),
            is_reused: false,
            handoff,
            decision: HandoffDecision::Pending,
            request_counter: None,
            info: None,
            head_by: None,
        }
    }

    /// Offers the connection to another node. Returns it if no node takes it; `None` if it was taken or has
    /// ended.
    pub(super) async fn offer(self, offers: &HandoffOffers) -> Option<Self> {
        let Self { stream: ClientIo::Clear(stream), unread, handoff, info, .. } = self else { return None };
        let (client, server) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let resting = IdleConnection {
            client: canonical(client),
            server: canonical(server),
            socket: stream.into_std().ok()?.into(),
            unread,
        };
        let IdleConnection { socket, unread, .. } = offers.offer(resting).await?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket)).ok()?;
        Some(Self { unread, is_reused: true, info, ..Self::new(stream, handoff) })
    }
}

/// The addresses and settings of connections that switches and peers hand off.
pub(crate) struct HandoffSettings {
    pub(super) services: Vec<SocketAddr>,
    pub(super) lateral: Option<Arc<LateralFetcher>>,
    pub(super) from_peers: bool,
}

impl HandoffSettings {
    /// Wraps an accepted connection. A connection that was accepted with TLS always comes directly from its
    /// client.
    pub(crate) fn wrap_accepted(
        &self,
        stream: TcpStream,
        source: ConnectionSource,
    ) -> (IncomingConnection, ConnectionSource) {
        let services = !self.services.is_empty() && source == ConnectionSource::Clear;
        let local = stream.local_addr().ok().filter(|_| services);
        let of = |local: SocketAddr| SocketAddr::new(local.ip().to_canonical(), local.port());
        let service = local.map(of).filter(|local| self.services.contains(local));
        let handoff = service.map(|service| HandoffContext { service, lateral: self.lateral.clone() });
        let source = if handoff.is_some() { ConnectionSource::Handoff } else { source };
        (IncomingConnection::new(stream, handoff), source)
    }

    /// Wraps a connection that was restored from the state that a switch or a peer sent.
    ///
    /// # Errors
    /// Fails if the socket cannot be registered with the runtime.
    pub(crate) fn wrap_restored(&self, restored: RestoredConnection) -> io::Result<IncomingConnection> {
        let later = HandoffContext { service: restored.server, lateral: self.lateral.clone() };
        let (handoff, decision) = if self.from_peers {
            (None, HandoffDecision::Accepted)
        } else {
            (Some(later), HandoffDecision::Pending)
        };
        let stream = std::net::TcpStream::from(restored.socket);
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        let RestoredConnection { received: unread, unsent, .. } = restored;
        Ok(IncomingConnection { unread, unsent, decision, ..IncomingConnection::new(stream, handoff) })
    }
}
