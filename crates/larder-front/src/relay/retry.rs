//! When a request is tried again, and how.
//!
//! - No connection: nothing was sent, so any request goes to another node.
//! - A failure before the client has got anything: a request whose method is idempotent (RFC 9110 section 9.2.2) and
//!   whose body, if any, is still at hand. If the connection came from the pool, the node may only have closed an
//!   idle one at the wrong moment: it is asked once more, which keeps the locality; after that another node is.
//! - A failure in the middle of a reply: a GET whose reply has a length and a strong `ETag` is continued. Another
//!   node is asked for the missing bytes (RFC 9110 section 14, `Range` with `If-Range`); the client sees one reply.
//!   If what comes back is not exactly the rest of the same representation, the reply is broken off.
//! - A tunnel (101) that breaks off is over.

use super::{Context, Relay};
use crate::failure::Failure;
use crate::health;
use crate::metrics::Retry;
use crate::node_log;
use http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderValue, Method, StatusCode};
use pingora_core::ErrorType;
use pingora_error::{Error, ErrorSource, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

/// The rest of a reply that broke off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    etag: HeaderValue,
    total: u64,
    from: u64,
}

impl Resume {
    /// What is missing of the reply that `session` has begun to send; `None` if it cannot be continued.
    fn of(session: &Session) -> Option<Self> {
        let request = session.req_header();
        let sent = session.response_written()?;
        if request.method != Method::GET
            || request.headers.contains_key(RANGE)
            || sent.status != StatusCode::OK
            || sent.headers.contains_key(TRANSFER_ENCODING)
        {
            return None;
        }
        let etag = sent.headers.get(ETAG)?;
        let total = sent.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
        let from = u64::try_from(session.downstream_session.body_bytes_sent()).ok()?;
        let strong = etag.as_bytes().starts_with(b"\"");
        (strong && from < total).then(|| Self { etag: etag.clone(), total, from })
    }

    /// Turns the request into one for the rest.
    pub(super) fn ask(&self, request: &mut RequestHeader) -> Result<()> {
        for name in [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE] {
            request.remove_header(&name);
        }
        request.insert_header(RANGE, format!("bytes={}-", self.from))?;
        request.insert_header(IF_RANGE, self.etag.clone())
    }

    /// Whether the reply is the rest of the same representation.
    pub(super) fn check(&self, reply: &ResponseHeader) -> Result<()> {
        let expected = format!("bytes {}-{}/{}", self.from, self.total - 1, self.total);
        let range = reply.headers.get(CONTENT_RANGE).map(HeaderValue::as_bytes);
        let same = reply.headers.get(ETAG) == Some(&self.etag);
        if reply.status == StatusCode::PARTIAL_CONTENT && range == Some(expected.as_bytes()) && same {
            Ok(())
        } else {
            Err(Error::create(ErrorType::InvalidHTTPHeader, ErrorSource::Upstream, None, None))
        }
    }
}

/// Whether this is the status of a reply that no other follows: 101 is, unlike all other informational ones.
pub(super) fn is_final(status: StatusCode) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS || !status.is_informational()
}

/// Whether the client has got (a part of) the reply.
pub(super) fn reply_begun(session: &Session) -> bool {
    session.response_written().is_some_and(|reply| is_final(reply.status))
}

/// Whether the client has got a reply of 101.
pub(super) fn tunnel_is_open(session: &Session) -> bool {
    session.response_written().is_some_and(|reply| reply.status == StatusCode::SWITCHING_PROTOCOLS)
}

impl Context {
    /// False if the client has got a part of the reply that cannot be continued; else notes what is missing.
    pub(super) fn resume_possible(&mut self, session: &Session) -> bool {
        if !reply_begun(session) {
            return true;
        }
        self.resume = Resume::of(session);
        self.resume.is_some()
    }
}

impl Relay {
    /// Whether another try is allowed by their number.
    pub(super) fn may_retry(&self, context: &Context) -> bool {
        // The first try is none, and neither is the one that made up for a pooled connection.
        let again = context.tries.saturating_sub(1 + u8::from(context.same_node_tried));
        again < self.shared.limits.retries_max
    }

    /// Takes the try from the budget that all requests share.
    pub(super) fn retry_is_in_budget(&self, context: &mut Context) -> bool {
        let in_budget =
            self.shared.retries.take(self.shared.clock.now(), self.shared.metrics.ended_requests());
        if !in_budget {
            // Nothing more is asked for, so that what was sent of the reply is all of it.
            context.resume = None;
        }
        in_budget
    }

