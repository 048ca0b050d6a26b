//! `[switch.tls]` as written, with its defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_acme::RawAcme;
use super::text::{Span, Texts};

/// `[switch.tls]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    /// Where clients connect with TLS: one "address:port" or a list. Required.
    #[schemars(example = "0.0.0.0:443")]
    pub(crate) listen: Texts,
    /// Certificates with their chains and keys, PEM: files that hold both, FILE.crt beside FILE.key, folders of such files, and
    /// folders of certbot. Which one a client is shown goes by the host that it names; the first is for those that name none.
    /// Required, unless there is [switch.tls.acme].
    #[schemars(example = "/etc/larder/tls")]
    pub(crate) certificates: Texts,
    /// Time from one look at the files to the next: what has changed is taken for new connections, and what makes no sense
    /// changes nothing. 1s to 24h.
    pub(crate) reload: Span,
    /// The oldest version of TLS spoken: "1.2" or "1.3".
    #[schemars(extend("enum" = ["1.2", "1.3"]))]
    pub(crate) min_version: String,
    /// Whether HTTP/2 is offered.
    pub(crate) http2: bool,
    /// Whether clients are asked for certificates of their own: "off", "optional" or "required". What is shown goes to the nodes
    /// in Client-Cert (RFC 9440).
    #[schemars(extend("enum" = ["off", "optional", "required"]))]
    pub(crate) client_certificates: String,
    /// The authorities whose certificates clients may show: a file, PEM. Needed unless client_certificates is "off".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/clients.pem")]
    pub(crate) client_ca: Option<String>,
    /// Whether requests that come without TLS are sent to the same under https (308), except challenges of ACME.
    pub(crate) redirect: bool,
    /// Certificates from an authority by ACME, such as Let's Encrypt, ordered and renewed while the switch serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) acme: Option<RawAcme>,
}

impl Default for RawTls {
    fn default() -> Self {
        Self {
            listen: Texts::default(),
            certificates: Texts::default(),
            reload: Span(std::time::Duration::from_secs(60)),
            min_version: "1.2".to_owned(),
            http2: true,
            client_certificates: "off".to_owned(),
            client_ca: None,
            redirect: false,
            acme: None,
        }
    }
}
