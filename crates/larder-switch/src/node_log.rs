//! Log lines about requests that fail at a node, with cause and remedy.

use crate::failure::Failure;
use larder_log::LogLimiter;
use std::error::Error as StdError;
use std::sync::Arc;

/// Failures whose cause is the node.
const FAILURES: [Failure; 6] = [
    Failure::ConnectFailed,
    Failure::ConnectTimeout,
    Failure::NodeTls,
    Failure::NodeTimeout,
    Failure::NodeClosed,
    Failure::BadReply,
];

/// Log lines of one node, each kind at most once every 10 s.
#[derive(Debug)]
pub(crate) struct NodeLog {
    node: Arc<str>,
    http2: bool,
    lines: [LogLimiter; FAILURES.len()],
}

impl NodeLog {
    /// Creates the log of a node. `http2` tells whether its requests use HTTP/2.
    pub(crate) fn new(node: &Arc<str>, http2: bool) -> Self {
        Self { node: node.clone(), http2, lines: Default::default() }
    }

    /// Logs a failed request. `cause` returns the reason as text.
    pub(crate) fn failed(&self, failure: Failure, cause: impl FnOnce() -> String) {
        let Some(place) = FAILURES.iter().position(|known| *known == failure) else { return };
        let Some(times) = self.lines[place].due() else { return };
        let error = cause();
        let hint = remedy(failure, &error, self.http2);
        tracing::warn!(
            node = &*self.node,
            failure = failure.name(),
            error,
            times,
            hint,
            "node: requests fail"
        );
    }
}

/// Returns the innermost cause of an error.
pub(crate) fn root_cause(mut error: &(dyn StdError + 'static)) -> String {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

/// Returns the remedy for a failure.
fn remedy(failure: Failure, error: &str, http2: bool) -> &'static str {
    match failure {
        Failure::BadReply if http2 => {
            "does the server speak HTTP/2? if not, remove http2 from its entry in switch.nodes"
        }
        Failure::ConnectFailed => "is the server running, and is its address in switch.nodes right?",
        Failure::ConnectTimeout => {
            "is the server reachable from here, and if TLS is on, does it speak TLS on this port? \
             if it is only slow, raise switch.timeouts.connect"
        }
        Failure::NodeTls => tls_remedy(error),
        Failure::NodeTimeout => {
            "the server did not send or take data in time; if it may take longer, raise switch.timeouts.node_read"
        }
        Failure::NodeClosed => {
            "the server closed the connection before its reply was complete; its log may say why. \
             If it speaks TLS on this port, set switch.connect.tls"
        }
        _ => "does the server speak HTTP on this port?",
    }
}

/// Returns the remedy for a failed TLS handshake, by rustls' error text.
fn tls_remedy(error: &str) -> &'static str {
    const HINTS: [(&[&str], &str); 8] = [
        (
            &["CaUsedAsEndEntity"],
            "the server shows the certificate of an authority (CA:TRUE), which may not identify a server; give it one with \
             CA:FALSE (openssl req -x509 ... -addext basicConstraints=critical,CA:FALSE) or one that the authority has issued",
        ),
        (
            &["UnknownIssuer"],
            "write the file with the certificate of the server's authority, or with its own, into switch.connect.tls.ca",
        ),
        (
            &["NotValidForName", "not valid for name"],
            "the certificate is for other names: write one of them into switch.connect.tls.name, or give the server a \
             certificate for its address",
        ),
        (
            &["Expired", "certificate expired"],
            "renew the server's certificate, or correct this machine's clock",
        ),
        (&["NotValidYet", "not valid yet"], "check the clocks of both machines, or wait"),
        (
            &["CertificateRequired"],
            "the server asks for a certificate: write the switch's into switch.connect.tls.certificate",
        ),
        (
            &["InvalidContentType", "corrupt message"],
            "the server speaks no TLS on this port: correct the port, or set tls = false for the node",
        ),
        (
            &["PeerIncompatible", "ProtocolVersion", "HandshakeFailure"],
            "the server and the switch have no version or cipher of TLS in common: let the server speak TLS 1.2 or 1.3",
        ),
    ];
    let known = |words: &[&str]| words.iter().any(|word| error.contains(word));
    let hint = HINTS.iter().find(|(words, _)| known(words)).map(|(_, hint)| *hint);
    hint.unwrap_or("compare the TLS versions and certificates of the server with switch.connect.tls")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_failure_has_a_remedy() {
        for failure in FAILURES {
            for http2 in [false, true] {
                let hint = remedy(failure, "unknown", http2);
                let names = match failure {
                    Failure::ConnectFailed => "switch.nodes",
                    Failure::ConnectTimeout => "switch.timeouts.connect",
                    Failure::NodeTls | Failure::NodeClosed => "switch.connect.tls",
                    Failure::NodeTimeout => "switch.timeouts.node_read",
                    Failure::BadReply if http2 => "switch.nodes",
                    _ => "server",
                };
                assert!(hint.contains(names), "{failure}: {hint}");
            }
        }
    }

    #[test]
    fn rustls_errors_have_remedies() {
        use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
        for (error, says) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "switch.connect.tls.ca"),
            (Error::InvalidCertificate(CertificateError::NotValidForName), "switch.connect.tls.name"),
            (Error::InvalidCertificate(CertificateError::Expired), "renew"),
            (Error::InvalidCertificate(CertificateError::NotValidYet), "clocks"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "switch.connect.tls.certificate"),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "in common"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "tls = false"),
            (Error::DecryptError, "compare the TLS versions"),
        ] {
            let hint = tls_remedy(&error.to_string());
            assert!(hint.contains(says), "{error}: {hint}");
        }
        assert!(
            tls_remedy("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))").contains("CA:FALSE")
        );
    }
}
