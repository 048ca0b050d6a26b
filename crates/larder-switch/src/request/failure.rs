//! Failures of nodes and clients, and retries.
//!
//! - No connection: nothing was sent, so any request may go to another node.
//! - A failure before the client has received anything: a request with an idempotent method (RFC 9110 section 9.2.2)
//!   is retried if everything that was read of it is still buffered. If the connection came from the pool, the node
//!   may just have closed it: the same node is asked once more, which keeps the locality, and then another node. A
//!   completion of a language model changes nothing at its node, so it is retried too, unless its time was over.
//! - A failure in the middle of a reply: another node is asked for the rest ([`Resume`]). If the rest cannot be asked for,
//!   the engine discards the answer of [`Requests::handle_node_failure`] and ends the client's connection.

use super::client::Client;
use super::exchange::Exchange;
use super::node::Server;
use super::requests::Requests;
use super::resume::Resume;
use crate::dial::DialError;
use crate::failure::Failure;
use crate::metrics::RetryKind;
use crate::{health, node_log};
use larder_core::{Decision, Refusal};
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{self, AfterAnswer, ClientFault, Http2Fault, Next, Stage};
use std::io;

/// Returns the failure for a fault of the client.
pub(super) fn client_failure(fault: ClientFault, exchange: &Exchange) -> Failure {
    match fault {
        ClientFault::Gone | ClientFault::Stalled => Failure::ClientGone,
        ClientFault::TimedOut => Failure::BodyTimeout,
        ClientFault::Malformed(_) => Failure::BadRequest,
        ClientFault::Refused => exchange.failure.unwrap_or(Failure::BadRequest),
    }
}

