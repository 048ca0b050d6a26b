//! Steps before the decision: limits, rules for fields, guards, and replies of the switch itself.

use super::client::Client;
use super::exchange::{Exchange, PendingStep};
use super::facts::{host, with_head};
use super::node::Server;
use super::requests::Requests;
use crate::clients::RateExceeded;
use crate::edits;
use crate::failure::Failure;
use crate::long_lived::wants_long_lived;
use larder_edge::{Sender, client_address};
use larder_http::h1::{Body, Fault, Form, RequestHead};
use larder_http::relay::{Answer, ClientHandle, Next};

/// Methods that the switch forwards, for `Allow`.
pub(super) const ALLOWED: &[u8] = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl Requests {
    /// Starts a request.
    pub(super) fn begin(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Next<Server> {
        if let Some(ids) = &self.shared.request_ids {
            exchange.request_id = Some(ids.id_for(&head.fields));
        }
        let entered = self.enter(client, exchange, head);
        if let Some(next) = self.finish_early(client, exchange, head, entered) {
            return next;
        }
        if self.needs_await(exchange, head) {
            return Next::Later;
        }
        let guarded = self.guard(client, exchange, head).and_then(|own| match own {
            None => self.after_guard(client, exchange, head),
            own => Ok(own),
        });
        match self.finish_early(client, exchange, head, guarded) {
            None => self.place(client, exchange, head),
            Some(next) => next,
        }
    }

    /// Continues a request whose decision has to wait.
    pub(super) async fn continue_decision(
        &self,
        (client, handle): (&Client, &ClientHandle),
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Next<Server> {
        if exchange.pending_step == PendingStep::Guard {
            if let Some(answer) = self.answer_challenge(client, exchange, head).await {
                return Next::Answer(answer);
            }
            let guarded = match self.guard(client, exchange, head) {
                Ok(None) => match self.authenticate(exchange, head).await {
                    Ok(()) => self.after_guard(client, exchange, head),
                    Err(failure) => Err(failure),
                },
                other => other,
            };
            if let Some(next) = self.finish_early(client, exchange, head, guarded) {
                return next;
            }
            if let Err(failure) = self.read_prompt(handle, exchange, head).await {
                return Next::Answer(self.fail(client, exchange, head, failure));
            }
            let next = self.place(client, exchange, head);
            if !matches!(next, Next::Later) {
                return next;
            }
        }
        self.wait(client, exchange, head).await
    }

    /// Returns the reply of a request that got a reply of the switch itself, or failed.
    fn finish_early(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        outcome: Result<Option<Answer>, Failure>,
    ) -> Option<Next<Server>> {
        match outcome {
            Ok(own) => own.map(Next::Answer),
            Err(failure) => Some(Next::Answer(self.fail(client, exchange, head, failure))),
        }
    }

    /// Applies limits and field rules, finds the route, and replies to requests that end here.
    fn enter(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Result<Option<Answer>, Failure> {
        let limits = &self.shared.guards.limits;
        if head.target().len() > limits.uri_bytes_max {
            return Err(Failure::UriTooLong);
        }
        self.write_sender(client, head);
        self.check_rate(client, exchange, head)?;
        to_origin_form(head).map_err(|_| Failure::BadRequest)?;
        exchange.request = with_head(head, |head| {
            let request = self.shared.decider.routing.request(head, Some(client.address.ip()));
            request.with_lasting(wants_long_lived(head.method, head.headers))
        });
        if is_node_path(head.target()) {
            exchange.own_reply = Some("own-path");
            return Ok(Some(self.finish_own_reply(client, exchange, head, Answer::new(404))));
        }
        if !count_hop(head) {
            let mut answer = Answer::new(if head.method() == b"OPTIONS" { 200 } else { 405 });
            let _ = answer.head.fields.append(b"Allow", ALLOWED);
            return Ok(Some(self.finish_own_reply(client, exchange, head, answer)));
        }
        Ok(None)
    }

    /// Removes fields that the sender may not set, and adds fields that identify it, before routes, keys and limits
    /// read them.
    fn write_sender(&self, client: &Client, head: &mut RequestHead) {
        let (rules, security) = (&self.shared.guards.entry, client.security.as_ref());
        let mut dropped = rules.drop_underscores(&mut head.fields);
        let (address, named) = (client.address.ip(), host(head).to_vec());
        let sender = Sender {
            address,
            trusted: rules.trusted_relays.contains(address),
            secure: security.is_some(),
            host: Some(&named),
            client_cert: security.and_then(|security| Some(security.client_cert.as_ref()?.as_bytes())),
        };
        dropped += rules.identify(&mut head.fields, sender);
        if dropped > 0 {
            self.shared.decider.metrics.fields_dropped(dropped);
        }
    }

    /// Counts the request against the rate limit of its client.
    fn check_rate(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Result<(), Failure> {
        let Some(clients) = &self.shared.guards.per_client else { return Ok(()) };
        let key_for = clients.key_for_request(&head.fields, client.address.ip());
        clients.request(key_for, exchange.arrived).map_err(|RateExceeded { wait }| {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            exchange.retry_after_s = u32::try_from(seconds).ok();
            Failure::RateLimited
        })
    }

    /// Whether the request has to wait for the store of ACME challenges, for a password check, or for its body.
    fn needs_await(&self, exchange: &Exchange, head: &RequestHead) -> bool {
        let guard = &self.shared.decider.routing.route(exchange.request.route).edits.guard;
        guard.as_ref().is_some_and(|guard| guard.users.is_some())
            || self.may_be_challenge(head)
            || self.may_have_prompt(exchange, head)
    }

    fn may_be_challenge(&self, head: &RequestHead) -> bool {
        head.target().starts_with(larder_edge::WELL_KNOWN)
            && self.shared.tls.as_ref().is_some_and(|tls| tls.acme().is_some())
    }

    /// Replies to an ACME challenge (RFC 8555 section 8.3). A challenge that is not in the store continues as an
    /// ordinary request.
    async fn answer_challenge(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Option<Answer> {
        if !self.may_be_challenge(head) {
            return None;
        }
        let contents = self.shared.tls.as_ref()?.acme()?.answer(head.target()).await?;
        exchange.own_reply = Some("acme");
        let mut answer = Answer::new(200);
        let _ = answer.head.fields.append(b"Content-Type", b"application/octet-stream");
        answer.body = contents.into();
        Some(self.finish_own_reply(client, exchange, head, answer))
    }

    /// Checks the client's password, if the route requires one.
    async fn authenticate(&self, exchange: &Exchange, head: &RequestHead) -> Result<(), Failure> {
        match &self.shared.decider.routing.route(exchange.request.route).edits.guard {
            Some(guard) => guard.authenticate(&head.fields).await,
            None => Ok(()),
        }
    }

    /// Redirects to `https`, and refuses clients whose network the route's guard denies.
    fn guard(
        &self,
        client: &Client,
        exchange: &Exchange,
        head: &RequestHead,
    ) -> Result<Option<Answer>, Failure> {
        if let Some(answer) = self.redirect_to_https(client, exchange, head) {
            return Ok(Some(answer));
        }
        if self.guard_allows(client, exchange, head) { Ok(None) } else { Err(Failure::Denied) }
    }

    /// Applies the rest of the route's guard, and returns the route's own reply, if it has one.
    fn after_guard(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Result<Option<Answer>, Failure> {
        let route = self.shared.decider.routing.route(exchange.request.route);
        if let Some(guard) = &route.edits.guard {
            if let Body::Length(bytes) = head.body()
                && guard.body_is_too_large(bytes)
            {
                return Err(Failure::BodyTooLarge);
            }
            if guard.hides_authorization() {
                head.fields.remove(b"authorization");
            }
        }
        match &route.edits.answer {
            Some(answer) if answer.applies_to(client.is_secure()) => {
                self.route_answer(client, exchange, head, answer).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether the client's network may use the route.
    fn guard_allows(&self, client: &Client, exchange: &Exchange, head: &RequestHead) -> bool {
        let Some(guard) = &self.shared.decider.routing.route(exchange.request.route).edits.guard else {
            return true;
        };
        if !guard.uses_addresses() {
            return true;
        }
        let relays = &self.shared.guards.entry.trusted_relays;
        let address = client_address(&head.fields, client.address.ip(), relays);
        address.is_some_and(|address| guard.allows(address))
    }

    /// Redirects a request without TLS to the same URL under `https`, if the config says so.
    fn redirect_to_https(&self, client: &Client, exchange: &Exchange, head: &RequestHead) -> Option<Answer> {
        let port = self.shared.redirect?;
        if client.is_secure() || head.target().starts_with(larder_edge::WELL_KNOWN) {
            return None;
        }
        let location = larder_edge::https_url(host(head), head.target(), port)?;
        let mut answer = Answer::new(308);
        let _ = answer.head.fields.append(b"Location", location.as_bytes());
        Some(self.finish_own_reply(client, exchange, head, answer))
    }

    fn route_answer(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        given: &edits::DirectReply,
    ) -> Result<Answer, Failure> {
        exchange.own_reply = Some(given.name());
        let answer = match given {
            edits::DirectReply::Redirect { status, to, .. } => {
                let location =
                    self.with_facts((client, exchange), head, None, |facts| edits::location(to, facts));
                let location = location.ok_or(Failure::BadRequest)?;
                let mut answer = Answer::new(status.as_u16());
                let _ = answer.head.fields.append(b"Location", &location);
                answer
            }
            edits::DirectReply::Respond { status, body, content_type } => {
                let mut answer = Answer::new(status.as_u16());
                if !body.is_empty() {
                    let _ = answer.head.fields.append(b"Content-Type", content_type.as_bytes());
                }
                answer.body = body.clone().into();
                answer
            }
        };
        Ok(self.finish_own_reply(client, exchange, head, answer))
    }
}

/// Whether a path belongs to the interface between nodes and switches, which clients cannot reach through the switch.
fn is_node_path(target: &[u8]) -> bool {
    target.starts_with(b"/.larder/")
}

/// Converts a target in absolute form to the origin form that rules, keys and nodes expect (RFC 9112 section 3.2.1).
fn to_origin_form(head: &mut RequestHead) -> Result<(), Fault> {
    if head.form() != Form::Absolute {
        return Ok(());
    }
    // An absolute form has a scheme.
    let target = head.target();
    let after = target.windows(3).position(|part| part == b"://").map_or(0, |at| at + 3);
    let rest = &target[after..];
    let path = match rest.iter().position(|byte| matches!(byte, b'/' | b'?')) {
        Some(at) if rest[at] == b'/' => rest[at..].to_vec(),
        Some(at) => [b"/", &rest[at..]].concat(),
        // RFC 9112 section 3.2.4.
        None if head.method() == b"OPTIONS" => b"*".to_vec(),
        None => b"/".to_vec(),
    };
    head.set_target(&path)
}

/// Decrements `Max-Forwards` (RFC 9110 section 7.6.2). Returns false if the request must not be forwarded.
fn count_hop(head: &mut RequestHead) -> bool {
    if !matches!(head.method(), b"OPTIONS" | b"TRACE") {
        return true;
    }
    let hops = head.fields.get(b"max-forwards").and_then(|hops| std::str::from_utf8(hops).ok()?.parse().ok());
    match hops {
        None => true,
        Some(0_u32) => false,
        // An existing field is replaced.
        Some(hops) => head.fields.set(b"Max-Forwards", (hops - 1).to_string().as_bytes()).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str, fields: &str) -> RequestHead {
        let mut head = RequestHead::new();
        head.read(format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).expect("a request");
        head
    }

    #[test]
    fn node_paths_are_recognized() {
        for path in ["/.larder/load", "/.larder/events?x", "/.larder/"] {
            assert!(is_node_path(path.as_bytes()), "{path}");
        }
        for path in ["/", "/.larder", "/a/.larder/load", "/.lard"] {
            assert!(!is_node_path(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn absolute_targets_become_origin_form() {
        for (line, path) in [
            ("GET http://a/b?c", "/b?c"),
            ("GET HTTPS://a?c", "/?c"),
            ("GET http://a", "/"),
            ("OPTIONS http://a", "*"),
            ("GET /http://a/b", "/http://a/b"),
            ("OPTIONS *", "*"),
        ] {
            let mut head = request(line, "");
            to_origin_form(&mut head).expect("a target");
            assert_eq!(head.target(), path.as_bytes(), "{line}");
        }
    }

    #[test]
    fn max_forwards_applies_to_options_and_trace() {
        assert!(!count_hop(&mut request("OPTIONS /", "Max-Forwards: 0\r\n")));
        let mut more = request("TRACE /", "Max-Forwards: 7\r\n");
        assert!(count_hop(&mut more));
        assert_eq!(more.fields.get(b"max-forwards"), Some(&b"6"[..]));
        for (line, hops) in [("GET /", "0"), ("TRACE /", "many"), ("TRACE /", "-1")] {
            let mut other = request(line, &format!("Max-Forwards: {hops}\r\n"));
            assert!(count_hop(&mut other));
            assert_eq!(other.fields.get(b"max-forwards"), Some(hops.as_bytes()));
        }
    }
}
