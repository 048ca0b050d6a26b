//! Prepares a client's connection before its first request ([`larder_edge`]). The fields that tell an origin
//! about the client are written at admission ([`crate::service::Admission`]).
//!
//! A connection with TLS or an announced client stays at this node. The TLS keys do not move with a socket, and
//! the next node would take the balancer's address for the client. Replies of other nodes are relayed on such a
//! connection.

mod listeners;
mod view;

pub use listeners::Listeners;
pub use view::TlsView;

pub(crate) use listeners::{ConnectionSource, UnregisteredListeners};

use crate::counters::Counters;
use http::header::{self, HeaderValue};
use http::request::Parts;
use larder_edge::{
    AddressRanges, AnnouncementError, CertificateFault, ClientIo, Tls, TlsConfig, WELL_KNOWN, client_cert,
    https_url, read_announcement,
};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Prepares connections before their first requests.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) tls: Option<Arc<Tls>>,
    announcers: AddressRanges,
    /// Whether requests without TLS are redirected to the same URL with TLS.
    redirects: bool,
    /// The port of the TLS listener, once the node listens.
    https_port: Arc<OnceLock<u16>>,
}

/// The facts about a connection that are known before its first request.
#[derive(Debug, Default)]
pub(crate) struct ConnectionInfo {
    /// The client that a balancer has announced.
    client: Option<IpAddr>,
    /// Whether the connection uses TLS.
    secure: bool,
    /// Whether client and node have negotiated HTTP/2.
    http2: bool,
    /// The client's certificate, in the form of `Client-Cert` (RFC 9440).
    client_cert: Option<HeaderValue>,
    /// The TLS port to which requests are redirected; `None` if they are answered.
    https_port: Option<u16>,
}

impl Edge {
    /// Loads the certificates. Blocks on the disk.
    pub(crate) fn new(tls: Option<TlsConfig>, announcers: AddressRanges) -> Result<Self, CertificateFault> {
        let redirects = tls.as_ref().is_some_and(|tls| tls.redirect);
        let tls = tls.map(Tls::load).transpose()?;
        Ok(Self { tls: tls.map(Arc::new), announcers, redirects, https_port: Arc::default() })
    }

    /// Returns the edge for connections after a reload. A node cannot start or stop using TLS by a reload,
    /// because that would need other sockets.
    pub(crate) fn successor(
        &self,
        tls: Option<TlsConfig>,
        announcers: AddressRanges,
    ) -> Result<Self, CertificateFault> {
        let redirects = tls.as_ref().is_some_and(|tls| tls.redirect);
        let tls = match (&self.tls, tls) {
            (Some(before), Some(tls)) => Some(Arc::new(before.successor(tls)?)),
            (before, _) => before.clone(),
        };
        Ok(Self { tls, announcers, redirects, https_port: Arc::clone(&self.https_port) })
    }

    /// Records the TLS port, once the node listens.
    pub(crate) fn set_https_port(&self, listeners: &Listeners) {
        if let Some(port) = listeners.secure_port() {
            let _ = self.https_port.set(port);
        }
    }

    /// Returns whether a connection needs preparation before its first request.
    pub(crate) fn needs_preparation(&self, source: ConnectionSource) -> bool {
        self.tls.is_some() || (!self.announcers.0.is_empty() && source != ConnectionSource::Handoff)
    }

    fn initial_info(&self, source: ConnectionSource) -> ConnectionInfo {
        let https_port =
            self.https_port.get().copied().filter(|_| self.redirects && source == ConnectionSource::Clear);
        ConnectionInfo { secure: source == ConnectionSource::Secure, https_port, ..ConnectionInfo::default() }
    }
}

/// A connection that is ready for its first request.
pub(crate) struct PreparedConnection {
    pub(crate) stream: ClientIo,
    pub(crate) info: ConnectionInfo,
    /// Deadline for the first head.
    pub(crate) head_by: Instant,
}