/// Returns the failure for an error of a node.
pub(super) fn node_failure(stage: Stage, error: &io::Error) -> Failure {
    let inner = error.get_ref();
    // With TLS 1.3, a node rejects the switch's certificate only after the handshake.
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
    /// Counts a fault of an HTTP/2 connection.
    pub(super) fn note_http2_fault(&self, client: &Client, fault: Http2Fault) {
        let failure = match fault {
            Http2Fault::StreamsFull => Failure::StreamsFull,
            Http2Fault::Flood(_) | Http2Fault::OtherFlood => Failure::Http2Flood,
            // Each request of the connection was counted.
            Http2Fault::Malformed | Http2Fault::Stalled => return,
            Http2Fault::Panicked => {
                self.shared.decider.metrics.panicked();
                larder_log::limited_warn!(client = %client.address, "http2: request lost, its task panicked");
                return;
            }
        };
        self.shared.decider.metrics.failed(failure);
        tracing::debug!(client = %client.address, ?fault, "http2: limit exceeded");
    }

    /// Decides on the next attempt after a node has failed.
    pub(super) fn handle_node_failure(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        heads: (&RequestHead, &ReplyHead),
        error: &relay::Failure,
    ) -> Next<Server> {
        // A race between two nodes is over and was counted.
        exchange.hedge = None;
        if let (Stage::Connect, Some(prompt)) = (error.stage, &mut exchange.prompt) {
            prompt.note_unsent();
        }
        let failure = node_failure(error.stage, &error.error);
        if !exchange.resume_refused && exchange.failure != Some(Failure::Internal) {
            exchange.failure = Some(failure);
        }
        if let Some(again) = self.retry_kind(exchange, heads, (failure, error)) {
            exchange.retry = again;
            if let (Some(tracer), Some(trace)) = (&self.shared.observers.tracer, &mut exchange.trace) {
                trace.fail_attempt(tracer, failure.name());
            }
            match self.place_retry(exchange) {
                Ok(decision) => {
                    exchange.decision = Some(decision);
                    return self.server(client, exchange, heads.0);
                }
                // If no other node is left, the last failure is the reply.
                Err(refusal) => {
                    exchange.failure.get_or_insert(refusal.into());
                }
            }
        }
        let failure = exchange.failure.unwrap_or(failure);
        let mut answer = self.fail(client, exchange, heads.0, failure);
        answer.then = AfterAnswer::Close;
        Next::Answer(answer)
    }

    /// Returns the kind of the next attempt after a failure; `None` if there is none.
    fn retry_kind(
        &self,
        exchange: &mut Exchange,
        (request, reply): (&RequestHead, &ReplyHead),
        (failure, error): (Failure, &relay::Failure),
    ) -> Option<RetryKind> {
        self.forget_lost_cache(exchange, error);
        if exchange.resume_refused || exchange.failure == Some(Failure::Internal) {
            return None;
        }
        let connects = error.stage == Stage::Connect;
        let begun = error.stage == Stage::Reply { begun: true } || error.resumable.is_some();
        let stale = error.stage == Stage::Request { reused: true } && failure == Failure::NodeClosed;
        // A broken tunnel is over, and the node is not at fault.
        let is_noted = std::mem::take(&mut exchange.race_failure_noted) || begun && reply.status() == 101;
        if !stale && !is_noted {
            self.log_node_failure(exchange, failure, &error.error);
        }
        // A later break may be caused by the network or the content. A dead node is noticed soon enough.
        if !stale && !is_noted && (connects || !begun) {
            self.note_node_failure(exchange);
        }
        // A completion changes nothing at its node, so it may be sent again. One that takes too long would take as long at another
        // node, and would be computed twice.
        let is_repeatable =
            request.is_idempotent() || exchange.prompt.is_some() && failure != Failure::NodeTimeout;
        let is_retryable = connects || begun || is_repeatable && error.replayable;
        if !is_retryable {
            return None;
        }
        if stale && !exchange.same_node_retried {
            exchange.same_node_retried = true;
            return Some(RetryKind::SameNode);
        }
        if !self.may_retry(exchange) {
            return None;
        }
        exchange.resume = match (begun, error.resumable) {
            (false, _) => None,
            (true, Some(from)) => Some(Resume::new(request, reply, from)?),
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
        Some(if begun { RetryKind::Resume } else { RetryKind::OtherNode })
    }

    /// Ends the credits of a node that refuses a connection or breaks off a request: it may have restarted with an empty
    /// cache. A pooled connection that has ended says nothing, because servers close idle connections.
    fn forget_lost_cache(&self, exchange: &Exchange, error: &relay::Failure) {
        let is_lost = match error.stage {
            Stage::Connect => error.error.kind() == io::ErrorKind::ConnectionRefused,
            Stage::Request { reused } => !reused && error.error.kind() != io::ErrorKind::TimedOut,
            Stage::Reply { .. } => error.error.kind() != io::ErrorKind::TimedOut,
        };
        if let (true, Some(decision)) = (is_lost, exchange.decision) {
            self.shared.decider.routing.forget_prompts(decision.node);
        }
    }

    /// Whether the number of attempts allows another one.
    fn may_retry(&self, exchange: &Exchange) -> bool {
        // The first attempt is not a retry, and neither is the attempt that replaced a pooled connection.
        let again = exchange.attempts.saturating_sub(1 + u8::from(exchange.same_node_retried));
        again < self.shared.guards.limits.retries_max
    }

    /// Returns the node for the next attempt.
    fn place_retry(&self, exchange: &mut Exchange) -> Result<Decision, Refusal> {
        let now = self.shared.decider.clock.now();
        self.report_unserved(exchange, now);
        exchange.attempt_began = now;
        let Some(before) = exchange.decision else { return Err(Refusal::NoNode) };
        self.shared.decider.metrics.retried(exchange.retry);
        if exchange.retry == RetryKind::SameNode
            && self.shared.decider.dispatcher.nodes().is_open(before.node)
        {
            return Ok(before);
        }
        if let Some(prompt) = &mut exchange.prompt {
            let exclude = exchange.request.exclude.with(before.node);
            prompt.retry(self.shared.decider.dispatcher.nodes(), exclude);
            exchange.request = exchange.request.with_affinity(prompt.affinity());
        }
        let decision = exchange.lease.retry(exchange.request);
        if let (Err(_), Some(prompt)) = (&decision, &mut exchange.prompt) {
            prompt.end();
        }
        let decision = decision.map(|decision| self.adopt_decision(exchange, decision));
        exchange.long_lived = false;
        exchange.request.exclude = exchange.request.exclude.with(before.node);
        if decision.is_ok()
            && std::mem::take(&mut exchange.attempt_charged)
            && let Some(node) = self.shared.decider.nodes.get(before.node)
        {
            health::note_unanswered(&node);
        }
        decision
    }

    /// Reports a failure of the current node to the health checks. A request counts against one node at most, so that
    /// a request that no node can serve does not take all nodes out.
    fn note_node_failure(&self, exchange: &mut Exchange) {
        if std::mem::replace(&mut exchange.node_charged, true) {
            return;
        }
        if let Some(node) =
            exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node))
        {
            health::note_failure((&self.shared.decider, &self.shared.guards), &node);
            exchange.attempt_charged = true;
        }
    }

    /// Logs a failed request of the current node.
    fn log_node_failure(&self, exchange: &Exchange, failure: Failure, error: &io::Error) {
        if let Some(node) =
            exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node))
        {
            node.log.failed(failure, || node_log::root_cause(error));
        }
    }
}
