//! `[node.origin.tls]` as written, with its defaults.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Span;

/// `[node.origin.tls]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOriginTls {
    /// File with the certificates of the authorities that may sign the origin's, PEM. Unset: the authorities that the system
    /// trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/origin-ca.pem")]
    pub(crate) ca: Option<String>,
    /// The name that the origin is asked for (SNI) and that its certificate must be for: a host's, or an IP address. Unset: the host
    /// in the url.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "store.example.internal")]
    pub(crate) name: Option<String>,
    /// File with the node's own certificate and its chain, PEM, for an origin that asks for one (mutual TLS). Files are read at the
    /// start and at each reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/node.pem")]
    pub(crate) certificate: Option<String>,
    /// File with its key, PEM. Unset: the key is in the certificate's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/node.key")]
    pub(crate) key: Option<String>,
    /// Time from a connection to the end of its handshake; 504 after it. 1ms to 1h.
    pub(crate) handshake_timeout: Span,
    /// Offer HTTP/2 to the origin (ALPN), with host = "origin". GET, HEAD and the like then share one connection; POST, PATCH and
    /// requests with a body use HTTP/1.1.
    pub(crate) http2: bool,
}

impl Default for RawOriginTls {
    fn default() -> Self {
        let handshake_timeout = Span(Duration::from_secs(5));
        Self { ca: None, name: None, certificate: None, key: None, handshake_timeout, http2: false }
    }
}
