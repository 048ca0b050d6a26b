//! The end of a request: what the dispatcher, the metrics, the access log, traces and those who watch learn of it.
//!
//! The dispatcher learns of every reply that came whole from one node, whatever its status: a policy whose idea of a node fades with
//! time must go on hearing of one that answers errors, or it would come to think the best of it. An error that comes quickly does look
//! quick; health checks find that it is wrong. Whether the node had the target is told for a status of 200 to 299 or 304 only, and only
//! such replies enter the census: others say nothing about the cost of the target. A reply that broke off, or that two nodes had a part
//! in, has no time of its own; a tunnel lasts as long as its users like.
//!
//! For every other attempt the dispatcher learns how long the node was waited for, up to the head of the reply if that came. Otherwise it
//! would not hear of a node that hangs.

use super::client::Client;
use super::exchange::Exchange;
use super::failure::of_client;
use super::known::host;
use super::requests::Requests;
use crate::access_fields::AccessFields;
use crate::failure::Failure;
use crate::metrics::Ended;
use crate::shadow::Feed;
use larder_core::dispatch::{Found, Served};
use larder_core::shadow::Seen;
use larder_core::{Bytes, NodeId, TargetId, Time};
use larder_edge::access::Record;
use larder_http::h1::{ReplyHead, RequestHead, Version};
use larder_http::relay::Report;

impl Requests {
    /// A request has ended.
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
            Some(fault) => Some(of_client(fault, &exchange)),
            None => exchange.failure.filter(|_| exchange.has_failed || !report.complete),
        };
        // The node that gave the whole reply.
        let whole = exchange.decision.filter(|_| {
            report.complete
                && failure.is_none()
                && exchange.resume.is_none()
                && exchange.answered.is_some()
                && report.status.is_some_and(|status| status >= 200)
        });
        match whole {
            Some(decision) => self.tell_served(&exchange, decision.node, report, now),
            None => self.tell_unserved(&mut exchange, now),
        }
        let ended = Ended {
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
        // The client's own fields and path are what is logged and watched.
        if let Some(fields) = &exchange.unedited {
            request.fields.restore(fields);
        }
        if let Some(target) = &exchange.unedited_target {
            let _ = request.set_target(target);
        }
        self.log(client, &exchange, (request, reply), &ended);
        if let (Some(tracer), Some(traced)) = (&self.shared.observers.tracer, exchange.traced.take()) {
            traced.end(tracer, &ended);
        }
        // What was refused before its target was known asks for none.
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

    /// Tells the dispatcher, and the census of the route, that a node has given a whole reply. The request still holds its load.
    fn tell_served(&self, exchange: &Exchange, node: NodeId, report: &Report, now: Time) {
        let is_useful = matches!(report.status, Some(200..=299 | 304));
        let served = Served {
            elapsed: now - exchange.tried,
            first_byte: exchange.first_byte.map(|after| (exchange.arrived + after) - exchange.tried),
            found: exchange.cache.filter(|_| is_useful),
        };
        self.shared.decider.dispatcher.served(now, &exchange.request, node, &served);
        let census = self.shared.decider.routing.of(exchange.request.route).census.as_ref();
        if let Some(census) = census.filter(|_| is_useful) {
            census.count(exchange.request.target, Bytes(report.body_bytes));
        }
    }

    /// Tells the dispatcher, unless it knows, that the current attempt has ended without a whole reply. The request still holds its
    /// load.
    pub(super) fn tell_unserved(&self, exchange: &mut Exchange, now: Time) {
        let answered = exchange.answered.take();
        if !std::mem::take(&mut exchange.untold) {
            return;
        }
        if let Some(decision) = exchange.decision {
            let waited = answered.unwrap_or(now) - exchange.tried;
            self.shared.decider.dispatcher.unserved(now, &exchange.request, decision.node, waited);
        }
    }

    fn log(
        &self,
        client: &Client,
        exchange: &Exchange,
        (request, reply): (&RequestHead, &ReplyHead),
        ended: &Ended,
    ) {
        let Some(log) = &self.shared.observers.access else { return };
        let node = ended.node.and_then(|node| self.shared.decider.nodes.get(node));
        let fields = AccessFields {
            node: node.as_ref().map(|node| &*node.name),
            reason: ended.reason.map(larder_core::Reason::name).or(exchange.answered_by),
            error: ended.failure.map(Failure::name),
            tries: exchange.tries,
            cache: ended.cache.map(Found::name),
            queue: ended.queued,
            connect: exchange.connect,
            first_byte: ended.first_byte,
            total: ended.total,
            route: &self.shared.decider.routing.of(ended.route).name,
            class: ended.class.name(),
            mechanism: exchange.delivery.mechanism.name(),
            why: exchange.delivery.why.name(),
            request_id: exchange.request_id.as_deref(),
        };
        log.write(&Record {
            client: Some(client.address.ip().to_canonical()),
            // A method is a token, which is ASCII.
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
            fields: &fields.named(),
            request: Some(&request.fields),
            reply: ended.status.is_some().then_some(&reply.fields as _),
        });
    }
}

/// Shows a request that a node has served to the shadow.
fn show(
    feed: &Feed,
    (exchange, node): (&Exchange, NodeId),
    request: &RequestHead,
    report: &Report,
    now: Time,
) {
    let is_useful = matches!(report.status, Some(200 | 206 | 304));
    let is_whole = report.status == Some(200) && request.method() == b"GET";
    feed.show(Seen {
        at: now,
        request: exchange.request,
        node,
        elapsed: now - exchange.tried,
        first_byte: exchange.first_byte.map(|after| (exchange.arrived + after) - exchange.tried),
        bytes: is_whole.then_some(Bytes(report.body_bytes)),
        found: exchange.cache.filter(|_| is_useful),
        keeps: is_useful && exchange.keeps,
    });
}
