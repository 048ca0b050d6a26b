//! What is done to requests and replies beside sending them on, as written: `request_headers`, `reply_headers`,
//! `redirect`, `respond` and `rewrite` of `[[switch.routes]]`; the first two and `request_id` of `[switch]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Texts;

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
