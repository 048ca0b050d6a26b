//! Replies that the switch makes itself.

use super::client::Client;
use super::enter::ALLOWED;
use super::exchange::Exchange;
use super::facts::apply;
use super::prompt::write_api_error;
use super::requests::Requests;
use crate::failure::{ERROR_HEADER, Failure};
use larder_edge::Fields;
use larder_http::h1::{Body, Fault, RequestHead};
use larder_http::relay::{AfterAnswer, Answer, Refusal};

impl Requests {
    /// Adds the fields that every reply of the switch itself has, and applies the header rules.
    pub(super) fn finish_own_reply(
        &self,
        client: &Client,
        exchange: &Exchange,
        head: &RequestHead,
        mut answer: Answer,
    ) -> Answer {
        let route = self.shared.decider.routing.route(exchange.request.route);
        answer.head.fields.add("Via", self.shared.via.as_bytes());
        if !route.has_edits {
            return answer;
        }
        self.add_request_id(exchange, &mut answer.head.fields);
        let rules = [&self.shared.decider.routing.reply_fields, &route.edits.reply_fields];
        let status = Some(answer.head.status());
        if let Some(values) = self.values((client, exchange), head, status, rules) {
            apply(rules, &values, &mut answer.head.fields);
        }
        answer
    }

    /// Adds the request id to a reply, if the config says so.
    pub(super) fn add_request_id(&self, exchange: &Exchange, fields: &mut impl Fields) {
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &exchange.request_id)
            && ids.config.reply
        {
            fields.set(ids.config.header.as_str(), id);
        }
    }

    /// Returns the reply to a failed request.
    pub(super) fn fail(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        failure: Failure,
    ) -> Answer {
        let mut answer = self.failure_reply(exchange, failure);
        if self.is_api_request(exchange, head) {
            write_api_error(&mut answer, failure, exchange.failure_detail.as_deref());
        }
        // If the client is at fault, its next bytes may not be a request.
        let closes = match failure {
            Failure::RateLimited => false,
            Failure::Unauthorized | Failure::Denied => head.body() != Body::None,
            failure => failure.status() < 500,
        };
        answer.then = if closes { AfterAnswer::Close } else { AfterAnswer::KeepAlive };
        if failure == Failure::Unauthorized
            && let Some(guard) = &self.shared.decider.routing.route(exchange.request.route).edits.guard
        {
            answer.head.fields.add("WWW-Authenticate", guard.challenge().as_bytes());
        }
        self.finish_own_reply(client, exchange, head, answer)
    }

    fn failure_reply(&self, exchange: &mut Exchange, failure: Failure) -> Answer {
        exchange.failure = Some(failure);
        exchange.has_failed = true;
        reply_for_failure(failure, exchange.retry_after_s)
    }

    /// Returns the reply to a message that could not be parsed as a request.
    pub(super) fn refusal_reply(&self, refusal: Refusal) -> Option<Answer> {
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
            // If HTTP/2 is enabled too, a connection in neither protocol gets no reply.
            Refusal::Malformed { is_other_protocol: true, .. } if self.shared.h2c => None,
            Refusal::Connect => {
                let mut answer = Answer::new(405);
                answer.head.fields.add("Allow", ALLOWED);
                Some(answer)
            }
            _ => Some(reply_for_failure(failure, None)),
        }
    }
}

/// Returns a reply that names a failure.
fn reply_for_failure(failure: Failure, retry_after_s: Option<u32>) -> Answer {
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
