//! Edits of requests and replies by a route: header rules, direct replies, path rewriting, sticky sessions,
//! compression.
//!
//! Rules are parsed once, with the config, into forms that are valid by construction. A route without edits costs
//! nothing. Values are [templates](Template) over facts about a request. Bytes from a client cannot end a field or
//! begin another, and have a size limit.
//!
//! For a request, the steps are: find the route and the target from the client's request (unless
//! [`PathRewrite::decides`]); a [`RouteGuard`] may refuse it; a [`DirectReply`] ends it; otherwise the switch adds
//! its own fields, rewrites the path, and applies the rules for all routes, then the route's. For a reply: the
//! switch's own fields, the rules for all routes, the route's. In each set of rules: remove, set, add.
//!
//! Routes with edits are relayed ([`crate::DeliveryReason::Edited`]), because the edits need the requests.

mod compress;
mod direct_reply;
mod error;
mod facts;
mod fields;
mod request_id;
mod rewrite;
mod sticky;
mod template;

pub(crate) use compress::Encoder;
pub use compress::{Compression, ContentCoding};
pub use direct_reply::DirectReply;
pub(crate) use direct_reply::location;
pub use error::EditError;
pub(crate) use facts::RequestFacts;
pub(crate) use fields::FieldValues;
pub use fields::{FieldRules, MessageKind};
pub use request_id::RequestId;
pub(crate) use request_id::RequestIds;
pub use rewrite::PathRewrite;
pub use sticky::{SameSite, Sticky, StickyBy, StickyCookie, StickyKey};
pub(crate) use sticky::{cookie, cookie_in_field, other_cookies, rendezvous};
pub use template::{Template, TemplateStage};

use crate::guard::RouteGuard;
use crate::hedge::HedgeConfig;
use larder_edge::Fields;

/// Checks `Accept-Encoding` and `Cookie`: the chosen coding must be one that the route has and the client names, and
/// a removed cookie must be gone.
pub fn fuzz_asked(bytes: &[u8]) {
    let Ok(value) = http::HeaderValue::from_bytes(bytes) else { return };
    let headers: http::HeaderMap =
        [(http::header::ACCEPT_ENCODING, value.clone()), (http::header::COOKIE, value)].into_iter().collect();
    if let Some(coding) = compress::fuzz_choose(&headers) {
        let named = bytes.to_ascii_lowercase();
        let has = |name: &[u8]| named.windows(name.len()).any(|part| part == name);
        assert!(has(coding.name().as_bytes()) || has(b"*"));
    }
    let Some(ours) = cookie(&headers, "larder") else { return };
    assert!(bytes.windows(ours.len().max(1)).any(|part| part == ours) || ours.is_empty());
    if let Some(others) = other_cookies(&headers, "larder") {
        let mut headers = http::HeaderMap::new();
        headers.set("Cookie", &others);
        assert_eq!(cookie(&headers, "larder"), None);
    }
}

/// Edits of one route; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Rules for the header of requests to nodes, after the rules for all routes.
    pub request_fields: FieldRules,
    /// Rules for the header of replies to clients, after the rules for all routes.
    pub reply_fields: FieldRules,
    /// Guard, which refuses requests.
    pub guard: Option<RouteGuard>,
    /// Direct reply of the switch.
    pub answer: Option<DirectReply>,
    /// Rewriting of the path for nodes.
    pub rewrite: Option<PathRewrite>,
    /// Sticky sessions.
    pub sticky: Option<Sticky>,
    /// Compression of replies.
    pub compress: Option<Compression>,
    /// Hedging.
    pub hedge: Option<HedgeConfig>,
}

impl Edits {
    /// Whether there are no edits.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
