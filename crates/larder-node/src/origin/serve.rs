//! Replies from stored variants, and replies that are passed on.

use super::body::OriginBody;
use super::client::{Origin, OriginReply};
use super::error::OriginError;
use super::transfer_limits::TransferLimits;
use crate::body::Body;
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::http::condition::{self, PreconditionResult};
use crate::http::fields;
use crate::http::range::{self, Range};
use crate::pages::{BodyReader, PageBody, Variant};
use crate::reply::{NodeFault, Replies};
use crate::responder::Responder;
use crate::uptime::Uptime;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use std::sync::Arc;

/// Creates replies from stored replies of an origin.
#[derive(Clone, Copy)]
pub(super) struct StoredReplies<'a> {
    pub(super) replies: &'a Replies,
    pub(super) origin: &'a Origin,
    pub(super) uptime: Uptime,
}

impl StoredReplies<'_> {
    /// Returns the reply to a GET or HEAD from a matching variant. `reader` reads a body that is still being
    /// received.
    pub(super) fn reply(
        self,
        parts: &Parts,
        variant: &Arc<Variant>,
        outcome: Outcome,
        reader: Option<BodyReader>,
    ) -> Response<Body> {
        let len = variant.len();
        if variant.status == StatusCode::OK
            && let Some(validators) = variant.validators()
        {
            match condition::evaluate(&parts.headers, &validators) {
                PreconditionResult::Proceed => {}
                PreconditionResult::Failed => {
                    return self.replies.plain(StatusCode::PRECONDITION_FAILED, outcome, "");
                }
                PreconditionResult::NotModified => {
                    let body = Body::empty();
                    let mut reply = self.with_head(StatusCode::NOT_MODIFIED, variant, outcome, body);
                    reply.headers_mut().remove(header::CONTENT_TYPE);
                    return reply;
                }
            }
        }
        let (pieces, size) = match (&variant.body, reader) {
            _ if parts.method == Method::HEAD => {
                return self.with_length(variant, outcome, Body::empty(), len);
            }
            (PageBody::Incoming(_), Some(reader)) => {
                let body = Body::stream(OriginBody::Shared(reader), len);
                return self.with_length(variant, outcome, body, len);
            }
            (PageBody::Incoming(_), None) => {
                return failed(self.replies, OriginError::Abandoned, ForwardReason::Miss);
            }
            (PageBody::Whole { pieces, len }, _) => (Arc::clone(pieces), *len),
        };
        // Without a validator, no `If-Range` can match.
        let counts = match variant.validators() {
            Some(validators) => condition::is_range_applicable(&parts.headers, &validators),
            None => !parts.headers.contains_key(header::IF_RANGE),
        };
        let range = match parts.headers.get(header::RANGE) {
            Some(value) if variant.status == StatusCode::OK && counts => range::parse(value.as_bytes(), size),
            _ => Range::Whole,
        };
        match range {
            Range::Unsatisfiable => self.replies.range_unsatisfiable(size, outcome),
            Range::Whole => {
                let body = Body::pieces(pieces, 0..size);
                self.with_length(variant, outcome, body, len)
            }
            Range::Part { first, last } => {
                let len = last - first + 1;
                let body = Body::pieces(pieces, first..last + 1);
                let mut reply = self.with_head(StatusCode::PARTIAL_CONTENT, variant, outcome, body);
                let headers = reply.headers_mut();
                fields::remove_content_digests(headers);
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
                if let Ok(value) = HeaderValue::try_from(format!("bytes {first}-{last}/{size}")) {
                    headers.insert(header::CONTENT_RANGE, value);
                }
                reply
            }
        }
    }

    fn with_length(
        self,
        variant: &Variant,
        outcome: Outcome,
        body: Body,
        len: Option<u64>,
    ) -> Response<Body> {
        let mut reply = self.with_head(variant.status, variant, outcome, body);
        if let Some(len) = len.filter(|_| variant.status != StatusCode::NO_CONTENT) {
            reply.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        }
        reply
    }

    /// Returns a reply with the stored header and its current age.
    fn with_head(
        self,
        status: StatusCode,
        variant: &Variant,
        outcome: Outcome,
        body: Body,
    ) -> Response<Body> {
        let mut reply =
            merge_reply(self.replies, self.origin, status, variant.headers.clone(), outcome, body);
        let age = variant.freshness.age(self.uptime.now_ms());
        reply.headers_mut().insert(header::AGE, HeaderValue::from(age));
        reply
    }
}

/// Passes a reply of the origin, or of another node, on to one client.
pub(crate) fn forward_reply(
    replies: &Replies,
    origin: &Origin,
    parts: &Parts,
    fetched: OriginReply,
    outcome: Outcome,
) -> Response<Body> {
    let limits = {
        let config = &origin.settings().config;
        TransferLimits::new(config.body_timeout, config.stream_timeout, config.body_rate_min)
    };
    let authority = fetched.origin.clone();
    let (head, body, len) = OriginBody::from_fetch(fetched, limits);
    let mut headers = head.headers;
    fields::remove_hop_by_hop(&mut headers);
    let empty = parts.method == Method::HEAD
        || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || len == Some(0);
    let body = if empty { Body::empty() } else { Body::stream(body, len) };
    Responder::mark(merge_reply(replies, origin, head.status, headers, outcome, body), Some(authority))
}

/// Returns a reply with the origin's header and this node's fields.
pub(super) fn merge_reply(
    replies: &Replies,
    origin: &Origin,
    status: StatusCode,
    mut headers: HeaderMap,
    outcome: Outcome,
    body: Body,
) -> Response<Body> {
    fields::add_via(&mut headers, &origin.via);
    replies.merge(status, headers, outcome, body)
}

/// Returns the error reply for an origin that sent none.
pub(super) fn failed(replies: &Replies, error: OriginError, reason: ForwardReason) -> Response<Body> {
    let (status, detail) = error.reply();
    let outcome = Outcome::Failed { reason, status, detail };
    let mut reply =
        replies.plain(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), outcome, detail);
    if matches!(status, 429 | 503) {
        reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if error.is_node_fault() {
        reply.extensions_mut().insert(NodeFault);
    }
    reply
}
