//! The trace span of a request at this node, from the request's head to the last byte of its reply. An origin
//! or a peer that the node asks receives this span as its parent (W3C Trace Context).

use http::header::CACHE_STATUS;
use http::request::Parts;
use http::{HeaderValue, Response};
use larder_spans::{ActiveSpan, TRACEPARENT, TRACESTATE, Tracer};
use std::net::IpAddr;
use std::sync::Arc;

/// The span of a traced request.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    tracer: Arc<Tracer>,
    span: ActiveSpan,
}

impl RequestTrace {
    /// Begins the span of a request, if the request is sampled. `client` is the client that a balancer has
    /// announced. The request's `traceparent` and `tracestate` are updated.
    pub(crate) fn begin(
        tracer: &Arc<Tracer>,
        parts: &mut Parts,
        client: Option<IpAddr>,
    ) -> Option<Box<Self>> {
        let mut values = parts.headers.get_all(TRACEPARENT).iter();
        // If a request has two `traceparent` fields, both are ignored.
        let parent = values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes);
        let follows = tracer.accepted_parent(parent).is_some();
        let span = tracer.begin(parent, "serve");
        let parent = match &span {
            Some(span) => Some(span.parent()),
            None => (!follows).then(|| tracer.unsampled_parent()),
        };
        if !follows {
            parts.headers.remove(TRACESTATE);
        }
        if let Some(Ok(value)) = parent.as_ref().map(|parent| HeaderValue::from_bytes(&parent.format())) {
            parts.headers.insert(TRACEPARENT, value);
        }
        let mut span = span?;
        span.set("http.request.method", parts.method.as_str());
        span.set("url.path", parts.uri.path());
        if let Some(client) = client {
            span.set("client.address", client.to_string());
        }
        Some(Box::new(Self { tracer: Arc::clone(tracer), span }))
    }

    /// Records the status and `Cache-Status` of the reply.
    pub(crate) fn record_reply<B>(&mut self, reply: &Response<B>) {
        let status = reply.status().as_u16();
        self.span.set("http.response.status_code", status);
        if let Some(cache) = reply.headers().get(CACHE_STATUS).and_then(|value| value.to_str().ok()) {
            self.span.set("larder.cache_status", cache);
        }
        if status >= 500 {
            self.span.fail("status");
        }
    }

    /// Ends the span after the last byte of the reply.
    pub(crate) fn end(self) {
        self.tracer.end(self.span);
    }
}
