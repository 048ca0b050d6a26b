//! `[switch.guard]` and `guard` of `[[switch.routes]]`, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Texts};

/// `guard`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawGuard {
    /// Networks whose clients may make requests; others get 403. The client is the sender of the connection; behind a relay of
    /// switch.trusted_relays, the last address in X-Forwarded-For that is not a trusted relay's. []: all.
    #[schemars(example = ["10.0.0.0/8", "2001:db8::/32"])]
    pub(crate) allow: Texts,
    /// Networks whose clients get 403, even if `allow` has them.
    #[schemars(example = ["10.66.0.0/16"])]
    pub(crate) deny: Texts,
    /// File of accounts, a line NAME:HASH each, as `htpasswd -B` writes it (bcrypt), or with a hash of `openssl passwd -6`. Requests
    /// without a name and its password (HTTP basic authentication) get 401. It is read again at a reload. Unset: no password.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/etc/larder/users")]
    pub(crate) users: Option<String>,
    /// Name of the protected space, which browsers show when they ask for the password. Printable ASCII without quotes and backslashes.
    pub(crate) realm: String,
    /// Whether nodes see Authorization. false: it is removed once it has been checked, so that nodes may answer from their caches.
    pub(crate) pass_authorization: bool,
    /// The largest body of a request; larger ones get 413. Unset: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"10MiB")]
    pub(crate) body_max: Option<Size>,
}

impl Default for RawGuard {
    fn default() -> Self {
        Self {
            allow: Texts::default(),
            deny: Texts::default(),
            users: None,
            realm: "larder".to_owned(),
            pass_authorization: false,
            body_max: None,
        }
    }
}
