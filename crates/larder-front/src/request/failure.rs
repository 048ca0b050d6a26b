//! Failures of nodes and clients: whether and where a request is tried again.
//!
//! - No connection: nothing was sent, so that any request may go to another node.
//! - A failure before the client has got anything: a request whose method is idempotent (RFC 9110 section 9.2.2), if all that was
//!   read of it is still there. If the connection had waited, the node may only have closed it at the wrong moment: it is asked once
//!   more, which keeps the locality; after that another node is.
//! - A failure in the middle of a reply: another node is asked for the rest ([`Resume`]).

use super::client::Client;
use super::exchange::Exchange;
use super::node::Server;
use super::requests::Requests;
use super::resume::Resume;
use crate::dial::DialError;
use crate::failure::Failure;
use crate::metrics::Retry;
use crate::{health, node_log};
use larder_core::{Decision, Refusal};
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{self, ClientFault, Http2Fault, Next, Stage, Then};
use std::io;

/// The failure that a client's fault is.
pub(super) fn of_client(fault: ClientFault, exchange: &Exchange) -> Failure {
    match fault {
        ClientFault::Gone | ClientFault::Stalled => Failure::ClientGone,
        ClientFault::TimedOut => Failure::BodyTimeout,
        ClientFault::Malformed(_) => Failure::BadRequest,
        ClientFault::Refused => exchange.failure.unwrap_or(Failure::BadRequest),
    }
}

/// The failure that an error of a node is.
pub(super) fn of_node(stage: Stage, error: &io::Error) -> Failure {
    let inner = error.get_ref();
    // With TLS 1.3 a node that does not like the switch's certificate says so after the handshake.
    if inner.is_some_and(|inner| inner.is::<rustls::Error>() || inner.is::<DialError>()) {
        return Failure::NodeTls;
    }
    match (stage, error.kind()) {
        (Stage::Connect, io::ErrorKind::TimedOut) => Failure::ConnectTimeout,
        (Stage::Connect, _) => Failure::ConnectFailed,
        (_, io::ErrorKind::TimedOut) => Failure::NodeTimeout,
        (_, io::ErrorKind::InvalidData) => Failure::BadReply,
        _ => Failure::NodeClosed,
    }
}

impl Requests {
    /// Counts a fault on a connection of HTTP/2.
    pub(super) fn note_http2_fault(&self, client: &Client, fault: Http2Fault) {
        let failure = match fault {
            Http2Fault::StreamsFull => Failure::StreamsFull,
            Http2Fault::Flood(_) | Http2Fault::OtherFlood => Failure::Http2Flood,
            // Each of its requests was counted.
            Http2Fault::Malformed | Http2Fault::Stalled => return,
            Http2Fault::Panicked => {
                self.shared.decider.metrics.panicked();
                tracing::error!(client = %client.address, "request of HTTP/2 lost: its task panicked");
                return;
            }
        };
        self.shared.decider.metrics.failed(failure);
        tracing::debug!(client = %client.address, ?fault, "limit on HTTP/2 exceeded");
    }

    /// Decides again after a node has failed.
    pub(super) fn judge(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        heads: (&RequestHead, &ReplyHead),
        error: &relay::Failure,
    ) -> Next<Server> {
        // What two nodes had a part in is over, and counted.
        exchange.hedge = None;
        let failure = of_node(error.stage, &error.error);
        if !exchange.resume_refused && exchange.failure != Some(Failure::Internal) {
            exchange.failure = Some(failure);
        }
        if let Some(again) = self.again(exchange, heads, (failure, error)) {
            exchange.again = again;
            if let (Some(tracer), Some(traced)) = (&self.shared.observers.tracer, &mut exchange.traced) {
                traced.fails(tracer, failure.name());
            }
            match self.place_again(exchange) {
                Ok(decision) => {
                    exchange.decision = Some(decision);
                    return self.server(client, exchange, heads.0);
                }
                // Where no other node is left, the failure of the last one is the answer.
                Err(refusal) => {
                    exchange.failure.get_or_insert(refusal.into());
                }
            }
        }
        let failure = exchange.failure.unwrap_or(failure);
        let mut answer = self.fail(client, exchange, heads.0, failure);
        answer.then = Then::Closes;
        Next::Answer(answer)
    }

