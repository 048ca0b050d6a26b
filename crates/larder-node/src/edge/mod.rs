//! Prepares a client's connection before its first request ([`larder_edge`]). The fields that tell an origin about it are written
//! when they enter ([`crate::service::Admission`]).
//!
//! A connection with TLS or an announced client stays at this node: keys do not move with a socket, and the peer of a socket that moves
//! would be taken for the client. Replies of other nodes are relayed on it.

mod listeners;
mod view;

pub use listeners::Listeners;
pub use view::TlsView;

pub(crate) use listeners::{Entry, Unregistered};

use crate::counts::Counters;
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

/// What a node does with connections before their requests.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) tls: Option<Arc<Tls>>,
    announcers: AddressRanges,
    /// Whether requests without TLS are sent to the same with it.
    redirects: bool,
    /// The port of TLS, once the node listens.
    https_port: Arc<OnceLock<u16>>,
}

/// What is known of a connection before its first request.
#[derive(Debug, Default)]
pub(crate) struct Entered {
    /// The client that a balancer has announced.
    client: Option<IpAddr>,
    /// Whether the connection has TLS.
    secure: bool,
    /// Its client and the node have agreed on HTTP/2.
    http2: bool,
    /// The client's own certificate, as it stands in `Client-Cert`.
    client_cert: Option<HeaderValue>,
    /// At this port its requests are to be made again, with TLS.
    https_port: Option<u16>,
}

impl Edge {
    /// Reads the certificates. Blocks on the disk.
    pub(crate) fn new(tls: Option<TlsConfig>, announcers: AddressRanges) -> Result<Self, CertificateFault> {
        let redirects = tls.as_ref().is_some_and(|tls| tls.redirect);
        let tls = tls.map(Tls::load).transpose()?;
        Ok(Self { tls: tls.map(Arc::new), announcers, redirects, https_port: Arc::default() })
    }

    /// What connections meet that come after a change. Where there is no TLS, or was none, that stays so: it would need sockets.
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

    /// The node listens.
    pub(crate) fn open(&self, listeners: &Listeners) {
        if let Some(port) = listeners.secure_port() {
            let _ = self.https_port.set(port);
        }
    }

    /// Whether there is anything to be done before the first request of a connection, or to be said of it.
    pub(crate) fn concerns(&self, entry: Entry) -> bool {
        self.tls.is_some() || (!self.announcers.0.is_empty() && entry != Entry::Handed)
    }

    fn entered(&self, entry: Entry) -> Entered {
        let https_port = self.https_port.get().copied().filter(|_| self.redirects && entry == Entry::Clear);
        Entered { secure: entry == Entry::Secure, https_port, ..Entered::default() }
    }
}

/// A connection that has entered.
pub(crate) struct Opening {
    pub(crate) stream: ClientIo,
    pub(crate) entered: Entered,
    /// When its first head has to be complete.
    pub(crate) head_by: Instant,
}

impl Edge {
    /// Takes the announcement of a connection and shakes hands, where that is to be: both before the head may be late. `None`
    /// if nothing came of it, which is counted.
    pub(crate) async fn enter(
        &self,
        mut tcp: TcpStream,
        entry: Entry,
        head_timeout: Duration,
        counters: &Counters,
    ) -> Option<Opening> {
        let head_by = Instant::now() + head_timeout;
        let mut entered = self.entered(entry);
        if entry != Entry::Handed {
            let peer = tcp.peer_addr().ok()?;
            if self.announcers.contains(peer.ip()) {
                match read_announcement(&mut tcp, peer, head_timeout).await {
                    // One of the balancer's own, such as a check, names no client.
                    Ok((client, named)) => entered.client = named.map(|_| client.ip().to_canonical()),
                    Err(why) => {
                        count_unannounced(why, counters);
                        return None;
                    }
                }
            }
        }
        let stream = if entry == Entry::Secure {
            let patience = head_by.saturating_duration_since(Instant::now());
            let secured = self.tls.as_ref()?.accept(tcp, patience).await?;
            entered.http2 = secured.http2;
            entered.client_cert = secured.client.as_deref().and_then(client_cert);
            ClientIo::Secure(secured.stream)
        } else {
            ClientIo::Clear(tcp)
        };
        Some(Opening { stream, entered, head_by })
    }

    /// The state of TLS, for a node of this name; `None` if there is no TLS.
    pub(crate) fn view(&self, name: &str) -> Option<TlsView> {
        self.tls.as_ref().map(|tls| TlsView::of(tls, name))
    }
}

fn count_unannounced(why: AnnouncementError, counters: &Counters) {
    match why {
        AnnouncementError::Closed => {}
        AnnouncementError::Invalid => counters.announcements_refused.add(1),
        AnnouncementError::TimedOut => counters.head_timeouts.add(1),
    }
}

impl Entered {
    /// Whether the connection cannot go on elsewhere.
    pub(crate) fn stays(&self) -> bool {
        self.client.is_some() || self.secure
    }

    /// Whether its requests come by HTTP/2.
    pub(crate) fn speaks_http2(&self) -> bool {
        self.http2
    }

    /// Whether requests of the connection are to be made again with TLS, at least most of them.
    pub(crate) fn may_send_on(&self) -> bool {
        self.https_port.is_some()
    }

    /// The client that a balancer has announced.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// Whether the connection has TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.secure
    }

    /// The client's own certificate, in the form of `Client-Cert`.
    pub(crate) fn client_cert(&self) -> Option<&HeaderValue> {
        self.client_cert.as_ref()
    }

    /// Where a request is to be made again, with TLS; `None` if it is answered. Challenges of ACME are answered (RFC 8555 section
    /// 8.3).
    pub(crate) fn sends_on(&self, parts: &Parts) -> Option<HeaderValue> {
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
    fn requests_are_sent_on_but_challenges() {
        let entered = Entered { https_port: Some(8443), ..Entered::default() };
        let sent = |target: &str, hosts: &[&'static str]| {
            let mut parts = http::Request::get(target).body(()).unwrap().into_parts().0;
            for host in hosts {
                parts.headers.append(header::HOST, HeaderValue::from_static(host));
            }
            entered.sends_on(&parts)
        };
        assert_eq!(sent("/a?b", &["a.test:80"]).unwrap(), "https://a.test:8443/a?b");
        assert_eq!(sent("http://b.test/c", &["a.test"]).unwrap(), "https://b.test:8443/c");
        assert_eq!(sent("/.well-known/acme-challenge/x", &["a.test"]), None);
        assert_eq!((sent("/", &[]), sent("/", &["a.test", "b.test"])), (None, None));
    }
}
