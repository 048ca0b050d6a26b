//! Hedged requests: the second node, and what the switch learns while both are asked ([`crate::hedge`]).

use super::exchange::Exchange;
use super::failure::of_node;
use super::node::Server;
use super::requests::Requests;
use crate::health;
use crate::hedge::{Hedging, Outcome};
use crate::lease::Lease;
use crate::node_log;
use crate::shared::Shared;
use larder_core::{Decision, Request, Time};
use larder_http::h1::RequestHead;
use larder_http::relay::RaceEvent;
use std::sync::Arc;
use std::time::Duration;

/// The second node of a hedged request. However the race ends, it is counted, and the dispatcher learns of a second node whose reply was
/// not taken.
#[derive(Debug)]
pub(super) struct Hedge {
    shared: Arc<Shared>,
    request: Request,
    decision: Decision,
    /// Its load, until its reply is taken.
    lease: Option<Lease>,
    asked: Time,
    /// Whether the second node's reply was taken.
    won: Option<bool>,
}

impl Drop for Hedge {
    fn drop(&mut self) {
        if let Some(hedging) = &self.shared.decider.routing.of(self.request.route).hedging {
            hedging.count(match self.won {
                Some(true) => Outcome::Won,
                Some(false) => Outcome::Lost,
                None => Outcome::Failed,
            });
        }
        if self.lease.is_some() {
            let now = self.shared.decider.clock.now();
            self.shared.decider.dispatcher.unserved(now, &self.request, self.decision.node, now - self.asked);
        }
    }
}

impl Requests {
    /// The time after which another node is asked, if the request may be hedged: GET and HEAD, in their first attempt, on a route that
    /// says so, of a client that need not come back to one node.
    pub(super) fn may_hedge(&self, exchange: &Exchange, head: &RequestHead) -> Option<Duration> {
        let route = self.shared.decider.routing.of(exchange.request.route);
        let hedging = route.hedging.as_ref()?;
        let node = self.shared.decider.nodes.get(exchange.decision?.node)?;
        let may = exchange.tries == 1
            && route.edits.sticky.is_none()
            && matches!(head.method(), b"GET" | b"HEAD")
            && node.is_hedgeable();
        may.then(|| {
            hedging.enter();
            hedging.after
        })
    }

    /// Another node for the request, with its load, if one has room at once.
    pub(super) fn second(&self, exchange: &mut Exchange) -> Option<Server> {
        let hedging: &Hedging = self.shared.decider.routing.of(exchange.request.route).hedging.as_ref()?;
        let (first, now) = (exchange.decision?.node, self.shared.decider.clock.now());
        if !hedging.allows(now) {
            return None;
        }
        let request = Request { exclude: exchange.request.exclude.with(first), ..exchange.request };
        let mut lease = Lease::new(self.shared.decider.clone());
        let found = lease.arrive(now, request).ok().flatten().and_then(|decision| {
            // Where there is no other, some policies name the same again.
            let node = self.shared.decider.nodes.get(decision.node)?;
            (node.id != first && node.is_hedgeable()).then(|| (decision, Server::of(&node, 0)))
        });
        let Some((decision, server)) = found else {
            hedging.finds_no_room();
            return None;
        };
        let (shared, request) = (self.shared.clone(), exchange.request);
        exchange.hedge = Some(Hedge { shared, request, decision, lease: Some(lease), asked: now, won: None });
        Some(server)
    }

    /// Learns how the two nodes fare.
    pub(super) fn watch_race(&self, exchange: &mut Exchange, event: RaceEvent<'_>) {
        let Some(second) = exchange.hedge.as_ref().map(|hedge| hedge.decision.node) else { return };
        let Some(first) = exchange.decision.map(|decision| decision.node) else { return };
        let node = |is_second| self.shared.decider.nodes.get(if is_second { second } else { first });
        match event {
            RaceEvent::Failed { is_second, failure } => {
                exchange.has_raced = true;
                let found = of_node(failure.stage, &failure.error);
                if is_second {
                    exchange.request.exclude = exchange.request.exclude.with(second);
                } else {
                    exchange.failure = Some(found);
                }
                if let Some(node) = node(is_second) {
                    node.log.failed(found, || node_log::root(&failure.error));
                    if !std::mem::replace(&mut exchange.charged, true) {
                        health::note_failure((&self.shared.decider, &self.shared.guards), &node);
                    }
                }
            }
            RaceEvent::Discarded { is_second, status } => {
                if let Some(node) = node(is_second) {
                    health::outliers::note_status((&self.shared.decider, &self.shared.guards), &node, status);
                }
            }
            RaceEvent::Won { is_second } => {
                // The one that has failed, while the other has replied.
                if exchange.charged
                    && let Some(node) = node(!is_second)
                {
                    health::note_unanswered(&node);
                }
                let Some(mut hedge) = exchange.hedge.take() else { return };
                hedge.won = Some(is_second);
                if is_second {
                    self.take_second(exchange, &mut hedge);
                }
            }
        }
    }

    /// The request is the second node's from now on.
    fn take_second(&self, exchange: &mut Exchange, hedge: &mut Hedge) {
        self.tell_unserved(exchange, self.shared.decider.clock.now());
        if let Some(lease) = hedge.lease.take() {
            exchange.lease = lease;
        }
        exchange.decision = Some(hedge.decision);
        if let Some(traced) = &mut exchange.traced {
            traced.hedged(&self.shared.decider, hedge.decision);
        }
        (exchange.tried, exchange.untold) = (hedge.asked, true);
    }
}
