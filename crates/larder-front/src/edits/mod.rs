//! What a route does to its requests and replies beside sending them on: header rules, answers of its own, other paths,
//! sticky sessions, compression.
//!
//! Rules are read once, when the config is, into forms that cannot be wrong; what they would break is refused there. A
//! route without any costs nothing. Values come of [templates](Template) over what is known of a request; whatever a
//! client has put into it cannot end a field or begin another, and is bounded.
//!
//! The order, for a request: the route is found and its target is made of what the client sent (unless
//! [`PathRewrite::decides`]); a [`Guard`] may refuse it; an [`Answer`] ends it; else the switch adds its own fields, the path is rewritten, the
//! rules for all routes run, then the route's. For a reply: the switch's own fields, the rules for all routes, the
//! route's. Among the rules of one place: remove, set, add.
//!
//! What is edited must pass through the switch's hands: such routes are relayed ([`crate::DeliveryReason::Edited`]).

mod answer;
mod compress;
mod error;
mod fields;
mod known;
mod request_id;
mod rewrite;
mod sticky;
mod template;

pub use answer::Answer;
pub(crate) use answer::location;
pub(crate) use compress::Encoder;
pub use compress::{Coding, Compression};
pub use error::EditError;
pub(crate) use fields::Values;
pub use fields::{FieldRules, Side};
pub(crate) use known::Known;
pub use request_id::RequestId;
pub(crate) use request_id::RequestIds;
pub use rewrite::PathRewrite;
pub use sticky::{SameSite, Sticky, StickyBy, StickyCookie, StickyKey};
pub(crate) use sticky::{cookie, cookie_of, other_cookies, rendezvous};
pub use template::{Stage, Template};

use crate::guard::Guard;
use crate::hedge::HedgeConfig;
use larder_edge::Fields;

/// What a client asks for in `Accept-Encoding` and says in `Cookie`: a coding is chosen that the route has and the client
/// names, and a cookie that is taken out is gone.
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

/// The edits of one route; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Rules for the header of requests to nodes, after those for all routes.
    pub request_fields: FieldRules,
    /// Rules for the header of replies to clients, after those for all routes.
    pub reply_fields: FieldRules,
    /// Which requests are refused.
    pub guard: Option<Guard>,
    /// The switch answers by itself.
    pub answer: Option<Answer>,
    /// Nodes are asked for another path than the client asks for.
    pub rewrite: Option<PathRewrite>,
    /// Clients come back to their nodes.
    pub sticky: Option<Sticky>,
    /// Replies are compressed for clients that ask for it.
    pub compress: Option<Compression>,
    /// Another node is asked too where one is slow.
    pub hedge: Option<HedgeConfig>,
}

impl Edits {
    /// Whether requests and replies pass as they are.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
