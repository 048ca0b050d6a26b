//! The prompt of a request: its body is read before the decision.

use super::exchange::Exchange;
use super::facts::with_head;
use super::prompt_body::{BodyLimits, read_body};
use super::requests::Requests;
use crate::failure::Failure;
use crate::guard::RouteGuard;
use larder_core::Decision;
use larder_edge::Fields;
use larder_http::h1::{Body, RequestHead};
use larder_http::relay::{Answer, ClientHandle};
use larder_prompts::{Prompt, PromptLease, error_body, is_completion};

impl Requests {
    /// Whether the route places prompts, and the request is for a completion. A body with a content coding is not read.
    pub(super) fn may_have_prompt(&self, exchange: &Exchange, head: &RequestHead) -> bool {
        self.shared.decider.routing.route(exchange.request.route).prompts.is_some()
            && head.method() == b"POST"
            && head.fields.get(b"content-encoding").is_none()
            && with_head(head, |head| is_completion(head.path))
    }

    /// Reads the prompt of a request, chooses its node, and returns the body to the relay.
    pub(super) async fn read_prompt(
        &self,
        handle: &ClientHandle,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Result<(), Failure> {
        if !self.may_have_prompt(exchange, head) {
            return Ok(());
        }
        let shared = &self.shared;
        let active = shared.decider.routing.route(exchange.request.route);
        let Some(route) = &active.prompts else { return Ok(()) };
        let guarded = active.edits.guard.as_ref().and_then(RouteGuard::body_bytes_max);
        let guarded = guarded.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let bytes_max = route.config.body_bytes_max.min(guarded);
        let declared = match head.body() {
            Body::Length(bytes) => Some(bytes),
            _ => None,
        };
        let limits = BodyLimits {
            bytes_max,
            time_max: route.config.body_timeout,
            wait_max: shared.timeouts.client_read,
            rate_min: shared.guards.limits.body_rate_min,
        };
        let (content, held) =
            read_body(handle.body(), declared, limits, route.budget()).await.map_err(|error| {
                exchange.failure_detail = limits.describe(error);
                error.failure()
            })?;
        let prompt = Prompt::parse(&content).map_err(|error| {
            exchange.failure_detail = Some(error.to_string());
            Failure::NoPrompt
        })?;
        handle.return_body(content);
        exchange.request.target = prompt.target();
        let nodes = shared.decider.dispatcher.nodes();
        let lease = PromptLease::place(route.clone(), nodes, prompt.blocks(), held, None);
        exchange.request = exchange.request.with_affinity(lease.affinity());
        exchange.prompt = Some(Box::new(lease));
        // The time of the upload is that of the client.
        exchange.ready = shared.decider.clock.now();
        Ok(())
    }

    /// Adopts a decision about a request with a prompt.
    pub(super) fn adopt_decision(&self, exchange: &mut Exchange, decision: Decision) -> Decision {
        match &mut exchange.prompt {
            Some(prompt) => prompt.adopt(self.shared.decider.dispatcher.nodes(), decision),
            None => decision,
        }
    }

    /// Whether a reply of the switch to this request has the form of OpenAI's API. A request that is refused early has no
    /// route.
    pub(super) fn is_api_request(&self, exchange: &Exchange, head: &RequestHead) -> bool {
        let routing = &self.shared.decider.routing;
        routing.route(exchange.request.route).prompts.is_some()
            || routing.any_prompts && with_head(head, |head| is_completion(head.path))
    }
}

/// Replaces the body of a reply to a failed request by an error of OpenAI's API.
pub(super) fn write_api_error(answer: &mut Answer, failure: Failure, detail: Option<&str>) {
    let message = detail.unwrap_or(match failure {
        Failure::NoNode => "no server takes requests",
        Failure::QueueFull | Failure::QueueDeadline => "the servers are busy, and the queue is full",
        Failure::PromptMemoryFull => "too many prompts arrive at once",
        Failure::BodyTimeout => "the body did not arrive in time",
        Failure::BodyTooLarge => "the body is too large",
        Failure::Unauthorized => "a name and a password are required",
        Failure::Denied => "this network may not use the server",
        Failure::RateLimited => "too many requests",
        failure => failure.name(),
    });
    Fields::set(&mut answer.head.fields, "Content-Type", b"application/json");
    answer.body = error_body(failure.status(), failure.name(), message).into();
}