    /// Tells health that the node of the present try has failed. A request charges one node at most, so that one
    /// that no node can serve does not go round and take them all out.
    pub(super) fn note_node_failure(&self, context: &mut Context) {
        if std::mem::replace(&mut context.charged, true) {
            return;
        }
        if let Some(node) = context.decision.and_then(|decision| self.shared.nodes.get(decision.node)) {
            health::note_failure(&self.shared, &node);
            context.unanswered = true;
        }
    }

    /// Tells the operator of a request that failed at a node. The failures of a hedged request are logged where its nodes
    /// are asked.
    pub(super) fn log_node_failure(&self, context: &Context, failure: Failure, error: &Error) {
        if context.race.is_none()
            && let Some(node) = context.decision.and_then(|decision| self.shared.nodes.get(decision.node))
        {
            node.log.failed(failure, || node_log::cause(error));
        }
    }

    /// What to do after a failure on an open connection; `None` if that was it.
    pub(super) fn judge(
        &self,
        session: &mut Session,
        context: &mut Context,
        error: &Error,
        reused: bool,
    ) -> Option<Retry> {
        if context.resume_refused {
            // The failure stays that of the node whose reply broke off; this one did as it should.
            return None;
        }
        if error.esource() == &ErrorSource::Internal && context.failure.is_some() {
            // It has its name already.
            return None;
        }
        let raced = context.race.as_ref().map(|race| race.failed()).unwrap_or_default();
        context.failure = Some(raced.first.unwrap_or_else(|| Failure::of(error)));
        if context.failure == Some(Failure::Internal) {
            return None;
        }
        context.charged |= raced.charged;
        if let Some(second) = raced.second {
            context.request.exclude = context.request.exclude.with(second);
        }
        if error.esource() != &ErrorSource::Upstream {
            return None;
        }
        let begun = reply_begun(session);
        let stale = reused && !begun && context.failure == Some(Failure::NodeClosed);
        if !stale && !tunnel_is_open(session) {
            self.log_node_failure(context, Failure::of(error), error);
        }
        // What breaks off later may be the network's fault or the content's; a node that is gone shows soon enough.
        if !stale && !begun {
            self.note_node_failure(context);
        }
        if !begun
            && (!session.req_header().method.is_idempotent() || session.as_ref().retry_buffer_truncated())
        {
            return None;
        }
        if stale && !context.same_node_tried {
            context.same_node_tried = true;
            return Some(Retry::SameNode);
        }
        if !self.may_retry(context) || !context.resume_possible(session) || !self.retry_is_in_budget(context)
        {
            return None;
        }
        Some(if begun { Retry::Resume } else { Retry::OtherNode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resume() -> Resume {
        Resume { etag: HeaderValue::from_static("\"v1\""), total: 100, from: 40 }
    }

    fn reply(status: u16, range: &'static str, etag: Option<&'static str>) -> ResponseHeader {
        let mut reply = ResponseHeader::build(status, None).expect("a reply");
        reply.insert_header(CONTENT_RANGE, range).expect("inserts");
        if let Some(etag) = etag {
            reply.insert_header(ETAG, etag).expect("inserts");
        }
        reply
    }

    #[test]
    fn the_rest_is_asked_for_without_other_conditions() {
        let mut request = RequestHeader::build("GET", b"/", None).expect("a header");
        request.insert_header(IF_NONE_MATCH, "\"v0\"").expect("inserts");
        resume().ask(&mut request).expect("asks");
        assert_eq!(request.headers[RANGE], "bytes=40-");
        assert_eq!(request.headers[IF_RANGE], "\"v1\"");
        assert!(!request.headers.contains_key(IF_NONE_MATCH));
    }

    #[test]
    fn only_the_rest_of_the_same_thing_will_do() {
        assert!(resume().check(&reply(206, "bytes 40-99/100", Some("\"v1\""))).is_ok());
        assert!(resume().check(&reply(206, "bytes 40-99/100", None)).is_err());
        assert!(resume().check(&reply(206, "bytes 40-99/100", Some("\"v2\""))).is_err());
        assert!(resume().check(&reply(206, "bytes 40-98/100", Some("\"v1\""))).is_err());
        assert!(resume().check(&reply(206, "bytes 0-99/100", Some("\"v1\""))).is_err());
        assert!(resume().check(&reply(200, "bytes 40-99/100", Some("\"v1\""))).is_err());
    }
}
