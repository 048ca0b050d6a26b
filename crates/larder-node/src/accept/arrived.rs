//! Connections that are to be served, and how those come that switches and peers hand over.

use crate::contents::{Later, Lateral};
use crate::edge::{Entered, Entry};
use crate::handover::{Bound, Life};
use larder_edge::ClientIo;
use larder_handoff::agent::{HandoffOffers, IdleConnection, RestoredConnection};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::time::Instant;

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
    pub(super) async fn give(self, giver: &HandoffOffers) -> Option<Self> {
        let Self { stream: ClientIo::Clear(stream), first, handed, entered, .. } = self else { return None };
        let (client, server) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let resting = IdleConnection {
            client: canonical(client),
            server: canonical(server),
            socket: stream.into_std().ok()?.into(),
            unread: first,
        };
        let IdleConnection { socket, unread, .. } = giver.offer(resting).await?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket)).ok()?;
        Some(Self { first: unread, used: true, entered, ..Self::new(stream, handed) })
    }
}

/// The addresses and settings of connections that switches and peers hand over.
pub(crate) struct HandoffSettings {
    pub(super) services: Vec<SocketAddr>,
    pub(super) lateral: Option<Arc<Lateral>>,
    pub(super) by_peers: bool,
}

impl HandoffSettings {
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

    pub(crate) fn restored(&self, restored: RestoredConnection) -> io::Result<Arrived> {
        let later = Later { service: restored.server, lateral: self.lateral.clone() };
        let (handed, bound) = if self.by_peers { (None, Bound::Taken) } else { (Some(later), Bound::Free) };
        let stream = std::net::TcpStream::from(restored.socket);
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        let RestoredConnection { received: first, unsent, .. } = restored;
        Ok(Arrived { first, unsent, bound, ..Arrived::new(stream, handed) })
    }
}
