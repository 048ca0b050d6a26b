//! `[switch.tls.acme]` as written, with its defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Texts;

/// `[switch.tls.acme]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAcme {
    /// The hosts that are to have certificates, each one of its own. No wildcards. 1 to 1000. Required.
    #[schemars(example = ["example.org", "www.example.org"])]
    pub(crate) domains: Texts,
    /// Whether you agree to the authority's terms of service; it issues nothing otherwise. Must be true.
    pub(crate) agree_tos: bool,
    /// Whom the authority may write to: "mailto:NAME@HOST", or several.
    #[schemars(example = "mailto:ops@example.org")]
    pub(crate) contact: Texts,
    /// Where the account, the certificates and their keys are kept: a folder that the switch's user may write. Switches that share
    /// it share the certificates. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/lib/larder/acme")]
    pub(crate) store: Option<String>,
    /// How the authority is shown whose names these are: "http-01", asked at port 80 of each host, or "tls-alpn-01", at port 443.
    #[schemars(extend("enum" = ["http-01", "tls-alpn-01"]))]
    pub(crate) challenge: String,
    /// The authority's directory: a URL.
    pub(crate) directory: String,
    /// Whom to trust when the authority is asked: a file, PEM. Unset: whom the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/authority.pem")]
    pub(crate) ca: Option<String>,
}

impl Default for RawAcme {
    fn default() -> Self {
        Self {
            domains: Texts::default(),
            agree_tos: false,
            contact: Texts::default(),
            store: None,
            challenge: "http-01".to_owned(),
            directory: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            ca: None,
        }
    }
}
