//! Trace of a request: spans for the request, its wait for admission, the decision, and each attempt at a node.
//!
//! ```text
//! request              client's header to last byte, of kind server
//!   queue              from the header to admission, if the request waited
//!   decision           policy, reason, node, target
//!   relay              one per attempt at a node, of kind client; the node continues the trace from here
//! ```

use crate::decider::Decider;
use crate::failure::Failure;
use crate::metrics::RequestEnd;
use larder_core::rules::Head;
use larder_core::{Decision, Reason, Request};
use larder_edge::Fields;
use larder_spans::{ActiveSpan, SpanKind, TRACEPARENT, TRACESTATE, Tracer};
use std::time::Duration;

/// Returns the request's `traceparent`. If there are two, returns neither.
fn traceparent(fields: &impl Fields) -> Option<&[u8]> {
    let mut values = fields.each(TRACEPARENT);
    values.next().filter(|_| values.next().is_none())
}

/// Sets `traceparent` for the node: the span of the attempt, or the mark that the request is not sampled.
pub(crate) fn write_traceparent(
    tracer: Option<&Tracer>,
    trace: Option<&RequestTrace>,
    request: &mut impl Fields,
) {
    let Some(tracer) = tracer else { return };
    let (parent, begins) = match trace {
        Some(RequestTrace { request, relay: Some(relay) }) => (relay.parent(), request.is_root()),
        None if tracer.accepted_parent(traceparent(request)).is_none() => (tracer.unsampled_parent(), true),
        _ => return,
    };
    if begins {
        request.remove(TRACESTATE);
    }
    request.set(TRACEPARENT, &parent.format());
}

/// Open spans of a request.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    request: ActiveSpan,
    relay: Option<ActiveSpan>,
}

impl RequestTrace {
    /// Begins the trace of a new request, if it is sampled.
    pub(crate) fn begin(tracer: &Tracer, head: &Head<'_>, fields: &impl Fields) -> Option<Box<Self>> {
        let mut request = tracer.begin(traceparent(fields), "request")?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        request.set("http.request.method", text(head.method));
        request.set("server.address", text(head.host));
        request.set("url.path", text(head.path));
        Some(Box::new(Self { request, relay: None }))
    }

    /// Records the first decision.
    pub(crate) fn record_decision(
        &self,
        (decider, tracer): (&Decider, &Tracer),
        (request, queued): (&Request, Option<Duration>),
        decision: Result<Decision, Failure>,
    ) {
        let (parent, began) = (self.request.parent(), self.request.started_ns());
        let waited = queued.unwrap_or_default();
        let admitted = began.saturating_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        if queued.is_some() {
            tracer.send(tracer.child(parent, "queue", SpanKind::Internal, began).end(admitted));
        }
        let mut span = tracer.child(parent, "decision", SpanKind::Internal, admitted);
        let policy = decider.dispatcher.settings_of(request.route).policy;
        span.set("larder.policy", policy.name());
        span.set("larder.route", &*decider.routing.route(request.route).name);
        span.set("larder.target", request.target.to_string());
        match decision {
            Ok(decision) => {
                span.set("larder.reason", decision.reason.name());
                span.set("larder.node", &*decider.dispatcher.nodes().name(decision.node));
            }
            Err(failure) => span.fail(failure.name()),
        }
        tracer.end(span);
    }

    /// Begins the span of an attempt at a node.
    pub(crate) fn start_attempt(
        &mut self,
        (decider, tracer): (&Decider, &Tracer),
        decision: Decision,
        attempts: u8,
    ) {
        self.fail_attempt(tracer, "retried");
        let mut span = tracer.child_now(self.request.parent(), "relay", SpanKind::Client);
        span.set("larder.node", &*decider.dispatcher.nodes().name(decision.node));
        if let Some(node) = decider.nodes.get(decision.node) {
            span.set("network.peer.address", node.resolved.ip().to_string());
            span.set("network.peer.port", node.resolved.port());
        }
        if decision.reason == Reason::Retry || attempts > 0 {
            span.set("http.request.resend_count", u64::from(attempts));
        }
        self.relay = Some(span);
    }

    /// Records that the second node of a hedged request won.
    pub(crate) fn record_hedge(&mut self, decider: &Decider, decision: Decision) {
        if let Some(relay) = &mut self.relay {
            relay.set("larder.hedge.node", &*decider.dispatcher.nodes().name(decision.node));
        }
    }

    /// Ends the span of a failed attempt.
    pub(crate) fn fail_attempt(&mut self, tracer: &Tracer, cause: &str) {
        if let Some(mut relay) = self.relay.take() {
            relay.fail(cause);
            tracer.end(relay);
        }
    }

    /// Ends the spans of a finished request.
    pub(crate) fn end(mut self, tracer: &Tracer, ended: &RequestEnd) {
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
