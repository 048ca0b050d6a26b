//! What happens to a client's connection before its first request ([`larder_edge`]), and what its requests carry of it.
//!
//! | the connection | what an origin, peers and traces hear |
//! |---|---|
//! | a balancer has announced its client | the client, last in `X-Forwarded-For`; `client.address` |
//! | is with TLS | `X-Forwarded-Proto: https`; the client's certificate in `Client-Cert` |
//! | is without, where the node has TLS | `X-Forwarded-Proto: http` |
//!
//! One with TLS or an announced client stays here: keys do not move with a socket, and a socket's peer would be taken for the
//! client. What others have is relayed on it.

mod listeners;
mod view;

pub use listeners::Listeners;
pub use view::TlsView;

pub(crate) use listeners::Entry;

use crate::node::Node;
use crate::server::Arrived;
use crate::terms::Terms;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use larder_edge::{
    Announcers, CertificateFault, ClientIo, Tls, TlsConfig, Unannounced, WELL_KNOWN, client_cert,
    read_announcement, under_https,
};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");

/// What a node does with connections before their requests.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) tls: Option<Arc<Tls>>,
    announcers: Announcers,
    /// Whether requests without TLS are sent to the same with it.
    redirects: bool,
    /// The port of TLS, once the node listens.
    https_port: Arc<OnceLock<u16>>,
}

/// What is known of a connection before its first request.
#[derive(Debug, Default)]
pub(crate) struct Entered {
    /// The client that a balancer has announced.
    client: Option<HeaderValue>,
    /// `None` where the node has no TLS, and says nothing of it.
    scheme: Option<&'static str>,
    /// Its client and the node have agreed on HTTP/2.
    http2: bool,
    /// The client's own certificate, as it stands in `Client-Cert`.
    client_cert: Option<HeaderValue>,
    /// At this port its requests are to be made again, with TLS.
    https_port: Option<u16>,
}

impl Edge {
    /// Reads the certificates. Blocks on the disk.
    pub(crate) fn new(tls: Option<TlsConfig>, announcers: Announcers) -> Result<Self, CertificateFault> {
        let redirects = tls.as_ref().is_some_and(|tls| tls.redirect);
        let tls = tls.map(Tls::load).transpose()?;
        Ok(Self { tls: tls.map(Arc::new), announcers, redirects, https_port: Arc::default() })
    }

    /// What connections meet that come after a change. Where there is no TLS, or was none, that stays so: it would need sockets.
    pub(crate) fn successor(
        &self,
        tls: Option<TlsConfig>,
        announcers: Announcers,
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
        let scheme = self.tls.as_ref().map(|_| if entry == Entry::Secure { "https" } else { "http" });
        let https_port = self.https_port.get().copied().filter(|_| self.redirects && entry == Entry::Clear);
        Entered { scheme, https_port, ..Entered::default() }
    }
}

impl Node {
    /// Takes the announcement of a connection and shakes hands, where that is to be: both before the head may be late. `None`
    /// if nothing came of it, which is counted.
    pub(crate) async fn enter(&self, arrived: Arrived, entry: Entry, terms: &Terms) -> Option<Arrived> {
        let Terms { edge, limits, .. } = terms;
        let head_by = Instant::now() + limits.head_timeout;
        let Arrived { stream: ClientIo::Clear(mut tcp), .. } = arrived else { return Some(arrived) };
        let mut entered = edge.entered(entry);
        if entry != Entry::Handed {
            let peer = tcp.peer_addr().ok()?;
            if edge.announcers.trusts(peer.ip()) {
                match read_announcement(&mut tcp, peer, limits.head_timeout).await {
                    // One of the balancer's own, such as a check, names no client.
                    Ok((client, named)) => entered.client = named.and_then(|_| field(client)),
                    Err(why) => return self.unannounced(why),
                }
            }
        }
        let stream = if entry == Entry::Secure {
            let patience = head_by.saturating_duration_since(Instant::now());
            let secured = edge.tls.as_ref()?.accept(tcp, patience).await?;
            entered.http2 = secured.http2;
            entered.client_cert = secured.client.as_deref().and_then(client_cert);
            ClientIo::Secure(secured.stream)
        } else {
            ClientIo::Clear(tcp)
        };
        Some(Arrived { stream, entered: Some(Arc::new(entered)), head_by: Some(head_by), ..arrived })
    }

    fn unannounced(&self, why: Unannounced) -> Option<Arrived> {
        match why {
            Unannounced::Gone => {}
            Unannounced::Nonsense => self.counters.announcements_refused.add(1),
            Unannounced::TimedOut => self.counters.head_timeouts.add(1),
        }
        None
    }

