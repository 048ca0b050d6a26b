//! The span of a request at a node: from its head to its reply's last byte. Whom the node asks for it, an origin or a peer, is
//! told to go on from there.

use http::header::CACHE_STATUS;
use http::request::Parts;
use http::{HeaderValue, Response};
use larder_spans::{ActiveSpan, TRACEPARENT, TRACESTATE, Tracer};
use std::net::IpAddr;
use std::sync::Arc;

/// A request that is traced.
#[derive(Debug)]
pub(crate) struct Traced {
    tracer: Arc<Tracer>,
    span: ActiveSpan,
}

impl Traced {
    /// Of a request whose head has been read, if it is to be traced; `client` is whom a balancer has announced.
    pub(crate) fn begin(
        tracer: &Arc<Tracer>,
        parts: &mut Parts,
        client: Option<IpAddr>,
    ) -> Option<Box<Self>> {
        let mut values = parts.headers.get_all(TRACEPARENT).iter();
        // Of two, none is right.
        let parent = values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes);
        let follows = tracer.accepted_parent(parent).is_some();
        let span = tracer.begin(parent, "serve");
        let told = match &span {
            Some(span) => Some(span.parent()),
            None => (!follows).then(|| tracer.unsampled_parent()),
        };
        if !follows {
            parts.headers.remove(TRACESTATE);
        }
        if let Some(Ok(value)) = told.as_ref().map(|parent| HeaderValue::from_bytes(&parent.format())) {
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

    /// What it is answered with.
    pub(crate) fn answers<B>(&mut self, reply: &Response<B>) {
        let status = reply.status().as_u16();
        self.span.set("http.response.status_code", status);
        if let Some(cache) = reply.headers().get(CACHE_STATUS).and_then(|value| value.to_str().ok()) {
            self.span.set("larder.cache_status", cache);
        }
        if status >= 500 {
            self.span.fail("status");
        }
    }

    /// Its last byte is handed on.
    pub(crate) fn end(self) {
        self.tracer.end(self.span);
    }
}
