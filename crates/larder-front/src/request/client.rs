//! The connection of a client, as its requests see it.

use crate::dial::{Announced, ShownByTls};
use crate::handoff::mechanism::Delivery;
use crate::lease::Placement;
use larder_edge::client_cert;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The facts that TLS has shown about a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    /// Its certificate as it stands in `Client-Cert` (RFC 9440 section 2.2).
    pub(crate) client_cert: Option<http::HeaderValue>,
    /// The version of TLS.
    pub(crate) version: &'static str,
}

impl Security {
    /// A client with this certificate (DER), if it has shown one.
    pub(crate) fn of(certificate: Option<&[u8]>, version: &'static str) -> Self {
        Self { client_cert: certificate.and_then(client_cert), version }
    }
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// The client, perhaps as a balancer has announced it.
    pub(crate) address: SocketAddr,
    /// The address that the client has connected to, if that is known.
    pub(crate) server: Option<SocketAddr>,
    /// The way in which the connection's requests are delivered.
    pub(crate) delivery: Delivery,
    /// None without TLS.
    pub(crate) security: Option<Security>,
    /// Tells apart connections to nodes that announce this client.
    pub(super) number: u64,
    /// The decision about the first request, if it was made before the request was read.
    outcome: RefCell<Option<Placement>>,
}

impl Client {
    pub(crate) fn new(
        address: SocketAddr,
        server: Option<SocketAddr>,
        delivery: Delivery,
        outcome: Option<Placement>,
    ) -> Self {
        // 0 stands for all clients.
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Relaxed);
        Self { address, server, delivery, security: None, number, outcome: RefCell::new(outcome) }
    }

    /// The same over TLS.
    pub(crate) fn secured(self, security: Security) -> Self {
        Self { security: Some(security), ..self }
    }

    pub(crate) const fn is_secure(&self) -> bool {
        self.security.is_some()
    }

    /// The announcement of the client on a connection to a node; none if the address it has connected to is not known.
    pub(crate) fn announced(&self) -> Option<Announced> {
        let shown = |security: &Security| ShownByTls {
            version: security.version,
            certificate: security.client_cert.is_some(),
        };
        let tls = self.security.as_ref().map(shown);
        Some(Announced { client: self.address, server: self.server?, tls })
    }

    /// Takes the decision about the first request.
    pub(crate) fn take_outcome(&self) -> Option<Placement> {
        self.outcome.borrow_mut().take()
    }
}
