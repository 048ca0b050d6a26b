//! Connections to nodes.

use super::Requests;
use super::client::Client;
use super::exchange::Exchange;
pub(super) use crate::dial::NodeStream;
use crate::dial::{DialError, Speaks};
use crate::failure::Failure;
use larder_http::h1::RequestHead;
use larder_http::relay::Next;
use std::io;
use std::net::SocketAddr;

/// A server, as far as connections to it are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    address: SocketAddr,
    /// All that TLS to it depends on; 0 without TLS.
    tls: u64,
    /// The number of the client whom its connections announce; 0 if they announce none.
    client: u64,
}

impl Server {
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
        let node = exchange.decision.and_then(|decision| self.shared.nodes.get(decision.node));
        match node {
            Some(node) => Next::Server(Server {
                address: node.dial.address,
                tls: node.dial.tls_key(),
                client: if node.dial.announce.is_some() { client.number } else { 0 },
            }),
            None => Next::Answer(self.fail(client, exchange, head, Failure::Internal)),
        }
    }

    /// Opens a connection to the node that was decided on.
    pub(super) async fn open(&self, client: &Client, exchange: &mut Exchange) -> io::Result<NodeStream> {
        let node = exchange.decision.and_then(|decision| self.shared.nodes.get(decision.node)?.keep());
        let node = node.ok_or(io::ErrorKind::NotFound)?;
        let announced = node.dial.announce.and_then(|_| client.announced());
        let stream = node.dial.open(announced.as_ref(), Speaks::AsTraffic).await;
        let stream = stream.map_err(|error| match error {
            DialError::Connect(error) => error,
            error @ DialError::Tls(_) => io::Error::other(error),
        })?;
        exchange.connect = Some(self.shared.clock.now() - exchange.tried);
        self.shared.metrics.node_connected(node.id);
        Ok(stream)
    }
}
