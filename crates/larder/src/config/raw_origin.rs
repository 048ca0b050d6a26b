//! `[node.origin]` as written, with its defaults.

use http::Uri;
use larder_core::Bytes;
use larder_node::OriginConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span};

/// `[node.origin]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOrigin {
    /// Where it is: "http://host:port".
    #[schemars(example = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Which Host it is sent: "client", the one that the client named (hosts are then cached apart), or "origin",
    /// the one in the URL.
    #[schemars(extend("enum" = ["client", "origin"]))]
    pub(crate) host: String,
    /// Time to a connection; 504 after it. 1ms to 1h.
    pub(crate) connect_timeout: Span,
    /// Time from a request to the head of the reply; 504 after it. 1ms to 1h.
    pub(crate) head_timeout: Span,
    /// Time without a byte of a reply's body; the reply is broken off after it. 1ms to 1h.
    pub(crate) body_timeout: Span,
    /// Requests to it at one time; 503 beyond. 1 to 1000000.
    pub(crate) requests_max: usize,
    /// Idle connections kept to it. At most 10000.
    pub(crate) idle_max: usize,
    /// Time an idle connection is kept. 1ms to 1d.
    pub(crate) idle_timeout: Span,
    /// Bytes of a reply's head; 502 beyond. 8KiB to 1MiB.
    pub(crate) head_max: Size,
    /// Header fields of a reply; 502 beyond. 8 to 1000.
    pub(crate) headers_max: usize,
    /// Replies to one target kept beside each other for different request headers (Vary). 1 to 64.
    pub(crate) variants_max: usize,
    /// Lifetime of replies 404 and 410 that state none; "0s": they are not kept. At most 1d.
    pub(crate) negative: Span,
    /// Time a stale reply may stand in for an origin that fails, where the reply states none. At most 30d.
    pub(crate) stale_if_error: Span,
}

impl Default for RawOrigin {
    fn default() -> Self {
        let origin = OriginConfig::new(Uri::default());
        Self {
            url: String::new(),
            host: "client".to_owned(),
            connect_timeout: Span(origin.connect_timeout),
            head_timeout: Span(origin.head_timeout),
            body_timeout: Span(origin.body_timeout),
            requests_max: origin.requests_max,
            idle_max: origin.idle_max,
            idle_timeout: Span(origin.idle_timeout),
            head_max: Size(Bytes(origin.head_bytes_max as u64)),
            headers_max: origin.headers_max,
            variants_max: origin.variants_max,
            negative: Span(origin.negative),
            stale_if_error: Span(origin.stale_if_error),
        }
    }
}
