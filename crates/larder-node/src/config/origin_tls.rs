//! Settings of TLS to an origin.

use larder_edge::LoadedTls;
use rustls::ClientConfig;
use std::sync::Arc;
use std::time::Duration;

/// TLS to an origin.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginTls {
    /// The trusted authorities and the node's own certificate, loaded from files.
    pub files: Arc<LoadedTls>,
    /// Time for the TLS handshake; 504 beyond. 1 ms to 1 h, default 5 s.
    pub handshake_timeout: Duration,
    /// Whether HTTP/2 is offered (ALPN). Default false.
    pub http2: bool,
}

impl OriginTls {
    /// Creates the default settings.
    pub fn new(files: LoadedTls) -> Self {
        Self { files: Arc::new(files), handshake_timeout: Duration::from_secs(5), http2: false }
    }

    /// Returns the client settings for connections. With `http2`, HTTP/2 is offered if the settings allow it.
    pub(crate) fn client_for(&self, http2: bool) -> Arc<ClientConfig> {
        let mut client = self.files.client.clone();
        let protocols: &[&[u8]] = if http2 && self.http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_edge::{OutboundTls, TlsFault};
    use larder_testkit::{Authority, acceptor};
    use std::path::Path;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio_rustls::TlsConnector;

    async fn fault(trusted: &Path, serve: impl AsyncFnOnce(DuplexStream)) -> TlsFault {
        let files = OutboundTls { authorities: Some(trusted.to_owned()), ..OutboundTls::default() };
        let tls = OriginTls::new(files.load().unwrap());
        let (client_side, server_side) = duplex(1 << 16);
        let connector = TlsConnector::from(tls.client_for(false));
        let name = tls.files.server_name("store.test").unwrap();
        let (failed, ()) = tokio::join!(
            async {
                let mut stream = connector.connect(name, client_side).await?;
                // The origin refuses the client's certificate after the handshake.
                stream.read_u8().await.map(drop)
            },
            serve(server_side)
        );
        TlsFault::of(&failed.unwrap_err())
    }

    #[tokio::test]
    async fn each_failure_is_named() {
        let (authority, other) = (Authority::new(), Authority::new());
        let as_server = authority.leaf_with("store.test", "ca-as-server.pem", |params| {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        });
        let later = authority.leaf_with("store.test", "later.pem", |params| {
            params.not_before = rcgen::date_time_ymd(4_000, 1, 1);
            params.not_after = rcgen::date_time_ymd(4_001, 1, 1);
        });
        let http1: &[&[u8]] = &[b"http/1.1"];
        for (certificate, clients, protocols, reason) in [
            (other.leaf("store.test"), None, http1, "unknown-issuer"),
            (authority.leaf("other.test"), None, http1, "name-mismatch"),
            (authority.expired_leaf("store.test"), None, http1, "expired"),
            (later, None, http1, "not-yet-valid"),
            (as_server, None, http1, "ca-as-end-entity"),
            (authority.leaf("store.test"), Some(other.ca()), http1, "certificate-required"),
            (authority.leaf("store.test"), None, &[b"h2"], "no-protocol"),
        ] {
            let tls = acceptor(&certificate, clients.as_deref(), protocols);
            let fault = fault(&authority.ca(), async |server_side| drop(tls.accept(server_side).await)).await;
            assert_eq!(fault.reason(), reason, "{fault:?}");
        }
        let plain = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        let send_plain = async |mut server_side: DuplexStream| server_side.write_all(plain).await.unwrap();
        assert_eq!(fault(&authority.ca(), send_plain).await, TlsFault::NotTls);
        assert_eq!(fault(&authority.ca(), async |server_side| drop(server_side)).await, TlsFault::Closed);
    }
}
