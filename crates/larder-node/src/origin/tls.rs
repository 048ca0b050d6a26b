//! TLS to the origin, and why a handshake fails.

use larder_edge::LoadedTls;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as TlsError, InvalidMessage, PeerIncompatible,
};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// TLS to an origin.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginTls {
    /// The authorities and the node's own certificate, read from their files.
    pub files: Arc<LoadedTls>,
    /// Time from a connection to the end of its handshake; 504 after it. 1 ms to 1 h, default 5 s.
    pub handshake_timeout: Duration,
    /// Whether HTTP/2 is offered (ALPN). Default false.
    pub http2: bool,
}

impl OriginTls {
    /// The defaults.
    pub fn new(files: LoadedTls) -> Self {
        Self { files: Arc::new(files), handshake_timeout: Duration::from_secs(5), http2: false }
    }

    /// For connections that may be for HTTP/2 if the origin is offered it.
    pub(super) fn client_for(&self, http2: bool) -> Arc<ClientConfig> {
        let mut client = self.files.client.clone();
        let protocols: &[&[u8]] = if http2 && self.http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(client)
    }
}

/// Why a handshake with the origin failed. The text says what the operator can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TlsFault {
    #[error(
        "no trusted authority has signed the origin's certificate (name its authority's file in origin.tls.ca)"
    )]
    UnknownIssuer,
    #[error(
        "the origin's certificate is for another name (origin.tls.name sets the name that it must be for)"
    )]
    NameMismatch,
    #[error("the origin's certificate has expired, or this host's clock is wrong")]
    Expired,
    #[error("the origin's certificate is not valid yet, or this host's clock is wrong")]
    NotYetValid,
    #[error("the origin shows the certificate of an authority (it needs one that its authority has signed)")]
    AuthorityAsServer,
    #[error("the origin's host is not a name that a certificate can be for (set origin.tls.name)")]
    Name,
    #[error("the origin did not finish the handshake in time (origin.tls.handshake_timeout)")]
    Timeout,
    #[error("the origin does not speak TLS on this port (is its url http:// or another port?)")]
    NotTls,
    #[error("the origin wants a certificate of the node (origin.tls.certificate)")]
    CertificateRequired,
    #[error("the origin speaks none of the protocols that the node offers")]
    NoProtocol,
    #[error("the origin closed the connection during the handshake")]
    Closed,
    #[error("{0}")]
    Other(String),
}

impl TlsFault {
    pub(super) fn of(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(error) => Self::of_tls(error),
            None if is_closed(error) => Self::Closed,
            None => Self::Other(error.to_string()),
        }
    }

    pub(super) fn of_tls(error: &TlsError) -> Self {
        match error {
            TlsError::InvalidCertificate(error) => Self::of_certificate(error),
            TlsError::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::MessageTooLarge
                | InvalidMessage::InvalidEmptyPayload
                | InvalidMessage::UnknownProtocolVersion,
            ) => Self::NotTls,
            TlsError::AlertReceived(AlertDescription::CertificateRequired) => Self::CertificateRequired,
            TlsError::NoApplicationProtocol
            | TlsError::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::NoProtocol,
            TlsError::PeerIncompatible(why @ PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
                Self::Other(format!("the origin's TLS is too old: {why:?}"))
            }
            other => Self::Other(other.to_string()),
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            // An authority of the right name with another key has signed it.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::NameMismatch
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            // rustls has no variant for this error of webpki, and hides its type.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                Self::AuthorityAsServer
            }
            other => Self::Other(other.to_string()),
        }
    }

    /// The word for logs.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::UnknownIssuer => "unknown-issuer",
            Self::NameMismatch => "name-mismatch",
            Self::Expired => "expired",
            Self::NotYetValid => "not-yet-valid",
            Self::AuthorityAsServer => "ca-as-end-entity",
            Self::Name => "no-name",
            Self::Timeout => "handshake-timeout",
            Self::NotTls => "not-tls",
            Self::CertificateRequired => "certificate-required",
            Self::NoProtocol => "no-protocol",
            Self::Closed => "closed",
            Self::Other(_) => "other",
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_edge::OutboundTls;
    use larder_testkit::{Authority, acceptor};
    use std::path::Path;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio_rustls::TlsConnector;

    async fn fault(trusted: &Path, serve: impl AsyncFnOnce(DuplexStream)) -> TlsFault {
        let files = OutboundTls { authorities: Some(trusted.to_owned()), ..OutboundTls::default() };
        let tls = OriginTls::new(files.load().unwrap());
        let (near, far) = duplex(1 << 16);
        let connector = TlsConnector::from(tls.client_for(false));
        let name = tls.files.server_name("store.test").unwrap();
        let (failed, ()) = tokio::join!(
            async {
                let mut stream = connector.connect(name, near).await?;
                // The refusal of a client's certificate comes after the handshake.
                stream.read_u8().await.map(drop)
            },
            serve(far)
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
            (other.leaf("store.test", false), None, http1, "unknown-issuer"),
            (authority.leaf("other.test", false), None, http1, "name-mismatch"),
            (authority.leaf("store.test", true), None, http1, "expired"),
            (later, None, http1, "not-yet-valid"),
            (as_server, None, http1, "ca-as-end-entity"),
            (authority.leaf("store.test", false), Some(other.ca()), http1, "certificate-required"),
            (authority.leaf("store.test", false), None, &[b"h2"], "no-protocol"),
        ] {
            let tls = acceptor(&certificate, clients.as_deref(), protocols);
            let fault = fault(&authority.ca(), async |far| drop(tls.accept(far).await)).await;
            assert_eq!(fault.reason(), reason, "{fault:?}");
        }
        let plain = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        let spoken = async |mut far: DuplexStream| far.write_all(plain).await.unwrap();
        assert_eq!(fault(&authority.ca(), spoken).await, TlsFault::NotTls);
        assert_eq!(fault(&authority.ca(), async |far| drop(far)).await, TlsFault::Closed);
    }
}
