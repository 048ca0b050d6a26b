//! What is done to requests and replies beside sending them on, as written: `request_headers`, `reply_headers`,
//! `redirect`, `respond`, `rewrite`,
//! `sticky`, `compress` and `hedge` of `[[switch.routes]]`; the first two, the last three and `request_id` of `[switch]`.

use std::collections::BTreeMap;

use larder_core::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span, Texts};

/// `request_headers` and `reply_headers`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHeaders {
    /// Fields that are taken out, first of all: names, or beginnings of names with "*" behind them.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["x-debug", "x-internal-*"])]
    pub(crate) remove: Texts,
    /// Fields that are there once, with this value; one that comes to nothing leaves none. Parts in values: {client}
    /// {client_port} {method} {scheme} {host} {host_name} {path} {query} {header:name} {cookie:name} {request_id} {route} {class}
    /// {policy} {target} {node} {reason}, in replies also {status} {cache}; "{{" and "}}" are the braces themselves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(example = serde_json::json!({ "x-served-by": "{node}" }))]
    pub(crate) set: BTreeMap<String, String>,
    /// Fields that are added to those of their name, last of all: a value, or a list of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(example = serde_json::json!({ "vary": "accept" }))]
    pub(crate) add: BTreeMap<String, Texts>,
}

impl RawHeaders {
    pub(crate) fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

/// `[switch.request_id]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRequestId {
    /// The field that carries a request's id to the node, or "off". Ids stand in the access log and in {request_id}. With them no
    /// connection is handed over.
    #[schemars(example = &"x-request-id")]
    pub(crate) header: String,
    /// Whether an id that a request brings is kept: 1 to 128 letters, digits and -_.:/+=@~. Else, and where there is none, it gets
    /// one of 32 hexadecimal digits. false: for clients that are not to choose.
    pub(crate) accept: bool,
    /// Whether the client is told the id.
    pub(crate) reply: bool,
}

impl Default for RawRequestId {
    fn default() -> Self {
        Self { header: "off".to_owned(), accept: true, reply: true }
    }
}

/// `redirect`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRedirect {
    /// Where to, with parts as in header rules but those of nodes and replies. Required.
    #[schemars(example = &"https://www.example.com{path}{query}")]
    pub(crate) to: String,
    /// 301, 302, 303, 307 or 308; 301 and 308 are remembered by clients, 307 and 308 keep the method.
    pub(crate) status: u16,
    /// Only requests that came by "http" or by "https" (where TLS ends here); the others are served. Unset: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["http", "https"]), example = &"http")]
    pub(crate) scheme: Option<String>,
}

impl Default for RawRedirect {
    fn default() -> Self {
        Self { to: String::new(), status: 307, scheme: None }
    }
}

/// `respond`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRespond {
    /// 200 to 599.
    pub(crate) status: u16,
    /// The body: text of at most 16384 bytes, the same for all.
    pub(crate) body: String,
    /// Its type.
    pub(crate) r#type: String,
}

impl Default for RawRespond {
    fn default() -> Self {
        Self { status: 200, body: String::new(), r#type: "text/plain; charset=utf-8".to_owned() }
    }
}

/// `rewrite`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRewrite {
    /// The beginning of the path that is replaced, by whole segments: "/api" is one of "/api" and "/api/x", not of "/apix". "/" is
    /// one of every path. Required.
    #[schemars(example = &"/api")]
    pub(crate) prefix: String,
    /// What stands there instead towards nodes; "" takes it away.
    pub(crate) to: String,
    /// Which path the target is read from, and so what decides: the "client"'s, or that which the "node" is asked for.
    #[schemars(extend("enum" = ["client", "node"]))]
    pub(crate) target: String,
}

impl Default for RawRewrite {
    fn default() -> Self {
        Self { prefix: String::new(), to: String::new(), target: "client".to_owned() }
    }
}

/// `sticky`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSticky {
    /// What a client is known by: a "cookie" of the switch's own, which names the node; parts of the request, such as
    /// "{header:x-user}", that pick the node; or "off".
    pub(crate) by: String,
    /// The cookie's name.
    pub(crate) cookie: String,
    /// The path that it is for.
    pub(crate) path: String,
    /// When it comes along with requests from other sites: "lax", "strict" or "none". HttpOnly it is always, Secure with TLS and
    /// with "none".
    #[schemars(extend("enum" = ["lax", "strict", "none"]))]
    pub(crate) same_site: String,
    /// How long clients keep it after each reply, 1s to 400d. Unset: until they are closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "1h")]
    pub(crate) max_age: Option<Span>,
    /// File whose bytes (16 to 4096) go into the cookie's value, the same at all switches. Unset: whoever guesses a node's name
    /// can check the guess.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/sticky.key")]
    pub(crate) secret: Option<String>,
    /// How long a node that drains goes on serving clients whose cookies name it. 0s to 24h.
    pub(crate) drain: Span,
}

impl Default for RawSticky {
    fn default() -> Self {
        Self {
            by: "cookie".to_owned(),
            cookie: "larder-node".to_owned(),
            path: "/".to_owned(),
            same_site: "lax".to_owned(),
            max_age: None,
            secret: None,
            drain: Span(std::time::Duration::from_secs(600)),
        }
    }
}

/// `compress`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCompress {
    /// The codings, the preferred one first: "zstd", "br", "gzip". What a client weighs more goes first. [] for none.
    pub(crate) codings: Texts,
    /// The types of replies that are compressed: "text/html", "text/*" for all under it, "*+json" for all with the suffix.
    pub(crate) types: Texts,
    /// Replies whose length is known and below this are left as they are. 1 byte to 1 GiB.
    pub(crate) min: Size,
    /// Effort: 1 (quick) to 9 (small).
    pub(crate) level: u8,
}

impl Default for RawCompress {
    fn default() -> Self {
        let texts = |all: &[&str]| Texts(all.iter().map(ToString::to_string).collect());
        Self {
            codings: texts(&["zstd", "br", "gzip"]),
            types: texts(&[
                "text/*",
                "application/json",
                "application/javascript",
                "application/xml",
                "application/wasm",
                "*+json",
                "*+xml",
            ]),
            min: Size(Bytes(1_000)),
            level: 4,
        }
    }
}

/// `mirror`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMirror {
    /// The route whose requests are copied; "default" for what no route takes. Required.
    #[schemars(example = &"shop")]
    pub(crate) of: String,
    /// How many of them, in percent: 0 to 100.
    pub(crate) share: f64,
    /// Copies under way at a time; more are left out and counted. 1 to 65536.
    pub(crate) copies_max: u32,
    /// Requests with a longer body are not copied. 0 to 16MiB.
    pub(crate) body_max: Size,
    /// How long a copy may take. 10ms to 1m.
    pub(crate) timeout: Span,
}

impl Default for RawMirror {
    fn default() -> Self {
        Self {
            of: String::new(),
            share: 100.0,
            copies_max: 64,
            body_max: Size(Bytes(64 << 10)),
            timeout: Span(std::time::Duration::from_secs(10)),
        }
    }
}

/// `hedge`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHedge {
    /// How long a node may take to begin its answer before another is asked too. 1ms to 1m; 0s for never.
    pub(crate) after: Span,
    /// How many of a route's requests may be, in percent: 0 to 100. One a second may be whatever this is.
    pub(crate) share: f64,
}

impl Default for RawHedge {
    fn default() -> Self {
        Self { after: Span(std::time::Duration::from_millis(200)), share: 5.0 }
    }
}