    /// The way in which a request is tried again after a failure; none if that was it.
    fn again(
        &self,
        exchange: &mut Exchange,
        (request, reply): (&RequestHead, &ReplyHead),
        (failure, error): (Failure, &relay::Failure),
    ) -> Option<Retry> {
        if exchange.resume_refused || exchange.failure == Some(Failure::Internal) {
            return None;
        }
        let connects = error.stage == Stage::Connect;
        let begun = error.stage == Stage::Reply { begun: true } || error.resumable.is_some();
        let stale = error.stage == Stage::Request { reused: true } && failure == Failure::NodeClosed;
        // A tunnel that breaks off is over, and no fault of the node's.
        let is_noted = std::mem::take(&mut exchange.has_raced) || begun && reply.status() == 101;
        if !stale && !is_noted {
            self.log_node_failure(exchange, failure, &error.error);
        }
        // What breaks off later may be the network's fault or the content's; a node that is gone shows soon enough.
        if !stale && !is_noted && (connects || !begun) {
            self.note_node_failure(exchange);
        }
        let may_ask_again = connects || begun || request.is_idempotent() && error.replayable;
        if !may_ask_again {
            return None;
        }
        if stale && !exchange.same_node_tried {
            exchange.same_node_tried = true;
            return Some(Retry::SameNode);
        }
        if !self.may_retry(exchange) {
            return None;
        }
        exchange.resume = match (begun, error.resumable) {
            (false, _) => None,
            (true, Some(from)) => Some(Resume::of(request, reply, from)?),
            (true, None) => return None,
        };
        if !self
            .shared
            .guards
            .retries
            .take(self.shared.decider.clock.now(), self.shared.decider.metrics.ended_requests())
        {
            exchange.resume = None;
            return None;
        }
        Some(if begun { Retry::Resume } else { Retry::OtherNode })
    }

    /// Whether another attempt is allowed by their number.
    fn may_retry(&self, exchange: &Exchange) -> bool {
        // The first attempt is none, and neither is the one that made up for a connection that had waited.
        let again = exchange.tries.saturating_sub(1 + u8::from(exchange.same_node_tried));
        again < self.shared.guards.limits.retries_max
    }

    /// The node for another attempt.
    fn place_again(&self, exchange: &mut Exchange) -> Result<Decision, Refusal> {
        let now = self.shared.decider.clock.now();
        self.tell_unserved(exchange, now);
        exchange.tried = now;
        let Some(before) = exchange.decision else { return Err(Refusal::NoNode) };
        self.shared.decider.metrics.retried(exchange.again);
        if exchange.again == Retry::SameNode && self.shared.decider.dispatcher.nodes().is_open(before.node) {
            return Ok(before);
        }
        let decision = exchange.lease.retry(exchange.request);
        exchange.long_lived = false;
        exchange.request.exclude = exchange.request.exclude.with(before.node);
        if decision.is_ok()
            && std::mem::take(&mut exchange.unanswered)
            && let Some(node) = self.shared.decider.nodes.get(before.node)
        {
            health::note_unanswered(&node);
        }
        decision
    }

    /// Tells health that the node of the current attempt has failed. A request charges one node at most, so that one that no node can
    /// serve does not take them all out.
    fn note_node_failure(&self, exchange: &mut Exchange) {
        if std::mem::replace(&mut exchange.charged, true) {
            return;
        }
        if let Some(node) =
            exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node))
        {
            health::note_failure((&self.shared.decider, &self.shared.guards), &node);
            exchange.unanswered = true;
        }
    }

    /// Logs a request that failed at a node.
    fn log_node_failure(&self, exchange: &Exchange, failure: Failure, error: &io::Error) {
        if let Some(node) =
            exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node))
        {
            node.log.failed(failure, || node_log::root(error));
        }
    }
}
