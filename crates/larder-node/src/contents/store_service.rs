//! Answers requests for the objects of a store.

use super::lateral::{HandoffContext, LateralDecision};
use crate::body::Body;
use crate::counters::Counters;
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::http::condition::{self, PreconditionResult};
use crate::http::hop::target_id;
use crate::http::path::PathError;
use crate::http::range::{self, Range};
use crate::machine::Machine;
use crate::object::{Object, StoragePolicy};
use crate::objects::{Chunks, Objects};
use crate::origin;
use crate::reply::{ACCEPT_RANGES_BYTES, NOSNIFF, NodeFault, Replies, insert};
use crate::store::StoreError;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use std::sync::Arc;

/// The parts of a request that its reply depends on, apart from the name.
#[derive(Clone, Copy)]
pub(crate) struct RequestView<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) hash: u64,
}

/// Answers requests for the objects of a store.
#[derive(Debug)]
pub(crate) struct StoreService {
    pub(crate) objects: Arc<Objects>,
    pub(super) replies: Arc<Replies>,
    pub(super) counters: Arc<Counters>,
    pub(super) machine: Arc<Machine>,
}

impl StoreService {
    /// Returns the reply to a request.
    pub(super) async fn reply(&self, parts: &Parts, handoff: Option<&HandoffContext>) -> Response<Body> {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return self.replies.method_not_allowed("GET, HEAD");
        }
        let name = match self.objects.name_of(&parts.uri) {
            Ok(name) => name,
            Err(PathError::Malformed) => {
                let outcome = Outcome::Local("path");
                return self.replies.plain(StatusCode::BAD_REQUEST, outcome, "malformed path");
            }
            Err(PathError::Hidden) => {
                return self.replies.plain(StatusCode::NOT_FOUND, Outcome::Local("hidden"), "not-found");
            }
        };
        let mut reason = ForwardReason::Miss;
        match self.get(parts, &name, &mut reason, handoff).await {
            Ok(reply) => {
                self.machine.cpu.reply(http_body::Body::size_hint(reply.body()).lower()).await;
                reply
            }
            Err(error) => self.answer_error(&error, parts.uri.path(), reason),
        }
    }

    async fn get(
        &self,
        request: &Parts,
        name: &[u8],
        reason: &mut ForwardReason,
        handoff: Option<&HandoffContext>,
    ) -> Result<Response<Body>, StoreError> {
        let hash = self.objects.memory.hash(name);
        let view = RequestView { method: &request.method, headers: &request.headers, hash };
        let (cached, miss_reason) = self.objects.look_up(hash, name).await?;
        *reason = miss_reason;
        if let Some(object) = cached {
            return self.answer(view, object, Outcome::Hit).await;
        }
        // Boxed, so that the future of a hit stays small.
        Box::pin(self.get_missing((request, view), name, *reason, handoff)).await
    }

    async fn get_missing(
        &self,
        (request, view): (&Parts, RequestView<'_>),
        name: &[u8],
        reason: ForwardReason,
        handoff: Option<&HandoffContext>,
    ) -> Result<Response<Body>, StoreError> {
        // A client that asks for no body, or may have the body already, must not evict entries that others use.
        let head = view.method == Method::HEAD;
        if head || condition::is_conditional(view.headers) {
            let object = self.objects.stat(name).await?;
            let outcome = Outcome::Forward { reason, stored: false, collapsed: false };
            if head {
                return self.answer(view, Arc::new(object), outcome).await;
            }
            if let Some(reply) = self.answer_condition(view, &object, outcome) {
                return Ok(reply);
            }
        }
        let storage = match handoff {
            None => StoragePolicy { target_id: target_id(view.headers), may_store: true },
            Some(handoff) => match handoff.decide(&self.objects.memory, &self.counters, request).await {
                LateralDecision::Fetched(peer, fetched) => {
                    let outcome = Outcome::Lateral { reason, status: fetched.reply.status().as_u16() };
                    return Ok(origin::forward_reply(&self.replies, &peer, request, fetched, outcome));
                }
                LateralDecision::Local(storage) => storage,
            },
        };
        let (object, outcome) = self.objects.object(view.hash, name, reason, storage).await?;
        self.answer(view, object, outcome).await
    }

    /// Returns the reply for a known object, with or without its body.
    pub(crate) async fn answer(
        &self,
        view: RequestView<'_>,
        object: Arc<Object>,
        outcome: Outcome,
    ) -> Result<Response<Body>, StoreError> {
        if let Some(reply) = self.answer_condition(view, &object, outcome) {
            return Ok(reply);
        }
        let size = object.meta.size;
        let whole = 0..size;
        if view.method == Method::HEAD {
            return Ok(self.contents(StatusCode::OK, &object, size, outcome, Body::empty()));
        }
        let range = match view.headers.get(header::RANGE) {
            Some(value) if condition::is_range_applicable(view.headers, &object.validators()) => {
                range::parse(value.as_bytes(), size)
            }
            _ => Range::Whole,
        };
        let (status, part) = match range {
            Range::Whole => (StatusCode::OK, whole),
            Range::Part { first, last } => (StatusCode::PARTIAL_CONTENT, first..last + 1),
            Range::Unsatisfiable => return Ok(self.replies.range_unsatisfiable(size, outcome)),
        };
        let len = part.end - part.start;
        let (body, outcome) = match &object.body {
            Some(body) => (Body::from_bytes(body.slice(part.start as usize..part.end as usize)), outcome),
            None if len == 0 => (Body::empty(), outcome),
            None => Box::pin(self.parts(view.hash, &object, part.clone(), outcome)).await?,
        };
        let mut reply = self.contents(status, &object, len, outcome, body);
        if status == StatusCode::PARTIAL_CONTENT {
            let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
            insert(reply.headers_mut(), header::CONTENT_RANGE, text);
        }
        Ok(reply)
    }

    /// Returns the reply that a precondition demands (304 or 412); `None` if the request proceeds.
    pub(crate) fn answer_condition(
        &self,
        view: RequestView<'_>,
        object: &Object,
        outcome: Outcome,
    ) -> Option<Response<Body>> {
        if !condition::is_conditional(view.headers) {
            return None;
        }
        match condition::evaluate(view.headers, &object.validators()) {
            PreconditionResult::Proceed => None,
            PreconditionResult::Failed => {
                Some(self.replies.plain(StatusCode::PRECONDITION_FAILED, outcome, ""))
            }
            PreconditionResult::NotModified => {
                let mut reply = self.replies.start(StatusCode::NOT_MODIFIED, outcome, Body::empty());
                let headers = reply.headers_mut();
                headers.insert(header::ETAG, object.etag.clone());
                headers.insert(header::LAST_MODIFIED, object.last_modified.clone());
                Some(reply)
            }
        }
    }

    /// Returns the reply for an error of the store.
    pub(crate) fn answer_error(
        &self,
        error: &StoreError,
        path: &str,
        reason: ForwardReason,
    ) -> Response<Body> {
        if matches!(error, StoreError::IsDirectory) {
            return self.redirect(path);
        }
        let (status, detail) = (error.status(), error.detail());
        if let StoreError::Io(error) = error {
            larder_log::limited_warn!(%path, %error, "store: file not read, the request gets 500");
        }
        let outcome = Outcome::Failed { reason, status: status.as_u16(), detail };
        let mut reply = self.replies.plain(status, outcome, detail);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status.is_server_error() && !matches!(error, StoreError::OriginBroke) {
            reply.extensions_mut().insert(NodeFault);
        }
        reply
    }

    fn redirect(&self, path: &str) -> Response<Body> {
        let status = StatusCode::MOVED_PERMANENTLY;
        let outcome =
            Outcome::Failed { reason: ForwardReason::Miss, status: status.as_u16(), detail: "directory" };
        let mut reply = self.replies.plain(status, outcome, "");
        insert(reply.headers_mut(), header::LOCATION, crate::http::path::with_slash(path));
        reply
    }

    /// Returns the body for a part of a chunked object, after its first chunk is available, and the cache
    /// outcome.
    async fn parts(
        &self,
        hash: u64,
        object: &Arc<Object>,
        part: std::ops::Range<u64>,
        outcome: Outcome,
    ) -> Result<(Body, Outcome), StoreError> {
        let outcome = match (self.objects.contains_parts(object, hash, part.start, part.end - 1), outcome) {
            ((_, true), Outcome::Hit) => Outcome::Hit,
            ((true, _), Outcome::Hit) => self.miss_outcome(ForwardReason::Partial, object),
            ((false, _), Outcome::Hit) => self.miss_outcome(ForwardReason::Miss, object),
            (_, other) => other,
        };
        let mut chunks = Chunks::new(&self.objects, object, hash, part)?;
        chunks.load_first().await?;
        Ok((Body::chunks(chunks), outcome))
    }

    fn miss_outcome(&self, reason: ForwardReason, object: &Object) -> Outcome {
        Outcome::Forward { reason, stored: self.objects.memory.may_store(object.meta.size), collapsed: false }
    }

    fn contents(
        &self,
        status: StatusCode,
        object: &Object,
        len: u64,
        outcome: Outcome,
        body: Body,
    ) -> Response<Body> {
        let mut reply = self.replies.start(status, outcome, body);
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        headers.insert(header::CONTENT_TYPE, object.content_type.clone());
        headers.insert(header::ETAG, object.etag.clone());
        headers.insert(header::LAST_MODIFIED, object.last_modified.clone());
        headers.insert(header::ACCEPT_RANGES, ACCEPT_RANGES_BYTES);
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        reply
    }
}
