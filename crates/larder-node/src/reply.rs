//! Creates replies (status and header fields) and counts them.

use crate::body::Body;
use crate::counters::Counters;
use crate::http::cache_status::{CacheStatusWriter, ForwardReason, Outcome};
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use std::sync::Arc;

pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
pub(crate) const ACCEPT_RANGES_BYTES: HeaderValue = HeaderValue::from_static("bytes");
pub(crate) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
/// Marks a reply, within this node, as an error of this node that another node may not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeFault;

/// Header fields of a reply with contents. The map reserves this capacity to avoid growing.
const FIELDS: usize = 12;

/// Field that marks synthetic contents.
pub(crate) const LARDER_STORE: HeaderName = HeaderName::from_static("x-larder-store");

/// Creates the replies of a node, and counts them.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) cache_status: CacheStatusWriter,
    counters: Arc<Counters>,
    /// The kind of the store, if its contents are synthetic.
    synthetic: Option<HeaderValue>,
}

impl Replies {
    /// Creates the replies of the named node. `synthetic` is the kind of the store, if its contents are
    /// synthetic.
    pub(crate) fn new(name: &str, counters: &Arc<Counters>, synthetic: Option<&'static str>) -> Self {
        let synthetic = synthetic.map(HeaderValue::from_static);
        Self { cache_status: CacheStatusWriter::new(name), counters: Arc::clone(counters), synthetic }
    }

    /// Returns a reply with one line of text, for errors and the node's own paths.
    pub(crate) fn plain(&self, status: StatusCode, outcome: Outcome, text: &'static str) -> Response<Body> {
        let body = if text.is_empty() { Bytes::new() } else { Bytes::from(format!("{text}\n")) };
        self.text(status, outcome, "text/plain; charset=utf-8", body)
    }

    /// Returns a reply with a short text of a content type.
    pub(crate) fn text(
        &self,
        status: StatusCode,
        outcome: Outcome,
        content_type: &'static str,
        body: Bytes,
    ) -> Response<Body> {
        let len = body.len() as u64;
        let mut reply = self.start(status, outcome, Body::from_bytes(body));
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        reply
    }

    /// Returns the 416 for a body of `size` bytes.
    pub(crate) fn range_unsatisfiable(&self, size: u64, outcome: Outcome) -> Response<Body> {
        let mut reply = self.plain(StatusCode::RANGE_NOT_SATISFIABLE, outcome, "");
        insert(reply.headers_mut(), header::CONTENT_RANGE, format!("bytes */{size}"));
        reply
    }

    /// Counts a reply, and returns it with the common fields.
    pub(crate) fn start(&self, status: StatusCode, outcome: Outcome, body: Body) -> Response<Body> {
        self.count(status, outcome);
        let mut headers = HeaderMap::with_capacity(FIELDS);
        headers.insert(CACHE_STATUS, self.cache_status.format(outcome));
        if let Some(kind) = &self.synthetic {
            headers.insert(LARDER_STORE, kind.clone());
        }
        let mut reply = Response::new(body);
        *reply.status_mut() = status;
        *reply.headers_mut() = headers;
        reply
    }

    /// Returns a reply with the given header and this node's fields.
    pub(crate) fn merge(
        &self,
        status: StatusCode,
        mut headers: HeaderMap,
        outcome: Outcome,
        body: Body,
    ) -> Response<Body> {
        let mut reply = self.start(status, outcome, body);
        // Members of caches nearer to the origin come first in the list.
        for value in reply.headers().get_all(CACHE_STATUS) {
            headers.append(CACHE_STATUS, value.clone());
        }
        *reply.headers_mut() = headers;
        reply
    }

    /// Returns the kind of the store, if its contents are synthetic.
    pub(crate) fn synthetic(&self) -> Option<&HeaderValue> {
        self.synthetic.as_ref()
    }

    /// Returns the 405 for a method that is not among `allowed`.
    pub(crate) fn method_not_allowed(&self, allowed: &'static str) -> Response<Body> {
        let mut reply = self.plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"), "");
        reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        reply
    }

    /// Returns the 503 for a request beyond a limit.
    pub(crate) fn over_limit(&self, detail: &'static str) -> Response<Body> {
        let mut reply = self.plain(StatusCode::SERVICE_UNAVAILABLE, Outcome::Local(detail), detail);
        reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        reply
    }

    /// Counts a reply.
    pub(crate) fn count(&self, status: StatusCode, outcome: Outcome) {
        let counters = &self.counters;
        match outcome {
            Outcome::Hit | Outcome::OriginHit { .. } => counters.hits.add(1),
            Outcome::OriginForward { reason: ForwardReason::Bypass | ForwardReason::Method, .. } => {}
            Outcome::Forward { collapsed, .. } | Outcome::OriginForward { collapsed, .. } => {
                counters.misses.add(1);
                counters.collapsed.add(u64::from(collapsed));
            }
            Outcome::Failed { reason: ForwardReason::Bypass | ForwardReason::Method, .. } => {}
            Outcome::Failed { .. } => counters.misses.add(1),
            Outcome::Lateral { .. } | Outcome::Program(_) | Outcome::Local(_) => {}
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

/// Sets a field, unless the text is not a valid field value.
pub(crate) fn insert(headers: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}
