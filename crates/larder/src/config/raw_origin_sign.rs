//! `[node.origin.sign]` as written, with its defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Texts;

/// `[node.origin.sign]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOriginSign {
    /// The store's region. Required; many stores other than Amazon's take "us-east-1".
    #[schemars(example = "eu-central-1")]
    pub(crate) region: String,
    /// The service that signatures are for.
    pub(crate) service: String,
    /// The id of the access key. Unset: the environment variable AWS_ACCESS_KEY_ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"AKIAIOSFODNN7EXAMPLE")]
    pub(crate) access_key: Option<String>,
    /// File with the secret key, which only its owner may read. Files are read at the start and at each reload. Unset: the
    /// environment variable AWS_SECRET_ACCESS_KEY.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/store-secret-key")]
    pub(crate) secret_key_file: Option<String>,
    /// File with the session token of temporary keys. Unset: none, or AWS_SESSION_TOKEN if both keys are from the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/store-session-token")]
    pub(crate) session_token_file: Option<String>,
    /// Methods of requests that are signed; others get 405. Whoever reaches the node has the rights of the keys: with PUT, POST or
    /// DELETE in the list, anyone can write.
    pub(crate) methods: Texts,
}

impl Default for RawOriginSign {
    fn default() -> Self {
        Self {
            region: String::new(),
            service: "s3".to_owned(),
            access_key: None,
            secret_key_file: None,
            session_token_file: None,
            methods: Texts(["GET", "HEAD", "OPTIONS"].map(str::to_owned).to_vec()),
        }
    }
}