    /// Looks at the files of the certificates in force now and then, for ever; returns where there is no TLS.
    pub(crate) async fn watch_certificates(self: Arc<Self>) {
        loop {
            let Some(tls) = self.terms().edge.tls.clone() else { return };
            tokio::select! {
                () = tls.watch() => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// How it stands with TLS; `None` where there is none.
    pub fn tls(&self) -> Option<TlsView> {
        self.terms().edge.tls.as_ref().map(|tls| TlsView::of(tls, &self.name))
    }
}

impl Entered {
    /// Whether the connection cannot go on elsewhere.
    pub(crate) fn stays(&self) -> bool {
        self.client.is_some() || self.scheme == Some("https")
    }

    /// Whether its requests come by HTTP/2.
    pub(crate) fn speaks_http2(&self) -> bool {
        self.http2
    }

    /// The client that a balancer has announced.
    pub(crate) fn client(&self) -> Option<&str> {
        self.client.as_ref().and_then(|client| client.to_str().ok())
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
        under_https(host, parts.uri.path_and_query()?.as_str().as_bytes(), port)
    }

    /// Says in a request what is known of its connection. What a client has put there goes, but for the list of those whom the
    /// request was forwarded for.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        if let Some(client) = &self.client {
            forwarded_for(headers, client);
        }
        let Some(scheme) = self.scheme else { return };
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
        headers.remove(CLIENT_CERT_CHAIN);
        match &self.client_cert {
            Some(certificate) => drop(headers.insert(CLIENT_CERT, certificate.clone())),
            None => drop(headers.remove(CLIENT_CERT)),
        }
    }
}

fn field(client: SocketAddr) -> Option<HeaderValue> {
    HeaderValue::try_from(client.ip().to_canonical().to_string()).ok()
}

/// Names a client last. A switch that announces clients has named it already.
fn forwarded_for(headers: &mut HeaderMap, client: &HeaderValue) {
    let mut list = Vec::new();
    for value in headers.get_all(X_FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    let last = list.strip_suffix(b", ").and_then(|list| list.rsplit(|byte| *byte == b',').next());
    if last.is_some_and(|last| last.trim_ascii() == client.as_bytes()) {
        return;
    }
    list.extend_from_slice(client.as_bytes());
    // Values that were valid one by one are valid as a list.
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(X_FORWARDED_FOR, list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(entered: &Entered, fields: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        entered.tell(&mut headers);
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        headers.iter().map(text).collect()
    }

    #[test]
    fn an_announced_client_is_named_last_and_once() {
        let entered = Entered { client: field(([192, 0, 2, 7], 1).into()), ..Entered::default() };
        for (before, after) in [
            (&[][..], "192.0.2.7"),
            (&["10.0.0.1"], "10.0.0.1, 192.0.2.7"),
            (&["10.0.0.1", "192.0.2.7"], "10.0.0.1,192.0.2.7"),
            (&["10.0.0.1,192.0.2.7"], "10.0.0.1,192.0.2.7"),
            (&["192.0.2.7, 10.0.0.1"], "192.0.2.7, 10.0.0.1, 192.0.2.7"),
            (&["2192.0.2.7"], "2192.0.2.7, 192.0.2.7"),
        ] {
            let fields: Vec<_> = before.iter().map(|value| ("x-forwarded-for", *value)).collect();
            let values: Vec<_> = told(&entered, &fields).into_iter().map(|(_, value)| value).collect();
            assert_eq!(values.join(","), after, "{before:?}");
        }
        assert!(entered.stays() && entered.client() == Some("192.0.2.7"));
    }

    #[test]
    fn what_a_client_says_of_tls_goes() {
        let lies = [("x-forwarded-proto", "https"), ("client-cert", ":AA==:"), ("client-cert-chain", "x")];
        let clear = Entered { scheme: Some("http"), ..Entered::default() };
        assert_eq!(told(&clear, &lies), [("x-forwarded-proto".to_owned(), "http".to_owned())]);
        assert!(!clear.stays());
        let client_cert = Some(HeaderValue::from_static(":AQ==:"));
        let secure = Entered { scheme: Some("https"), client_cert, ..Entered::default() };
        assert!(told(&secure, &lies).contains(&("client-cert".to_owned(), ":AQ==:".to_owned())));
        assert!(secure.stays());
        // Where the node has no TLS, what comes is as a switch before it has said.
        assert_eq!(told(&Entered::default(), &lies).len(), 3);
    }

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
