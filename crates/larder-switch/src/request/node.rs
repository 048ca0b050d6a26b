//! Connections to nodes.

use super::client::Client;
use super::exchange::Exchange;
use super::requests::Requests;
use crate::dial::{DialError, NodeProtocol};
use crate::failure::Failure;
use crate::node::Node;
use larder_core::NodeId;
use larder_edge::ServerIo;
use larder_http::h1::RequestHead;
use larder_http::relay::Next;
use std::io;
use std::net::SocketAddr;

/// Key of the pool: connections with equal keys are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    node: NodeId,
    /// Address, because the slot may belong to another node now.
    address: SocketAddr,
    /// Hash of the TLS settings; 0 without TLS.
    tls: u64,
    http2: bool,
    /// Number of the client that its connections announce; 0 if they announce none.
    client: u64,
}

impl Server {
    /// Creates the key of a node. `client` is used if its connections announce clients.
    pub(super) fn new(node: &Node, client: u64) -> Self {
        let client = if node.dial.announce.is_some() { client } else { 0 };
        let (address, tls) = (node.dial.address, node.dial.tls_key());
        Self { node: node.id, address, tls, http2: node.http2, client }
    }

    pub(super) const fn speaks_http2(&self) -> bool {
        self.http2
    }

    pub(super) const fn is_secure(&self) -> bool {
        self.tls != 0
    }

    /// Whether its connections serve all clients.
    pub(super) const fn is_shared(&self) -> bool {
        self.client == 0
    }
}

impl Requests {
    /// Returns the chosen node as a server of the engine.
    pub(super) fn server(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Next<Server> {
        let node = exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node));
        match node {
            Some(node) => Next::Server(Server::new(&node, client.number)),
            None => Next::Answer(self.fail(client, exchange, head, Failure::Internal)),
        }
    }

    /// Opens a connection to a node.
    pub(super) async fn open(&self, client: &Client, server: &Server) -> io::Result<ServerIo> {
        let node = self.shared.decider.nodes.get(server.node).and_then(|node| node.to_arc());
        // If the node's address has changed, the request is decided again.
        let node = node.filter(|node| node.dial.address == server.address);
        let node = node.ok_or(io::ErrorKind::NotFound)?;
        let announcement = node.dial.announce.and_then(|_| client.announcement());
        let stream = node.dial.open(announcement.as_ref(), NodeProtocol::AsRequests).await;
        let stream = stream.map_err(|error| match error {
            DialError::Connect(error) => error,
            error @ DialError::Tls(_) => io::Error::other(error),
        })?;
        self.shared.decider.metrics.node_connected(node.id);
        Ok(stream)
    }
}
