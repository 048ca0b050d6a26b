//! Replies that the switch makes itself.

use super::client::Client;
use super::enter::ALLOWED;
use super::exchange::Exchange;
use super::known::apply;
use super::requests::Requests;
use crate::failure::{ERROR_HEADER, Failure};
use larder_edge::Fields;
use larder_http::h1::{Body, Fault, RequestHead};
use larder_http::relay::{Answer, Refusal, Then};

impl Requests {
    /// Completes an answer of the switch's own.
    pub(super) fn own(
        &self,
        client: &Client,
        exchange: &Exchange,
        head: &RequestHead,
        mut answer: Answer,
    ) -> Answer {
        let route = self.shared.decider.routing.of(exchange.request.route);
        answer.head.fields.add("Via", self.shared.via.as_bytes());
        if !route.edited {
            return answer;
        }
        self.tell_request_id(exchange, &mut answer.head.fields);
        let rules = [&self.shared.decider.routing.reply_fields, &route.edits.reply_fields];
        let status = Some(answer.head.status());
        if let Some(values) = self.values((client, exchange), head, status, rules) {
            apply(rules, &values, &mut answer.head.fields);
        }
        answer
    }

    /// Tells the client the request's id, where it is to know it.
    pub(super) fn tell_request_id(&self, exchange: &Exchange, fields: &mut impl Fields) {
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &exchange.request_id)
            && ids.config.reply
        {
            fields.set(ids.config.header.as_str(), id);
        }
    }

    /// The answer to a request that has failed.
    pub(super) fn fail(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        failure: Failure,
    ) -> Answer {
        let mut answer = self.failed(exchange, failure);
        // A client at fault may not mean what it sends next.
        let closes = match failure {
            Failure::RateLimited => false,
            Failure::Unauthorized | Failure::Denied => head.body() != Body::None,
            failure => failure.status() < 500,
        };
        answer.then = if closes { Then::Closes } else { Then::GoesOn };
        if failure == Failure::Unauthorized
            && let Some(guard) = &self.shared.decider.routing.of(exchange.request.route).edits.guard
        {
            answer.head.fields.add("WWW-Authenticate", guard.challenge().as_bytes());
        }
        self.own(client, exchange, head, answer)
    }

    fn failed(&self, exchange: &mut Exchange, failure: Failure) -> Answer {
        exchange.failure = Some(failure);
        exchange.has_failed = true;
        with_failure(failure, exchange.retry_after_s)
    }

    /// The answer to what is no request that could be decided about.
    pub(super) fn refusal(&self, refusal: Refusal) -> Option<Answer> {
        let failure = match refusal {
            Refusal::TimedOut => Failure::HeaderTimeout,
            Refusal::TooLarge { in_target: true } => Failure::UriTooLong,
            Refusal::TooLarge { in_target: false } | Refusal::Malformed { fault: Fault::TooLarge, .. } => {
                Failure::HeaderTooLarge
            }
            Refusal::Malformed { .. } | Refusal::Connect => Failure::BadRequest,
        };
        self.shared.decider.metrics.failed(failure);
        match refusal {
            // Where HTTP/2 is spoken too, what begins like neither is no request that could be answered.
            Refusal::Malformed { is_other_protocol: true, .. } if self.shared.h2c => None,
            Refusal::Connect => {
                let mut answer = Answer::new(405);
                answer.head.fields.add("Allow", ALLOWED);
                Some(answer)
            }
            _ => Some(with_failure(failure, None)),
        }
    }
}

/// The reply that names a failure.
fn with_failure(failure: Failure, retry_after_s: Option<u32>) -> Answer {
    let mut answer = Answer::new(failure.status());
    let fields = &mut answer.head.fields;
    fields.add("Content-Type", b"text/plain");
    fields.add("Cache-Control", b"no-store");
    fields.add(ERROR_HEADER, failure.name().as_bytes());
    if let Some(seconds) = retry_after_s.or(failure.retry_after_s()) {
        fields.add("Retry-After", seconds.to_string().as_bytes());
    }
    answer.body = format!("{}\n", failure.name()).into();
    answer
}
