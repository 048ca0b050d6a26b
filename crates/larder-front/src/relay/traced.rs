//! The trace of a request: spans for the request, its wait for admission, the decision, and each time a node is asked.
//!
//! ```text
//! request              client's header to last byte, of kind server
//!   queue              from the header to admission, if it had to wait
//!   decision           policy, reason, node, target
//!   relay              one for each time a node is asked, of kind client; the node goes on from here
//! ```

use super::{Context, headers};
use crate::failure::Failure;
use crate::metrics::Ended;
use crate::switch::Shared;
use larder_core::{Decision, Reason};
use larder_spans::{Kind, Open, TRACEPARENT, TRACESTATE, Tracer};
use pingora_error::Result;
use pingora_http::RequestHeader;

/// The one that a request has; of two, none is right.
fn traceparent(header: &RequestHeader) -> Option<&[u8]> {
    let mut values = header.headers.get_all(TRACEPARENT).iter();
    values.next().filter(|_| values.next().is_none()).map(http::HeaderValue::as_bytes)
}

/// The node is told which span it is asked in, or that the lot has not fallen on this request.
pub(super) fn tell(shared: &Shared, traced: Option<&Traced>, request: &mut RequestHeader) -> Result<()> {
    let Some(tracer) = shared.tracer.as_ref() else { return Ok(()) };
    let (parent, begins) = match traced {
        Some(Traced { request, relay: Some(relay) }) => (relay.parent(), request.is_root()),
        None if tracer.follows(traceparent(request)).is_none() => (tracer.unsampled(), true),
        _ => return Ok(()),
    };
    if begins {
        request.remove_header(TRACESTATE);
    }
    request.insert_header(TRACEPARENT, parent.write())
}

/// The spans of a request that go on.
#[derive(Debug)]
pub(super) struct Traced {
    request: Open,
    relay: Option<Open>,
}

impl Traced {
    /// Of a request that has just come, if it is to be traced.
    pub(super) fn begin(shared: &Shared, header: &RequestHeader) -> Option<Box<Self>> {
        let tracer = shared.tracer.as_ref()?;
        let mut request = tracer.begin(traceparent(header), "request")?;
        request.set("http.request.method", header.method.as_str());
        request.set("server.address", String::from_utf8_lossy(headers::host(header)).into_owned());
        request.set("url.path", header.uri.path());
        Some(Box::new(Self { request, relay: None }))
    }

    /// The first node is chosen, or none.
    pub(super) fn decided(&self, shared: &Shared, context: &Context, decision: Result<Decision, Failure>) {
        let Some(tracer) = shared.tracer.as_ref() else { return };
        let (parent, began) = (self.request.parent(), self.request.began_ns());
        let queued = context.queued.unwrap_or_default();
        let admitted = began.saturating_add(u64::try_from(queued.as_nanos()).unwrap_or(u64::MAX));
        if context.queued.is_some() {
            tracer.send(tracer.child(parent, "queue", Kind::Internal, began).end(admitted));
        }
        let mut span = tracer.child(parent, "decision", Kind::Internal, admitted);
        let policy = shared.dispatcher.settings_of(context.request.route).policy;
        span.set("larder.policy", policy.name());
        span.set("larder.route", &*shared.routing.of(context.request.route).name);
        span.set("larder.target", context.request.target.to_string());
        match decision {
            Ok(decision) => {
                span.set("larder.reason", decision.reason.name());
                span.set("larder.node", &*shared.dispatcher.nodes().name(decision.node));
            }
            Err(failure) => span.fail(failure.name()),
        }
        tracer.end(span);
    }

    /// A node is asked, for the first time or again.
    pub(super) fn asks(&mut self, shared: &Shared, decision: Decision, tries: u8) {
        let Some(tracer) = shared.tracer.as_ref() else { return };
        self.fails(tracer, "retried");
        let mut span = tracer.child_now(self.request.parent(), "relay", Kind::Client);
        span.set("larder.node", &*shared.dispatcher.nodes().name(decision.node));
        if let Some(node) = shared.nodes.get(decision.node) {
            span.set("network.peer.address", node.resolved.ip().to_string());
            span.set("network.peer.port", node.resolved.port());
        }
        if decision.reason == Reason::Retry || tries > 0 {
            span.set("http.request.resend_count", u64::from(tries));
        }
        self.relay = Some(span);
    }

    /// The answer is another node's, which was asked beside the first.
    pub(super) fn hedged(&mut self, shared: &Shared, decision: Decision) {
        if let Some(relay) = &mut self.relay {
            relay.set("larder.hedge.node", &*shared.dispatcher.nodes().name(decision.node));
        }
    }

    /// The node that was asked has failed.
    pub(super) fn fails(&mut self, tracer: &Tracer, why: &str) {
        if let Some(mut relay) = self.relay.take() {
            relay.fail(why);
            tracer.end(relay);
        }
    }

    /// The request has ended.
    pub(super) fn end(mut self, tracer: &Tracer, ended: &Ended) {
        if let Some(mut relay) = self.relay.take() {
            if let Some(status) = ended.status {
                relay.set("http.response.status_code", status);
            }
            if let Some(cache) = ended.cache {
                relay.set("larder.cache", cache.name());
            }
            if let Some(failure) = ended.failure {
                relay.fail(failure.name());
            }
            tracer.end(relay);
        }
        if let Some(status) = ended.status {
            self.request.set("http.response.status_code", status);
        }
        self.request.set("http.response.body.size", ended.body_bytes);
        match ended.failure {
            Some(failure) => {
                self.request.set("error.type", failure.name());
                self.request.fail(failure.name());
            }
            None if ended.status.is_some_and(|status| status >= 500) => self.request.fail("status"),
            None => {}
        }
        tracer.end(self.request);
    }
}
