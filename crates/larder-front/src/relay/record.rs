//! What is written down of a request that has ended.

use super::retry::reply_begun;
use super::{Context, Relay, link};
use crate::access::Record;
use crate::cache_status::CacheOutcome;
use crate::failure::Failure;
use crate::metrics::Ended;
use http::header::{REFERER, USER_AGENT};
use larder_core::Time;
use pingora_error::Error;
use pingora_proxy::Session;

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
        self.shared.metrics.ended(&ended);
        if let Some(log) = &self.shared.access {
            let node = context.decision.and_then(|decision| self.shared.nodes.get(decision.node));
            let name = node.as_ref().map(|node| &*node.name);
            log.write(&self.line(session, context, &ended, name));
        }
        if let (Some(tracer), Some(traced)) = (&self.shared.tracer, context.traced.take()) {
            traced.end(tracer, &ended);
        }
    }

    fn line<'a>(
        &'a self,
        session: &'a Session,
        context: &'a Context,
        ended: &Ended,
        node: Option<&'a str>,
    ) -> Record<'a> {
        let request = session.req_header();
        let field = |name| request.headers.get(name).map(http::HeaderValue::as_bytes);
        Record {
            client: link(session).map(|link| link.client.ip().to_canonical()),
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
            node,
            reason: ended.reason.map(larder_core::Reason::name).or(context.answered_by),
            error: ended.failure.map(Failure::name),
            tries: context.tries,
            cache: ended.cache.map(CacheOutcome::name),
            queue: ended.queued,
            connect: context.connect,
            first_byte: ended.first_byte,
            total: ended.total,
            route: &self.shared.routing.of(ended.route).name,
            class: ended.class.name(),
            mechanism: context.delivery.mechanism.name(),
            why: context.delivery.why.name(),
            request_id: context.request_id.as_ref().map(http::HeaderValue::as_bytes),
            request: Some(&request.headers),
            reply: session.response_written().filter(|_| reply_begun(session)).map(|reply| &reply.headers),
        }
    }
}
