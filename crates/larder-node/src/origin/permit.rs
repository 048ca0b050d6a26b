//! Requests that a node refuses to send to its origin, because it would add rights that their clients do not
//! have.
//!
//! A node with a signature or with header fields for its origin lends its rights to every client that reaches
//! it. So it refuses requests that would change the store or use the node's rights against other clients:
//!
//! | request | reason | reply |
//! |---|---|---|
//! | a method that is not in `origin.sign.methods` | it could write or delete with the node's keys | 405 |
//! | TRACE | the origin would show the client the node's fields | 405 |
//! | `response-*` in the query (S3) | it could turn signed replies into HTML, or extend their storage | 403 |
//!
//! A client's `x-amz-*` fields are removed from its GET, HEAD and OPTIONS, except those in [`ALLOWED_FIELDS`].
//! They could make the node's owner pay (`x-amz-request-payer`), or make the reply specific to this client
//! (`x-amz-server-side-encryption-customer-key`). No stored reply depends on them.

use crate::body::Body;
use crate::config::OriginConfig;
use crate::http::cache_status::Outcome;
use crate::reply::Replies;
use crate::signing::{self, SIGNATURE, SigningKeys};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

/// Amazon fields that a client may set on any request. They ask for digests, or state the body's digest.
const ALLOWED_FIELDS: [&str; 2] = ["x-amz-checksum-mode", "x-amz-content-sha256"];

/// Removes the fields that the signature replaces, and the fields that must not be signed, from an admitted
/// request.
pub(super) fn remove_unsignable(method: &Method, client: &mut HeaderMap) {
    let foreign =
        |name: &str| method.is_safe() && name.starts_with("x-amz-") && !ALLOWED_FIELDS.contains(&name);
    let names: Vec<_> =
        client.keys().filter(|name| SIGNATURE.contains(name) || foreign(name.as_str())).cloned().collect();
    for name in names {
        client.remove(name);
    }
}

/// Returns the reply to a request that the node must not send with its own rights; `None` if the request may be
/// sent.
pub(super) fn refusal(replies: &Replies, config: &OriginConfig, parts: &Parts) -> Option<Response<Body>> {
    let method = &parts.method;
    if *method == Method::TRACE && (config.sign.is_some() || !config.fields.is_empty()) {
        let text = "TRACE would show the header fields that this node adds to requests for its origin.\n";
        return Some(method_not_allowed(replies, text.to_owned(), None));
    }
    let signing = config.sign.as_ref()?;
    if !signing.permits(method) {
        let text = format!(
            "This node signs requests to its origin and permits {} only (node.origin.sign.methods).\n",
            signing.allowed_methods()
        );
        return Some(method_not_allowed(replies, text, Some(signing)));
    }
    let query = parts.uri.query().unwrap_or_default();
    if signing.is_s3() && !signing::is_presigned(query) && signing::sets_fields_of_reply(query) {
        let text = "This node does not sign requests that set header fields of their reply (response-...).";
        return Some(replies.plain(StatusCode::FORBIDDEN, Outcome::Local("sign-query"), text));
    }
    None
}

fn method_not_allowed(replies: &Replies, text: String, signing: Option<&SigningKeys>) -> Response<Body> {
    let (status, outcome) = (StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"));
    let mut reply = replies.text(status, outcome, "text/plain; charset=utf-8", Bytes::from(text));
    let allowed = signing.map_or_else(
        || Some(HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")),
        |signing| HeaderValue::try_from(signing.allowed_methods()).ok(),
    );
    if let Some(allowed) = allowed {
        reply.headers_mut().insert(header::ALLOW, allowed);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amazon_fields_are_removed_from_safe_requests_except_digests() {
        let all = [
            "authorization",
            "x-amz-date",
            "x-amz-security-token",
            "x-amz-request-payer",
            "x-amz-server-side-encryption-customer-key",
            "x-amz-object-attributes",
            "x-amz-checksum-mode",
            "x-amz-content-sha256",
            "range",
        ];
        let written: HeaderMap =
            all.iter().map(|name| (name.parse().unwrap(), HeaderValue::from_static("x"))).collect();
        for (method, removed) in [
            (Method::GET, &all[..6]),
            (Method::HEAD, &all[..6]),
            (Method::OPTIONS, &all[..6]),
            (Method::PUT, &all[..3]),
        ] {
            let mut headers = written.clone();
            remove_unsignable(&method, &mut headers);
            let gone: Vec<_> = all.into_iter().filter(|name| !headers.contains_key(*name)).collect();
            assert_eq!(gone, removed, "{method}");
        }
    }
}
