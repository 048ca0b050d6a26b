//! Reasons why a handshake with a server failed, for logs and people.

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage, PeerIncompatible};
use std::io;
use std::time::{Duration, SystemTime};

/// Maximum number of a certificate's names in a message.
const NAMES_MAX: usize = 5;

/// Reason why a handshake with a server failed. The text contains the TLS setting that is probably wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// No trusted authority has signed the certificate.
    #[error(
        "no trusted authority has signed the server's certificate (set `ca` to the file of its authority)"
    )]
    UnknownIssuer,
    /// The certificate is for other names; contains those that are known.
    #[error("the server's certificate is for another name (set `name` to the expected name)")]
    NameMismatch(Vec<String>),
    /// The certificate has expired; contains the time if it is known.
    #[error("the server's certificate has expired, or this host's clock is wrong")]
    Expired(Option<SystemTime>),
    /// The certificate is not valid yet; contains the time if it is known.
    #[error("the server's certificate is not valid yet, or this host's clock is wrong")]
    NotYetValid(Option<SystemTime>),
    /// The certificate is that of an authority.
    #[error(
        "the server sent the certificate of an authority (it needs a certificate that its authority has signed)"
    )]
    AuthorityAsServer,
    /// The server's host is not a name that a certificate can have.
    #[error("no certificate can be issued for the server's host (set `name`)")]
    Name,
    /// The handshake took too long.
    #[error("the server did not finish the handshake in time")]
    Timeout,
    /// The server does not use TLS.
    #[error("the server does not speak TLS on this port (check its address and port)")]
    NotTls,
    /// The server requires a client certificate.
    #[error("the server requires a client certificate (set `certificate`)")]
    CertificateRequired,
    /// The server supports none of the offered protocols (ALPN).
    #[error("the server supports none of the offered protocols (ALPN)")]
    NoProtocol,
    /// The connection ended.
    #[error("the server closed the connection during the handshake")]
    Closed,
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl TlsFault {
    /// Returns the reason for an error during a handshake, or in the first bytes after it.
    pub fn of(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(error) => Self::of_tls(error),
            None if is_closed(error) => Self::Closed,
            None => Self::Other(error.to_string()),
        }
    }

    /// Returns the reason for an error of rustls.
    pub fn of_tls(error: &TlsError) -> Self {
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
                Self::Other(format!("the server's TLS is too old: {why:?}"))
            }
            other => Self::Other(other.to_string()),
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            // `BadSignature`: signed by an authority with the same name and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName => Self::NameMismatch(Vec::new()),
            CertificateError::NotValidForNameContext { presented, .. } => {
                Self::NameMismatch(presented.iter().take(NAMES_MAX).map(|name| plain(name)).collect())
            }
            CertificateError::Expired => Self::Expired(None),
            CertificateError::ExpiredContext { not_after, .. } => Self::Expired(time(*not_after)),
            CertificateError::NotValidYet => Self::NotYetValid(None),
            CertificateError::NotValidYetContext { not_before, .. } => Self::NotYetValid(time(*not_before)),
            // rustls has no variant for this error of webpki, and hides its type.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                Self::AuthorityAsServer
            }
            other => Self::Other(other.to_string()),
        }
    }

    /// Returns the keyword for logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::UnknownIssuer => "unknown-issuer",
            Self::NameMismatch(_) => "name-mismatch",
            Self::Expired(_) => "expired",
            Self::NotYetValid(_) => "not-yet-valid",
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

/// Converts `DnsName("a.test")`, as webpki formats it, to `a.test`.
fn plain(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').escape_debug().to_string()
}

fn time(at: UnixTime) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at.as_secs()))
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_without_their_kind() {
        for (name, plain) in [
            ("DnsName(\"a.test\")", "a.test"),
            ("IpAddress(127.0.0.1)", "127.0.0.1"),
            ("a.test", "a.test"),
            ("DnsName(\"a\u{1b}\")", "a\\u{1b}"),
        ] {
            assert_eq!(super::plain(name), plain);
        }
    }

    #[test]
    fn closed_connection_has_its_own_reason() {
        let of = |kind: io::ErrorKind| TlsFault::of(&kind.into());
        assert_eq!(of(io::ErrorKind::UnexpectedEof), TlsFault::Closed);
        assert_eq!(of(io::ErrorKind::Other).reason(), "other");
    }
}
