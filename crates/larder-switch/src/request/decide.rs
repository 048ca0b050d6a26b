//! The decision: session affinity, the dispatcher, and waiting for admission.

use super::client::Client;
use super::exchange::{Exchange, PendingStep};
use super::facts::with_head;
use super::node::Server;
use super::requests::Requests;
use super::trace::RequestTrace;
use crate::edits::cookie;
use crate::failure::Failure;
use crate::lease::StartedRequest;
use larder_core::Decision;
use larder_http::h1::RequestHead;
use larder_http::relay::Next;

impl Requests {
    /// Asks the dispatcher for a node.
    pub(super) fn place(&self, client: &Client, exchange: &mut Exchange, head: &RequestHead) -> Next<Server> {
        self.find_affinity(exchange, head);
        if let Some(tracer) = &self.shared.observers.tracer {
            exchange.trace = with_head(head, |parts| RequestTrace::begin(tracer, parts, &head.fields));
        }
        let placement = match exchange.placement.take() {
            Some(Ok(StartedRequest { lease, request, decision })) => {
                (exchange.lease, exchange.request) = (lease, request);
                Ok(Some(decision))
            }
            Some(Err(refusal)) => Err(refusal),
            None => exchange.lease.arrive(exchange.ready, exchange.request),
        };
        match placement {
            Ok(Some(decision)) => self.finish_decision(client, exchange, head, Ok(decision)),
            Ok(None) => {
                exchange.pending_step = PendingStep::Admission;
                Next::Later
            }
            Err(refusal) => self.finish_decision(client, exchange, head, Err(refusal.into())),
        }
    }

    /// Waits for admission.
    pub(super) async fn wait(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Next<Server> {
        let outcome = exchange.lease.wait().await;
        exchange.queued = Some(self.shared.decider.clock.now() - exchange.ready);
        self.finish_decision(client, exchange, head, outcome.map_err(Failure::from))
    }

    fn finish_decision(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        outcome: Result<Decision, Failure>,
    ) -> Next<Server> {
        let outcome = outcome.map(|decision| self.adopt_decision(exchange, decision));
        if let (Some(trace), Some(tracer)) = (&exchange.trace, &self.shared.observers.tracer) {
            trace.record_decision(
                (&self.shared.decider, tracer),
                (&exchange.request, exchange.queued),
                outcome,
            );
        }
        match outcome {
            Ok(decision) => {
                exchange.decision = Some(decision);
                exchange.attempt_began = exchange.ready + exchange.queued.unwrap_or_default();
                self.begin_copies(client, exchange, head);
                self.server(client, exchange, head)
            }
            Err(failure) => Next::Answer(self.fail(client, exchange, head, failure)),
        }
    }

    /// Finds the node that the client should return to, if its route has sticky sessions.
    fn find_affinity(&self, exchange: &mut Exchange, head: &RequestHead) {
        let route = self.shared.decider.routing.route(exchange.request.route);
        if route.edits.sticky.is_none() || exchange.prompt.is_some() {
            return;
        }
        let token = |name: &str| cookie(&head.fields, name);
        let affinity = with_head(head, |parts| {
            self.shared.decider.affinity(&exchange.request, parts, exchange.arrived, token)
        });
        if let Some(affinity) = affinity {
            exchange.cookie_node = affinity.by_cookie.then_some(affinity.node);
            exchange.request = exchange.request.with_affinity(affinity.tie);
        }
    }
}
