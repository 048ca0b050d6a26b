//! A client connection, as its requests see it.

use crate::dial::{Announcement, TlsFacts};
use crate::handoff::mechanism::Delivery;
use crate::lease::Placement;
use larder_edge::client_cert;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Facts about a client's TLS connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    /// Certificate in the form of `Client-Cert` (RFC 9440 section 2.2).
    pub(crate) client_cert: Option<http::HeaderValue>,
    /// TLS version.
    pub(crate) version: &'static str,
}

impl Security {
    /// Creates the facts from the client's certificate (DER), if it has sent one.
    pub(crate) fn new(certificate: Option<&[u8]>, version: &'static str) -> Self {
        Self { client_cert: certificate.and_then(client_cert), version }
    }
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// Address of the client, possibly announced by a balancer.
    pub(crate) address: SocketAddr,
    /// Address that the client connected to, if known.
    pub(crate) server: Option<SocketAddr>,
    /// Delivery of the connection's requests.
    pub(crate) delivery: Delivery,
    /// TLS facts; `None` without TLS.
    pub(crate) security: Option<Security>,
    /// Number that identifies connections to nodes which announce this client.
    pub(super) number: u64,
    /// Decision about the first request, if it was made before the request was read.
    placement: RefCell<Option<Placement>>,
}

impl Client {
    pub(crate) fn new(
        address: SocketAddr,
        server: Option<SocketAddr>,
        delivery: Delivery,
        placement: Option<Placement>,
    ) -> Self {
        // 0 means all clients.
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Relaxed);
        Self { address, server, delivery, security: None, number, placement: RefCell::new(placement) }
    }

    /// Returns the same connection over TLS.
    pub(crate) fn secured(self, security: Security) -> Self {
        Self { security: Some(security), ..self }
    }

    pub(crate) const fn is_secure(&self) -> bool {
        self.security.is_some()
    }

    /// Returns the announcement for connections to nodes; `None` if the address that the client connected to is
    /// unknown.
    pub(crate) fn announcement(&self) -> Option<Announcement> {
        let shown = |security: &Security| TlsFacts {
            version: security.version,
            certificate: security.client_cert.is_some(),
        };
        let tls = self.security.as_ref().map(shown);
        Some(Announcement { client: self.address, server: self.server?, tls })
    }

    /// Takes the decision about the first request.
    pub(crate) fn take_placement(&self) -> Option<Placement> {
        self.placement.borrow_mut().take()
    }
}
