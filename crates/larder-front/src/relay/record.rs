//! What is written down of a request that has ended.

use super::retry::reply_begun;
use super::{Context, Relay, link};
use crate::access_fields::AccessFields;
use crate::cache_status::CacheOutcome;
use crate::failure::Failure;
use crate::handoff::Delivery;
use crate::http2;
use crate::metrics::Ended;
use crate::switch::Shared;
use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use larder_core::Time;
use larder_edge::Lookup;
use larder_edge::access::Record;
use pingora_error::Error;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::net::IpAddr;
use std::time::Duration;

impl Relay {
    /// Counts and logs a request that ended at `now`.
    pub(super) fn record(&self, session: &Session, error: Option<&Error>, context: &mut Context, now: Time) {
        let begun = reply_begun(session);
        let status = session.response_written().filter(|_| begun).map(|reply| reply.status.as_u16());
        // A tunnel has no end of its own: it is complete when either side leaves.
        let tunnel = status == Some(101);
        // A failure that a later try made good is no failure of the request.
        let failure = error
            .map(|error| context.failure.unwrap_or_else(|| Failure::of(error)))
            .filter(|failure| !(tunnel && *failure == Failure::ClientGone));
        // The switch's own answers are complete although an error led to them.
        let own_answer = failure.is_some_and(|failure| status == Some(failure.status()));
        let ended = Ended {
            node: context.decision.map(|decision| decision.node),
            reason: context.decision.map(|decision| decision.reason),
            route: context.request.route,
            class: context.request.class,
            status,
            complete: error.is_none() || own_answer || tunnel,
            failure,
            cache: context.cache,
            body_bytes: session.downstream_session.body_bytes_sent() as u64,
            queued: context.queued,
            first_byte: context.first_byte,
            total: now - context.arrived,
        };
        let facts = Facts {
            client: link(session).map(|link| link.client.ip()),
            request: session.req_header(),
            reply: session.response_written().filter(|_| begun).map(|reply| &reply.headers),
            answered_by: context.answered_by,
            tries: context.tries,
            connect: context.connect,
            delivery: context.delivery,
            request_id: context.request_id.as_deref(),
        };
        write(&self.shared, &ended, &facts);
        if let (Some(tracer), Some(traced)) = (&self.shared.tracer, context.traced.take()) {
            traced.end(tracer, &ended);
        }
    }

    /// Prepares the record of a reply whose header has come, in case the reply is aborted because the HTTP/2 client takes nothing of it:
    /// `logging` is not called then.
    pub(super) fn prepare_abort(&self, session: &Session, reply: &ResponseHeader, context: &Context) {
        let (Some(stream), Some(decision)) = (http2::current(), context.decision) else { return };
        let (shared, request, delivery) = (self.shared.clone(), context.request, context.delivery);
        let (arrived, tried, answered) = (context.arrived, context.tried, context.answered);
        let (queued, first_byte) = (context.queued, context.first_byte);
        let (tries, connect, cache) = (context.tries, context.connect, context.cache);
        let client = link(session).map(|link| link.client.ip());
        let logged = self
            .shared
            .access
            .as_ref()
            .map(|_| (session.req_header().clone(), reply.headers.clone(), context.request_id.clone()));
        let (status, untold) = (reply.status.as_u16(), context.untold);
        stream.on_abort(move |body_bytes| {
            let now = shared.clock.now();
            if untold {
                let waited = answered.unwrap_or(now) - tried;
                shared.dispatcher.unserved(now, &request, decision.node, waited);
            }
            let ended = Ended {
                node: Some(decision.node),
                reason: Some(decision.reason),
                route: request.route,
                class: request.class,
                status: Some(status),
                complete: false,
                failure: Some(Failure::ClientGone),
                cache,
                body_bytes,
                queued,
                first_byte,
                total: now - arrived,
            };
            let Some((header, reply, request_id)) = &logged else { return shared.metrics.ended(&ended) };
            let facts = Facts {
                client,
                request: header,
                reply: Some(reply),
                answered_by: None,
                tries,
                connect,
                delivery,
                request_id: request_id.as_deref(),
            };
            write(&shared, &ended, &facts);
        });
    }
}

/// The part of an ended request's record that only the access log takes.
struct Facts<'a> {
    client: Option<IpAddr>,
    request: &'a RequestHeader,
    /// The reply's header, if that was sent.
    reply: Option<&'a HeaderMap>,
    answered_by: Option<&'static str>,
    tries: u8,
    connect: Option<Duration>,
    delivery: Delivery,
    request_id: Option<&'a [u8]>,
}

/// Counts a request that has ended, and writes its line of the access log.
fn write(shared: &Shared, ended: &Ended, facts: &Facts<'_>) {
    shared.metrics.ended(ended);
    let Some(log) = &shared.access else { return };
    let node = ended.node.and_then(|node| shared.nodes.get(node));
    let request = facts.request;
    let field = |name| request.headers.get(name).map(HeaderValue::as_bytes);
    let fields = AccessFields {
        node: node.as_ref().map(|node| &*node.name),
        reason: ended.reason.map(larder_core::Reason::name).or(facts.answered_by),
        error: ended.failure.map(Failure::name),
        tries: facts.tries,
        cache: ended.cache.map(CacheOutcome::name),
        queue: ended.queued,
        connect: facts.connect,
        first_byte: ended.first_byte,
        total: ended.total,
        route: &shared.routing.of(ended.route).name,
        class: ended.class.name(),
        mechanism: facts.delivery.mechanism.name(),
        why: facts.delivery.why.name(),
        request_id: facts.request_id,
    };
    log.write(&Record {
        client: facts.client.map(|client| client.to_canonical()),
        method: request.method.as_str(),
        target: request.raw_path(),
        version: match request.version {
            http::Version::HTTP_10 => "HTTP/1.0",
            http::Version::HTTP_09 => "HTTP/0.9",
            http::Version::HTTP_2 => "HTTP/2.0",
            _ => "HTTP/1.1",
        },
        host: super::headers::host(request),
        status: Some(ended.status.or(ended.failure.map(Failure::status)).unwrap_or(499)),
        body_bytes: ended.body_bytes,
        referer: field(REFERER),
        user_agent: field(USER_AGENT),
        fields: &fields.named(),
        request: Some(&request.headers),
        reply: facts.reply.map(|fields| fields as &dyn Lookup),
    });
}
