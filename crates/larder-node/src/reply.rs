//! Replies: status, header fields, and a line in the counts.

use crate::body::{Body, Parts};
use crate::http::cache_status::{Outcome, Why};
use crate::http::condition::{self, Verdict};
use crate::http::range::{self, Range};
use crate::node::Node;
use crate::object::Object;
use crate::store::StoreError;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use std::sync::Arc;

pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
pub(crate) const LARDER_STORE: HeaderName = HeaderName::from_static("x-larder-store");
pub(crate) const ACCEPT_RANGES_BYTES: HeaderValue = HeaderValue::from_static("bytes");
pub(crate) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Marks a reply, within this node, as an error of the node itself, which another may not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnFault;

/// Fields of a reply with contents; reserving them avoids growing the map.
const FIELDS: usize = 12;

/// The part of a request that its reply depends on, besides the name.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) hash: u64,
}

impl Node {
    /// The reply for an object that is known, with or without its body.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        ask: Ask<'_>,
        object: Arc<Object>,
        outcome: Outcome,
    ) -> Result<Response<Body>, StoreError> {
        if let Some(reply) = self.answer_condition(ask, &object, outcome) {
            return Ok(reply);
        }
        let size = object.meta.size;
        let whole = 0..size;
        if ask.method == Method::HEAD {
            return Ok(self.contents(StatusCode::OK, &object, size, outcome, Body::empty()));
        }
        let range = match ask.headers.get(header::RANGE) {
            Some(value) if condition::range_counts(ask.headers, &object.validators()) => {
                range::parse(value.as_bytes(), size)
            }
            _ => Range::Whole,
        };
        let (status, part) = match range {
            Range::Whole => (StatusCode::OK, whole),
            Range::Part { first, last } => (StatusCode::PARTIAL_CONTENT, first..last + 1),
            Range::Unsatisfiable => return Ok(self.unsatisfiable(size, outcome)),
        };
        let len = part.end - part.start;
        let (body, outcome) = match &object.body {
            Some(body) => (Body::whole(body.slice(part.start as usize..part.end as usize)), outcome),
            None if len == 0 => (Body::empty(), outcome),
            None => Box::pin(self.parts(ask.hash, &object, part.clone(), outcome)).await?,
        };
        let mut reply = self.contents(status, &object, len, outcome, body);
        if status == StatusCode::PARTIAL_CONTENT {
            let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
            insert(reply.headers_mut(), header::CONTENT_RANGE, text);
        }
        Ok(reply)
    }

    /// The reply that a precondition asks for, if one does.
    pub(crate) fn answer_condition(
        &self,
        ask: Ask<'_>,
        object: &Object,
        outcome: Outcome,
    ) -> Option<Response<Body>> {
        if !condition::is_conditional(ask.headers) {
            return None;
        }
        match condition::evaluate(ask.headers, &object.validators()) {
            Verdict::Proceed => None,
            Verdict::Failed => Some(self.plain(StatusCode::PRECONDITION_FAILED, outcome, "")),
            Verdict::NotModified => {
                let mut reply = self.start(StatusCode::NOT_MODIFIED, outcome, Body::empty());
                let headers = reply.headers_mut();
                headers.insert(header::ETAG, object.etag.clone());
                headers.insert(header::LAST_MODIFIED, object.last_modified.clone());
                Some(reply)
            }
        }
    }

    /// The reply for a store's error.
    pub(crate) fn answer_error(&self, error: &StoreError, path: &str, why: Why) -> Response<Body> {
        if matches!(error, StoreError::IsDirectory) {
            return self.redirect(path);
        }
        let (status, detail) = (error.status(), error.detail());
        if let StoreError::Io(error) = error {
            tracing::warn!(%path, %error, "the store cannot be read");
        }
        let outcome = Outcome::Failed { why, status: status.as_u16(), detail };
        let mut reply = self.plain(status, outcome, detail);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status.is_server_error() && !matches!(error, StoreError::OriginBroke) {
            reply.extensions_mut().insert(OwnFault);
        }
        reply
    }

    /// A reply with a line of text, for errors and the node's own paths.
    pub(crate) fn plain(&self, status: StatusCode, outcome: Outcome, text: &'static str) -> Response<Body> {
        let body = if text.is_empty() { Bytes::new() } else { Bytes::from(format!("{text}\n")) };
        self.text(status, outcome, "text/plain; charset=utf-8", body)
    }

    /// A reply with a short text of a type.
    pub(crate) fn text(
        &self,
        status: StatusCode,
        outcome: Outcome,
        content_type: &'static str,
        body: Bytes,
    ) -> Response<Body> {
        let len = body.len() as u64;
        let mut reply = self.start(status, outcome, Body::whole(body));
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        reply
    }

    fn redirect(&self, path: &str) -> Response<Body> {
        let status = StatusCode::MOVED_PERMANENTLY;
        let outcome = Outcome::Failed { why: Why::Miss, status: status.as_u16(), detail: "directory" };
        let mut reply = self.plain(status, outcome, "");
        insert(reply.headers_mut(), header::LOCATION, crate::http::path::with_slash(path));
        reply
    }

    pub(crate) fn unsatisfiable(&self, size: u64, outcome: Outcome) -> Response<Body> {
        let mut reply = self.plain(StatusCode::RANGE_NOT_SATISFIABLE, outcome, "");
        insert(reply.headers_mut(), header::CONTENT_RANGE, format!("bytes */{size}"));
        reply
    }

    /// The body for a part of an object kept in chunks, with its first chunk at hand, and what the cache did for it.
    async fn parts(
        self: &Arc<Self>,
        hash: u64,
        object: &Arc<Object>,
        part: std::ops::Range<u64>,
        outcome: Outcome,
    ) -> Result<(Body, Outcome), StoreError> {
        let outcome = match (self.holds_parts(object, hash, part.start, part.end - 1), outcome) {
            ((_, true), Outcome::Hit) => Outcome::Hit,
            ((true, _), Outcome::Hit) => self.forwarded(Why::Partial, object),
            ((false, _), Outcome::Hit) => self.forwarded(Why::Miss, object),
            (_, other) => other,
        };
        let place =
            Arc::clone(self.streams.permits()).try_acquire_owned().map_err(|_| StoreError::StreamsFull)?;
        let mut parts = Parts::new(place, Arc::clone(self), Arc::clone(object), hash, part);
        parts.prime().await?;
        Ok((Body::parts(parts), outcome))
    }

    fn forwarded(&self, why: Why, object: &Object) -> Outcome {
        Outcome::Forward { why, stored: self.keeps(object.meta.size), collapsed: false }
    }

    fn contents(
        &self,
        status: StatusCode,
        object: &Object,
        len: u64,
        outcome: Outcome,
        body: Body,
    ) -> Response<Body> {
        let mut reply = self.start(status, outcome, body);
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        headers.insert(header::CONTENT_TYPE, object.content_type.clone());
        headers.insert(header::ETAG, object.etag.clone());
        headers.insert(header::LAST_MODIFIED, object.last_modified.clone());
        headers.insert(header::ACCEPT_RANGES, ACCEPT_RANGES_BYTES);
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        reply
    }

    /// A reply with the fields that all have, counted.
    pub(crate) fn start(&self, status: StatusCode, outcome: Outcome, body: Body) -> Response<Body> {
        self.count(status, outcome);
        let mut headers = HeaderMap::with_capacity(FIELDS);
        headers.insert(CACHE_STATUS, self.speller.spell(outcome));
        if !self.store.can_change() {
            headers.insert(LARDER_STORE, HeaderValue::from_static(self.store.kind()));
        }
        let mut reply = Response::new(body);
        *reply.status_mut() = status;
        *reply.headers_mut() = headers;
        reply
    }

    pub(crate) fn count(&self, status: StatusCode, outcome: Outcome) {
        let counters = &self.counters;
        match outcome {
            Outcome::Hit | Outcome::Kept { .. } => counters.hits.add(1),
            Outcome::Pulled { why: Why::Bypass | Why::Method, .. } => {}
            Outcome::Forward { collapsed, .. } | Outcome::Pulled { collapsed, .. } => {
                counters.misses.add(1);
                counters.collapsed.add(u64::from(collapsed));
            }
            Outcome::Failed { why: Why::Bypass | Why::Method, .. } => {}
            Outcome::Failed { .. } => counters.misses.add(1),
            Outcome::Lateral { .. } | Outcome::Program { .. } | Outcome::Local(_) => {}
        }
        match status.as_u16() {
            200 => {}
            206 => counters.partial_content.add(1),
            304 => counters.not_modified.add(1),
            400..500 => counters.client_errors.add(1),
            500..600 => counters.server_errors.add(1),
            _ => {}
        }
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}
