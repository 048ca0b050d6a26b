//! The decision: the client's session, the dispatcher, and waiting for admission.

use super::client::Client;
use super::exchange::{Exchange, WaitsFor};
use super::known::with_head;
use super::node::Server;
use super::requests::Requests;
use super::traced::Traced;
use crate::edits::cookie;
use crate::failure::Failure;
use crate::lease::Started;
use larder_core::Decision;
use larder_http::h1::RequestHead;
use larder_http::relay::Next;

impl Requests {
    /// Asks the dispatcher for a node.
    pub(super) fn place(&self, client: &Client, exchange: &mut Exchange, head: &RequestHead) -> Next<Server> {
        self.wish(exchange, head);
        if let Some(tracer) = &self.shared.observers.tracer {
            exchange.traced = with_head(head, |parts| Traced::begin(tracer, parts, &head.fields));
        }
        let placed = match exchange.placed.take() {
            Some(Ok(Started { lease, request, decision })) => {
                (exchange.lease, exchange.request) = (lease, request);
                Ok(Some(decision))
            }
            Some(Err(refusal)) => Err(refusal),
            None => exchange.lease.arrive(exchange.arrived, exchange.request),
        };
        match placed {
            Ok(Some(decision)) => self.decided(client, exchange, head, Ok(decision)),
            Ok(None) => {
                exchange.waits_for = WaitsFor::Admission;
                Next::Later
            }
            Err(refusal) => self.decided(client, exchange, head, Err(refusal.into())),
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
        exchange.queued = Some(self.shared.decider.clock.now() - exchange.arrived);
        self.decided(client, exchange, head, outcome.map_err(Failure::from))
    }

    fn decided(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        outcome: Result<Decision, Failure>,
    ) -> Next<Server> {
        if let (Some(traced), Some(tracer)) = (&exchange.traced, &self.shared.observers.tracer) {
            traced.decided((&self.shared.decider, tracer), (&exchange.request, exchange.queued), outcome);
        }
        match outcome {
            Ok(decision) => {
                exchange.decision = Some(decision);
                exchange.tried = exchange.arrived + exchange.queued.unwrap_or_default();
                self.copy(client, exchange, head);
                self.server(client, exchange, head)
            }
            Err(failure) => Next::Answer(self.fail(client, exchange, head, failure)),
        }
    }

    /// Finds out to which node the client comes back, if its route keeps sessions.
    fn wish(&self, exchange: &mut Exchange, head: &RequestHead) {
        if self.shared.decider.routing.of(exchange.request.route).edits.sticky.is_none() {
            return;
        }
        let token = |name: &str| cookie(&head.fields, name);
        let wish = with_head(head, |parts| {
            self.shared.decider.wish(&exchange.request, parts, exchange.arrived, token)
        });
        if let Some(wish) = wish {
            exchange.sticky = wish.by_cookie.then_some(wish.node);
            exchange.request = exchange.request.with_tie(wish.tie);
        }
    }
}