impl Edge {
    /// Reads the announcement of a connection and performs the TLS handshake, where they apply. Both count
    /// against `head_timeout`. Returns `None` if one of them fails, which is counted.
    pub(crate) async fn prepare(
        &self,
        mut tcp: TcpStream,
        source: ConnectionSource,
        head_timeout: Duration,
        counters: &Counters,
    ) -> Option<PreparedConnection> {
        let head_by = Instant::now() + head_timeout;
        let mut info = self.initial_info(source);
        if source != ConnectionSource::Handoff {
            let peer = tcp.peer_addr().ok()?;
            if self.announcers.contains(peer.ip()) {
                match read_announcement(&mut tcp, peer, head_timeout).await {
                    // A balancer's own connection, such as a health check, names no client.
                    Ok((client, named)) => info.client = named.map(|_| client.ip().to_canonical()),
                    Err(reason) => {
                        count_announcement_error(reason, counters);
                        return None;
                    }
                }
            }
        }
        let stream = if source == ConnectionSource::Secure {
            let time_limit = head_by.saturating_duration_since(Instant::now());
            let secured = self.tls.as_ref()?.accept(tcp, time_limit).await?;
            info.http2 = secured.http2;
            info.client_cert = secured.client.as_deref().and_then(client_cert);
            ClientIo::Secure(secured.stream)
        } else {
            ClientIo::Clear(tcp)
        };
        Some(PreparedConnection { stream, info, head_by })
    }

    /// Returns the TLS state of the named node; `None` if it has no TLS.
    pub(crate) fn view(&self, name: &str) -> Option<TlsView> {
        self.tls.as_ref().map(|tls| TlsView::of(tls, name))
    }
}

fn count_announcement_error(reason: AnnouncementError, counters: &Counters) {
    match reason {
        AnnouncementError::Closed => {}
        AnnouncementError::Invalid => counters.announcements_refused.add(1),
        AnnouncementError::TimedOut => counters.head_timeouts.add(1),
    }
}

impl ConnectionInfo {
    /// Returns whether the connection cannot move to another node.
    pub(crate) fn is_pinned(&self) -> bool {
        self.client.is_some() || self.secure
    }

    /// Returns whether the connection speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.http2
    }

    /// Returns whether requests on the connection may be redirected to TLS.
    pub(crate) fn redirects_to_tls(&self) -> bool {
        self.https_port.is_some()
    }

    /// Returns the client that a balancer has announced.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// Returns whether the connection uses TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the client's certificate, in the form of `Client-Cert`.
    pub(crate) fn client_cert(&self) -> Option<&HeaderValue> {
        self.client_cert.as_ref()
    }

    /// Returns the TLS URL that a request is redirected to; `None` if the request is answered. ACME challenges
    /// are answered (RFC 8555 section 8.3).
    pub(crate) fn tls_redirect(&self, parts: &Parts) -> Option<HeaderValue> {
        let port = self.https_port?;
        if parts.uri.path().as_bytes().starts_with(WELL_KNOWN) {
            return None;
        }
        let mut named = parts.headers.get_all(header::HOST).iter();
        let host = match parts.uri.authority() {
            Some(authority) => authority.as_str().as_bytes(),
            None => named.next().filter(|_| named.next().is_none())?.as_bytes(),
        };
        https_url(host, parts.uri.path_and_query()?.as_str().as_bytes(), port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_forwarded_except_challenges() {
        let info = ConnectionInfo { https_port: Some(8443), ..ConnectionInfo::default() };
        let sent = |target: &str, hosts: &[&'static str]| {
            let mut parts = http::Request::get(target).body(()).unwrap().into_parts().0;
            for host in hosts {
                parts.headers.append(header::HOST, HeaderValue::from_static(host));
            }
            info.tls_redirect(&parts)
        };
        assert_eq!(sent("/a?b", &["a.test:80"]).unwrap(), "https://a.test:8443/a?b");
        assert_eq!(sent("http://b.test/c", &["a.test"]).unwrap(), "https://b.test:8443/c");
        assert_eq!(sent("/.well-known/acme-challenge/x", &["a.test"]), None);
        assert_eq!((sent("/", &[]), sent("/", &["a.test", "b.test"])), (None, None));
    }
}
