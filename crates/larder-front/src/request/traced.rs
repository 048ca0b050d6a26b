//! The trace of a request: spans for the request, its wait for admission, the decision, and each time a node is asked.
//!
//! ```text
//! request              client's header to last byte, of kind server
//!   queue              from the header to admission, if it had to wait
//!   decision           policy, reason, node, target
//!   relay              one for each time a node is asked, of kind client; the node goes on from here
//! ```

use crate::decider::Decider;
use crate::failure::Failure;
use crate::metrics::Ended;
use larder_core::rules::Head;
use larder_core::{Decision, Reason, Request};
use larder_edge::Fields;
use larder_spans::{Kind, Open, TRACEPARENT, TRACESTATE, Tracer};
use std::time::Duration;

/// The one that a request has; of two, none is right.
fn traceparent(fields: &impl Fields) -> Option<&[u8]> {
    let mut values = fields.each(TRACEPARENT);
    values.next().filter(|_| values.next().is_none())
}

/// The node is told which span it is asked in, or that the lot has not fallen on this request.
pub(crate) fn tell(tracer: Option<&Tracer>, traced: Option<&Traced>, request: &mut impl Fields) {
    let Some(tracer) = tracer else { return };
    let (parent, begins) = match traced {
        Some(Traced { request, relay: Some(relay) }) => (relay.parent(), request.is_root()),
        None if tracer.follows(traceparent(request)).is_none() => (tracer.unsampled(), true),
        _ => return,
    };
    if begins {
        request.remove(TRACESTATE);
    }
    request.set(TRACEPARENT, &parent.write());
}

/// The spans of a request that go on.
#[derive(Debug)]
pub(crate) struct Traced {
    request: Open,
    relay: Option<Open>,
}

impl Traced {
    /// Of a request that has just come, if it is to be traced.
    pub(crate) fn begin(tracer: &Tracer, head: &Head<'_>, fields: &impl Fields) -> Option<Box<Self>> {
        let mut request = tracer.begin(traceparent(fields), "request")?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        request.set("http.request.method", text(head.method));
        request.set("server.address", text(head.host));
        request.set("url.path", text(head.path));
        Some(Box::new(Self { request, relay: None }))
    }

    /// The first node is chosen, or none.
    pub(crate) fn decided(
        &self,
        (decider, tracer): (&Decider, &Tracer),
        (request, queued): (&Request, Option<Duration>),
        decision: Result<Decision, Failure>,
    ) {
        let (parent, began) = (self.request.parent(), self.request.began_ns());
        let waited = queued.unwrap_or_default();
        let admitted = began.saturating_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        if queued.is_some() {
            tracer.send(tracer.child(parent, "queue", Kind::Internal, began).end(admitted));
        }
        let mut span = tracer.child(parent, "decision", Kind::Internal, admitted);
        let policy = decider.dispatcher.settings_of(request.route).policy;
        span.set("larder.policy", policy.name());
        span.set("larder.route", &*decider.routing.of(request.route).name);
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

    /// A node is asked, for the first time or again.
    pub(crate) fn asks(&mut self, (decider, tracer): (&Decider, &Tracer), decision: Decision, tries: u8) {
        self.fails(tracer, "retried");
        let mut span = tracer.child_now(self.request.parent(), "relay", Kind::Client);
        span.set("larder.node", &*decider.dispatcher.nodes().name(decision.node));
        if let Some(node) = decider.nodes.get(decision.node) {
            span.set("network.peer.address", node.resolved.ip().to_string());
            span.set("network.peer.port", node.resolved.port());
        }
        if decision.reason == Reason::Retry || tries > 0 {
            span.set("http.request.resend_count", u64::from(tries));
        }
        self.relay = Some(span);
    }

    /// The answer is another node's, which was asked beside the first.
    pub(crate) fn hedged(&mut self, decider: &Decider, decision: Decision) {
        if let Some(relay) = &mut self.relay {
            relay.set("larder.hedge.node", &*decider.dispatcher.nodes().name(decision.node));
        }
    }

    /// The node that was asked has failed.
    pub(crate) fn fails(&mut self, tracer: &Tracer, why: &str) {
        if let Some(mut relay) = self.relay.take() {
            relay.fail(why);
            tracer.end(relay);
        }
    }

    /// The request has ended.
    pub(crate) fn end(mut self, tracer: &Tracer, ended: &Ended) {
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
