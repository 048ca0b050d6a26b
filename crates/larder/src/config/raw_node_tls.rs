//! `[node.tls]` as written, with its defaults: the keys of [`RawTls`] that a node has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_tls::RawTls;
use super::text::{Span, Texts};

/// `[node.tls]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNodeTls {
    /// Where clients connect with TLS: one "address:port" or a list. Required.
    #[schemars(example = "0.0.0.0:443")]
    pub(crate) listen: Texts,
    /// Certificates with their chains and keys, PEM, as in [switch.tls]. Required.
    #[schemars(example = "/etc/larder/tls")]
    pub(crate) certificates: Texts,
    /// Time from one look at the files to the next. 1s to 24h.
    pub(crate) reload: Span,
    /// The oldest version of TLS spoken: "1.2" or "1.3".
    #[schemars(extend("enum" = ["1.2", "1.3"]))]
    pub(crate) min_version: String,
    /// Whether HTTP/2 is offered.
    pub(crate) http2: bool,
    /// Whether clients are asked for certificates of their own: "off", "optional" or "required". What is shown goes to an origin
    /// in Client-Cert (RFC 9440).
    #[schemars(extend("enum" = ["off", "optional", "required"]))]
    pub(crate) client_certificates: String,
    /// The authorities whose certificates clients may show: a file, PEM. Needed unless client_certificates is "off".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/clients.pem")]
    pub(crate) client_ca: Option<String>,
    /// Whether requests that come without TLS are sent to the same under https (308), except challenges of ACME and the node's
    /// own paths.
    pub(crate) redirect: bool,
}

impl Default for RawNodeTls {
    fn default() -> Self {
        let RawTls {
            listen,
            certificates,
            reload,
            min_version,
            http2,
            client_certificates,
            client_ca,
            redirect,
            ..
        } = RawTls::default();
        Self { listen, certificates, reload, min_version, http2, client_certificates, client_ca, redirect }
    }
}

impl RawNodeTls {
    /// The same, as a switch would have it.
    pub(super) fn as_switch(&self) -> RawTls {
        let Self {
            listen,
            certificates,
            reload,
            min_version,
            http2,
            client_certificates,
            client_ca,
            redirect,
        } = self.clone();
        let own = RawTls { listen, certificates, reload, min_version, ..RawTls::default() };
        RawTls { http2, client_certificates, client_ca, redirect, ..own }
    }
}
