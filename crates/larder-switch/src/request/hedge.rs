//! Hedged requests: the attempt at a second node, and reports while both nodes are asked ([`crate::hedge`]).

use super::exchange::Exchange;
use super::failure::node_failure;
use super::node::Server;
use super::requests::Requests;
use crate::health;
use crate::hedge::{HedgeOutcome, RouteHedging};
use crate::lease::Lease;
use crate::node_log;
use crate::shared::Shared;
use larder_core::{Decision, Request, Time};
use larder_http::h1::RequestHead;
use larder_http::relay::HedgeEvent;
use std::sync::Arc;
use std::time::Duration;

/// The attempt at the second node of a hedged request. Dropping it counts the outcome, and reports an unused attempt
/// to the dispatcher.
#[derive(Debug)]
pub(super) struct SecondAttempt {
    shared: Arc<Shared>,
    request: Request,
    decision: Decision,
    /// Load of the second node, until its reply is used.
    lease: Option<Lease>,
    asked: Time,
    /// Whether the second node's reply was used; `None` if the race has no winner.
    won: Option<bool>,
}

impl Drop for SecondAttempt {
    fn drop(&mut self) {
        if let Some(hedging) = &self.shared.decider.routing.route(self.request.route).hedging {
            hedging.count(match self.won {
                Some(true) => HedgeOutcome::Won,
                Some(false) => HedgeOutcome::Lost,
                None => HedgeOutcome::Failed,
            });
        }
        if self.lease.is_some() {
            let now = self.shared.decider.clock.now();
            self.shared.decider.dispatcher.observe_failure(
                now,
                &self.request,
                self.decision.node,
                now - self.asked,
            );
        }
    }
}

impl Requests {
    /// Returns the delay after which a second node is asked, if the request may be hedged. Eligible are GET and HEAD
    /// requests in their first attempt, on a route with hedging and without sticky sessions.
    pub(super) fn hedge_delay(&self, exchange: &Exchange, head: &RequestHead) -> Option<Duration> {
        let route = self.shared.decider.routing.route(exchange.request.route);
        let hedging = route.hedging.as_ref()?;
        let node = self.shared.decider.nodes.get(exchange.decision?.node)?;
        let may = exchange.attempts == 1
            && route.edits.sticky.is_none()
            && matches!(head.method(), b"GET" | b"HEAD")
            && node.is_hedgeable();
        may.then(|| {
            hedging.count_eligible();
            hedging.after
        })
    }

    /// Returns a second node for the request, with its load, if a node is free at once.
    pub(super) fn start_hedge(&self, exchange: &mut Exchange) -> Option<Server> {
        let hedging: &RouteHedging =
            self.shared.decider.routing.route(exchange.request.route).hedging.as_ref()?;
        let (first, now) = (exchange.decision?.node, self.shared.decider.clock.now());
        if !hedging.try_take(now) {
            return None;
        }
        let request = Request { exclude: exchange.request.exclude.with(first), ..exchange.request };
        let mut lease = Lease::new(self.shared.decider.clone());
        let found = lease.arrive(now, request).ok().flatten().and_then(|decision| {
            // If there is no other node, some policies return the same node again.
            let node = self.shared.decider.nodes.get(decision.node)?;
            (node.id != first && node.is_hedgeable()).then(|| (decision, Server::new(&node, 0)))
        });
        let Some((decision, server)) = found else {
            hedging.give_back();
            return None;
        };
        let (shared, request) = (self.shared.clone(), exchange.request);
        exchange.hedge =
            Some(SecondAttempt { shared, request, decision, lease: Some(lease), asked: now, won: None });
        Some(server)
    }

    /// Handles an event of the race between two nodes.
    pub(super) fn on_race_event(&self, exchange: &mut Exchange, event: HedgeEvent<'_>) {
        let Some(second) = exchange.hedge.as_ref().map(|hedge| hedge.decision.node) else { return };
        let Some(first) = exchange.decision.map(|decision| decision.node) else { return };
        let node = |is_second| self.shared.decider.nodes.get(if is_second { second } else { first });
        match event {
            HedgeEvent::Failed { is_second, failure } => {
                exchange.race_failure_noted = true;
                let found = node_failure(failure.stage, &failure.error);
                if is_second {
                    exchange.request.exclude = exchange.request.exclude.with(second);
                } else {
                    exchange.failure = Some(found);
                }
                if let Some(node) = node(is_second) {
                    node.log.failed(found, || node_log::root_cause(&failure.error));
                    if !std::mem::replace(&mut exchange.node_charged, true) {
                        health::note_failure((&self.shared.decider, &self.shared.guards), &node);
                    }
                }
            }
            HedgeEvent::Discarded { is_second, status } => {
                if let Some(node) = node(is_second) {
                    health::outliers::note_status((&self.shared.decider, &self.shared.guards), &node, status);
                }
            }
            HedgeEvent::Won { is_second } => {
                // The other node has failed.
                if exchange.node_charged
                    && let Some(node) = node(!is_second)
                {
                    health::note_unanswered(&node);
                }
                let Some(mut hedge) = exchange.hedge.take() else { return };
                hedge.won = Some(is_second);
                if is_second {
                    self.adopt_second_attempt(exchange, &mut hedge);
                }
            }
        }
    }

    /// Makes the second attempt the current one.
    fn adopt_second_attempt(&self, exchange: &mut Exchange, hedge: &mut SecondAttempt) {
        self.report_unserved(exchange, self.shared.decider.clock.now());
        if let Some(lease) = hedge.lease.take() {
            exchange.lease = lease;
        }
        exchange.decision = Some(hedge.decision);
        if let Some(trace) = &mut exchange.trace {
            trace.record_hedge(&self.shared.decider, hedge.decision);
        }
        (exchange.attempt_began, exchange.unreported) = (hedge.asked, true);
    }
}
