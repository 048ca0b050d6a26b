//! The end of a request: reports to the dispatcher, the metrics, the access log, traces and the shadow.
//!
//! The dispatcher gets a report of every whole reply from one node, whatever its status. A policy whose estimate of a
//! node decays with time must keep hearing from a node that returns errors, or it would come to prefer that node. A
//! fast error does look fast; health checks detect it. Only replies with status 200 to 299 or 304 report whether the
//! node had the target and enter the census, because others say nothing about the cost of the target. A reply that
//! broke off or came from two nodes has no time of its own, and neither has a tunnel.
//!
//! For every other attempt, the dispatcher gets the time that the node was waited for, up to the head of the reply if
//! it arrived. Otherwise the dispatcher would not notice a node that hangs.

use super::client::Client;
use super::exchange::Exchange;
use super::facts::host;
use super::failure::client_failure;
use super::requests::Requests;
use crate::access_fields::AccessFields;
use crate::failure::Failure;
use crate::metrics::RequestEnd;
use crate::shadow::ShadowFeed;
use larder_core::dispatch::{CacheResult, ReplyFeedback};
use larder_core::shadow::ObservedRequest;
use larder_core::{Bytes, NodeId, TargetId, Time};
use larder_edge::access::Record;
use larder_http::h1::{ReplyHead, RequestHead, Version};
use larder_http::relay::Report;

impl Requests {
    /// Reports a finished request.
    pub(super) fn end(
        &self,
        client: &Client,
        mut exchange: Exchange,
        request: &mut RequestHead,
        reply: &ReplyHead,
        report: &Report,
    ) {
        let now = self.shared.decider.clock.now();
        let failure = match report.fault {
            Some(fault) => Some(client_failure(fault, &exchange)),
            None => exchange.failure.filter(|_| exchange.has_failed || !report.complete),
        };
        // The node that sent the whole reply.
        let whole = exchange.decision.filter(|_| {
            report.complete
                && failure.is_none()
                && exchange.resume.is_none()
                && exchange.reply_head_at.is_some()
                && report.status.is_some_and(|status| status >= 200)
        });
        match whole {
            Some(decision) => self.report_served(&exchange, decision.node, report, now),
            None => self.report_unserved(&mut exchange, now),
        }
        let ended = RequestEnd {
            node: exchange.decision.map(|decision| decision.node),
            reason: exchange.decision.map(|decision| decision.reason),
            route: exchange.request.route,
            class: exchange.request.class,
            status: report.status,
            complete: report.complete,
            failure,
            cache: exchange.cache,
            body_bytes: report.body_bytes,
            queued: exchange.queued,
            first_byte: exchange.first_byte,
            total: now - exchange.arrived,
        };
        self.shared.decider.metrics.ended(&ended);
        exchange.lease.release(now);
        // The log and the observers see the client's fields and path.
        if let Some(fields) = &exchange.client_fields {
            request.fields.restore(fields);
        }
        if let Some(target) = &exchange.client_target {
            let _ = request.set_target(target);
        }
        self.log(client, &exchange, (request, reply), &ended);
        if let (Some(tracer), Some(trace)) = (&self.shared.observers.tracer, exchange.trace.take()) {
            trace.end(tracer, &ended);
        }
        // A request that was refused early has no target.
        if exchange.request.target == TargetId(0) {
            return;
        }
        self.shared.observers.hottest.note(now, &exchange.request, host(request), request.target());
        let feed = self.shared.observers.shadow.as_ref();
        if let (Some(decision), Some(feed)) =
            (whole, feed.filter(|feed| feed.draws(exchange.request.target, now)))
        {
            show(feed, (&exchange, decision.node), request, report, now);
        }
    }

    /// Reports a whole reply of a node to the dispatcher and the route's census. The request still holds its load.
    fn report_served(&self, exchange: &Exchange, node: NodeId, report: &Report, now: Time) {
        let is_useful = matches!(report.status, Some(200..=299 | 304));
        let served = ReplyFeedback {
            elapsed: now - exchange.attempt_began,
            first_byte: exchange.first_byte.map(|after| (exchange.arrived + after) - exchange.attempt_began),
            found: exchange.cache.filter(|_| is_useful),
        };
        self.shared.decider.dispatcher.observe_reply(now, &exchange.request, node, &served);
        let census = self.shared.decider.routing.route(exchange.request.route).census.as_ref();
        if let Some(census) = census.filter(|_| is_useful) {
            census.count(exchange.request.target, Bytes(report.body_bytes));
        }
    }

    /// Reports to the dispatcher that the current attempt has ended without a whole reply, unless it was reported.
    /// The request still holds its load.
    pub(super) fn report_unserved(&self, exchange: &mut Exchange, now: Time) {
        let answered = exchange.reply_head_at.take();
        if !std::mem::take(&mut exchange.unreported) {
            return;
        }
        if let Some(decision) = exchange.decision {
            let waited = answered.unwrap_or(now) - exchange.attempt_began;
            self.shared.decider.dispatcher.observe_failure(now, &exchange.request, decision.node, waited);
        }
    }

    fn log(
        &self,
        client: &Client,
        exchange: &Exchange,
        (request, reply): (&RequestHead, &ReplyHead),
        ended: &RequestEnd,
    ) {
        let Some(log) = &self.shared.observers.access else { return };
        let node = ended.node.and_then(|node| self.shared.decider.nodes.get(node));
        let fields = AccessFields {
            node: node.as_ref().map(|node| &*node.name),
            reason: ended.reason.map(larder_core::Reason::name).or(exchange.own_reply),
            error: ended.failure.map(Failure::name),
            attempts: exchange.attempts,
            cache: ended.cache.map(CacheResult::name),
            queue: ended.queued,
            connect: exchange.connect,
            first_byte: ended.first_byte,
            total: ended.total,
            route: &self.shared.decider.routing.route(ended.route).name,
            class: ended.class.name(),
            mechanism: exchange.delivery.mechanism.name(),
            delivery_reason: exchange.delivery.reason.name(),
            request_id: exchange.request_id.as_deref(),
        };
        log.write(&Record {
            client: Some(client.address.ip().to_canonical()),
            // A method is an ASCII token.
            method: std::str::from_utf8(request.method()).unwrap_or("-"),
            target: request.target(),
            version: match request.version() {
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
                Version::Http2 => "HTTP/2.0",
            },
            host: host(request),
            status: Some(ended.status.or(ended.failure.map(Failure::status)).unwrap_or(499)),
            body_bytes: ended.body_bytes,
            referer: request.fields.get(b"referer"),
            user_agent: request.fields.get(b"user-agent"),
            fields: &fields.values(),
            request: Some(&request.fields),
            reply: ended.status.is_some().then_some(&reply.fields as _),
        });
    }
}

/// Passes a served request to the shadow.
fn show(
    feed: &ShadowFeed,
    (exchange, node): (&Exchange, NodeId),
    request: &RequestHead,
    report: &Report,
    now: Time,
) {
    let is_useful = matches!(report.status, Some(200 | 206 | 304));
    let is_whole = report.status == Some(200) && request.method() == b"GET";
    feed.show(ObservedRequest {
        at: now,
        request: exchange.request,
        node,
        elapsed: now - exchange.attempt_began,
        first_byte: exchange.first_byte.map(|after| (exchange.arrived + after) - exchange.attempt_began),
        bytes: is_whole.then_some(Bytes(report.body_bytes)),
        found: exchange.cache.filter(|_| is_useful),
        keeps: is_useful && exchange.cacheable,
    });
}
