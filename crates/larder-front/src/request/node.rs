//! Connections to nodes.

use super::client::Client;
use super::exchange::Exchange;
use super::requests::Requests;
use crate::dial::{DialError, Speaks};
use crate::failure::Failure;
use crate::node::Node;
use larder_core::NodeId;
use larder_edge::ServerIo;
use larder_http::h1::RequestHead;
use larder_http::relay::Next;
use std::io;
use std::net::SocketAddr;

/// A node, as far as connections to it are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    node: NodeId,
    /// The slot may be another node's by now.
    address: SocketAddr,
    /// All that TLS to it depends on; 0 without TLS.
    tls: u64,
    http2: bool,
    /// The number of the client whom its connections announce; 0 if they announce none.
    client: u64,
}

impl Server {
    /// A node, for the client of this number if its connections announce clients.
    pub(super) fn of(node: &Node, client: u64) -> Self {
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
    /// The server of the node that was decided on.
    pub(super) fn server(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Next<Server> {
        let node = exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node));
        match node {
            Some(node) => Next::Server(Server::of(&node, client.number)),
            None => Next::Answer(self.fail(client, exchange, head, Failure::Internal)),
        }
    }

    /// Opens a connection to a node.
    pub(super) async fn open(&self, client: &Client, server: &Server) -> io::Result<ServerIo> {
        let node = self.shared.decider.nodes.get(server.node).and_then(|node| node.keep());
        // A node that has moved meanwhile is decided on again.
        let node = node.filter(|node| node.dial.address == server.address);
        let node = node.ok_or(io::ErrorKind::NotFound)?;
        let announced = node.dial.announce.and_then(|_| client.announced());
        let stream = node.dial.open(announced.as_ref(), Speaks::AsTraffic).await;
        let stream = stream.map_err(|error| match error {
            DialError::Connect(error) => error,
            error @ DialError::Tls(_) => io::Error::other(error),
        })?;
        self.shared.decider.metrics.node_connected(node.id);
        Ok(stream)
    }
}
