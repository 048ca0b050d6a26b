//! `[node.origin]` as written, with its defaults.

use std::collections::BTreeMap;

use http::Uri;
use larder_core::Bytes;
use larder_node::OriginConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_origin_failover::RawOriginFailover;
use super::raw_origin_field::RawOriginField;
use super::raw_origin_sign::RawOriginSign;
use super::raw_origin_tls::RawOriginTls;
use super::text::{Size, Span};

/// `[node.origin]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOrigin {
    /// The origin's address: "http://host:port" or "https://host:port".
    #[schemars(example = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Which Host it is sent: "client", the one that the client named (hosts are then cached apart), or "origin",
    /// the one in the URL.
    #[schemars(extend("enum" = ["client", "origin"]))]
    pub(crate) host: String,
    /// Header fields that each request to it has, in place of a client's: a value each, or { file = "FILE" } with the value in a file
    /// that only its owner may read, such as a token. Files are read at the start and at each reload.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(example = example_headers())]
    pub(crate) headers: BTreeMap<String, RawOriginField>,
    /// Time to a connection; 504 after it. 1ms to 1h.
    pub(crate) connect_timeout: Span,
    /// Time from a request to the head of the reply; 504 after it. 1ms to 1h.
    pub(crate) head_timeout: Span,
    /// Time without a byte of a reply's body; the reply is broken off after it. Also time in which the origin takes no byte of a
    /// request; 504 after it. 1ms to 1h.
    pub(crate) body_timeout: Span,
    /// Time without a byte of a request's body from its client; 408 after it. 1ms to 1h.
    pub(crate) request_body_timeout: Span,
    /// Bytes a second of a body, in either direction, over the time that its sender may be silent; outcomes as for silence. At
    /// most 1GiB; "0B": any.
    pub(crate) body_rate_min: Size,
    /// Time that a reply for one client, such as a stream of events, may be slower than body_rate_min; it is broken off after it.
    /// body_timeout to 1d.
    pub(crate) stream_timeout: Span,
    /// Requests to it at one time: its slots. 1 to 1000000.
    pub(crate) requests_max: usize,
    /// Percent of the slots that one client may hold, at least one; further requests of the client wait, and get 429 after
    /// queue_timeout. 1 to 100; 100: no share.
    pub(crate) client_share: u8,
    /// Leading bits of an address of IPv4 that are one client's. 8 to 32.
    pub(crate) prefix_v4: u8,
    /// Leading bits of an address of IPv6 that are one client's. 16 to 128.
    pub(crate) prefix_v6: u8,
    /// Requests that wait for a slot, of which one client may have its share; 503 or 429 beyond. At most 1000000.
    pub(crate) queue_max: usize,
    /// Time that a request waits for a slot; 503 after it, or 429 if only its client has no slot left. 1ms to 1h.
    pub(crate) queue_timeout: Span,
    /// WebSocket connections through the node; 503 beyond, or 429 for a client that has client_share percent of them. At most
    /// 1000000; 0: none, and Upgrade is removed.
    pub(crate) tunnels_max: usize,
    /// Time without a byte on a WebSocket connection, after which it is closed. 1ms to 7d.
    pub(crate) tunnel_idle_timeout: Span,
    /// Whether no-cache, no-store, max-age, min-fresh and Pragma of clients have the origin asked for what is stored and fresh:
    /// "honour" or "ignore".
    #[schemars(extend("enum" = ["honour", "ignore"]))]
    pub(crate) client_no_cache: String,
    /// Idle connections kept to it. POST, PATCH and requests with a body get a connection of their own. At most 10000.
    pub(crate) idle_max: usize,
    /// Time an idle connection is kept. 1ms to 1d.
    pub(crate) idle_timeout: Span,
    /// Bytes of a reply's head; 502 beyond. 8KiB to 1MiB.
    pub(crate) head_max: Size,
    /// Header fields of a reply; 502 beyond. 8 to 256.
    pub(crate) headers_max: usize,
    /// Fetch the whole of a target after a range of it that was not stored, so that the next range is a hit. With false, ranges alone
    /// never fill the cache.
    pub(crate) range_fill: bool,
    /// Replies to one target kept beside each other for different request headers (Vary). 1 to 64.
    pub(crate) variants_max: usize,
    /// Lifetime of replies 404 and 410 that state none; "0s": they are not kept. At most 1d.
    pub(crate) negative: Span,
    /// Time a stale reply may stand in for an origin that fails, where the reply states none. At most 30d.
    pub(crate) stale_if_error: Span,
    /// Origins that stand in for this one when it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failover: Option<RawOriginFailover>,
    /// Signatures for a private bucket (AWS Signature Version 4). A client's signature is replaced, so whoever reaches the node has
    /// the rights of these keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sign: Option<RawOriginSign>,
    /// TLS to an origin whose url is https://.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<RawOriginTls>,
}

fn example_headers() -> serde_json::Value {
    serde_json::json!({ "Authorization": { "file": "/etc/larder/origin-token" }, "X-Tier": "cache" })
}

impl Default for RawOrigin {
    fn default() -> Self {
        let origin = OriginConfig::new(Uri::default());
        Self {
            url: String::new(),
            host: "client".to_owned(),
            headers: BTreeMap::new(),
            connect_timeout: Span(origin.connect_timeout),
            head_timeout: Span(origin.head_timeout),
            body_timeout: Span(origin.body_timeout),
            request_body_timeout: Span(origin.request_body_timeout),
            body_rate_min: Size(Bytes(origin.body_rate_min)),
            stream_timeout: Span(origin.stream_timeout),
            requests_max: origin.requests_max,
            client_share: origin.client_share,
            prefix_v4: origin.prefix_v4,
            prefix_v6: origin.prefix_v6,
            queue_max: origin.queue_max,
            queue_timeout: Span(origin.queue_timeout),
            tunnels_max: origin.tunnels_max,
            tunnel_idle_timeout: Span(origin.tunnel_idle_timeout),
            client_no_cache: "honour".to_owned(),
            idle_max: origin.idle_max,
            idle_timeout: Span(origin.idle_timeout),
            head_max: Size(Bytes(origin.head_bytes_max as u64)),
            headers_max: origin.headers_max,
            range_fill: origin.range_fill,
            variants_max: origin.variants_max,
            negative: Span(origin.negative),
            stale_if_error: Span(origin.stale_if_error),
            failover: None,
            sign: None,
            tls: None,
        }
    }
}
