//! A request before a node is chosen: limits, the rules for its fields, guards, and the switch's own answers.

use super::client::Client;
use super::exchange::{Exchange, WaitsFor};
use super::known::{host, with_head};
use super::node::Server;
use super::requests::Requests;
use crate::clients::TooMany;
use crate::edits;
use crate::failure::Failure;
use crate::long_lived::asks_to_last;
use larder_edge::{Sender, client_address};
use larder_http::h1::{Body, Fault, Form, RequestHead};
use larder_http::relay::{Answer, Next};

/// Methods of requests that the switch passes on, for `Allow`.
pub(super) const ALLOWED: &[u8] = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl Requests {
    /// Begins to serve a request.
    pub(super) fn begin(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Next<Server> {
        if let Some(ids) = &self.shared.request_ids {
            exchange.request_id = Some(ids.of(&head.fields));
        }
        let entered = self.enter(client, exchange, head);
        if let Some(next) = self.ended(client, exchange, head, entered) {
            return next;
        }
        if self.must_wait(exchange, head) {
            return Next::Later;
        }
        let guarded = self.guard(client, exchange, head).and_then(|own| match own {
            None => self.after_guard(client, exchange, head),
            own => Ok(own),
        });
        match self.ended(client, exchange, head, guarded) {
            None => self.place(client, exchange, head),
            Some(next) => next,
        }
    }

    /// Goes on with a request whose decision takes time.
    pub(super) async fn go_on(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Next<Server> {
        if exchange.waits_for == WaitsFor::Guard {
            if let Some(answer) = self.challenged(client, exchange, head).await {
                return Next::Answer(answer);
            }
            let guarded = match self.guard(client, exchange, head) {
                Ok(None) => match self.authenticate(exchange, head).await {
                    Ok(()) => self.after_guard(client, exchange, head),
                    Err(failure) => Err(failure),
                },
                other => other,
            };
            if let Some(next) = self.ended(client, exchange, head, guarded) {
                return next;
            }
            let next = self.place(client, exchange, head);
            if !matches!(next, Next::Later) {
                return next;
            }
        }
        self.wait(client, exchange, head).await
    }

    /// The end of a request that got an answer of the switch's own, or failed.
    fn ended(
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

    /// Applies limits and the rules for fields, finds the route, and answers requests that end here.
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
        self.within_rate(client, exchange, head)?;
        to_origin_form(head).map_err(|_| Failure::BadRequest)?;
        exchange.request = with_head(head, |head| {
            let request = self.shared.decider.routing.request(head, Some(client.address.ip()));
            request.with_lasting(asks_to_last(head.method, head.headers))
        });
        if is_of_nodes(head.target()) {
            exchange.answered_by = Some("own-path");
            return Ok(Some(self.own(client, exchange, head, Answer::new(404))));
        }
        if !count_hop(head) {
            let mut answer = Answer::new(if head.method() == b"OPTIONS" { 200 } else { 405 });
            let _ = answer.head.fields.append(b"Allow", ALLOWED);
            return Ok(Some(self.own(client, exchange, head, answer)));
        }
        Ok(None)
    }

    /// Removes the fields that the sender may not set, and writes who it is, before routes, keys and limits read them.
    fn write_sender(&self, client: &Client, head: &mut RequestHead) {
        let (rules, security) = (&self.shared.guards.entry, client.security.as_ref());
        let mut dropped = rules.drop_underscores(&mut head.fields);
        let (address, named) = (client.address.ip(), host(head).to_vec());
        let sender = Sender {
            address,
            trusted: rules.trusted_relays.trusts(address),
            secure: security.is_some(),
            host: Some(&named),
            client_cert: security.and_then(|security| Some(security.client_cert.as_ref()?.as_bytes())),
        };
        dropped += rules.identify(&mut head.fields, sender);
        if dropped > 0 {
            self.shared.decider.metrics.fields_dropped(dropped);
        }
    }

    /// Counts the request among its client's, where that is limited.
    fn within_rate(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Result<(), Failure> {
        let Some(clients) = &self.shared.guards.per_client else { return Ok(()) };
        let who = clients.who(&head.fields, client.address.ip());
        clients.request(who, exchange.arrived).map_err(|TooMany { wait }| {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            exchange.retry_after_s = u32::try_from(seconds).ok();
            Failure::RateLimited
        })
    }

    /// Whether the request must wait for the store of an authority's challenges, or for a password to be checked.
    fn must_wait(&self, exchange: &Exchange, head: &RequestHead) -> bool {
        let guard = &self.shared.decider.routing.of(exchange.request.route).edits.guard;
        guard.as_ref().is_some_and(|guard| guard.users.is_some()) || self.may_be_challenge(head)
    }

    fn may_be_challenge(&self, head: &RequestHead) -> bool {
        head.target().starts_with(larder_edge::WELL_KNOWN)
            && self.shared.tls.as_ref().is_some_and(|tls| tls.acme().is_some())
    }

    /// Answers an authority's challenge (RFC 8555 section 8.3). One that is not in our store goes on as any request.
    async fn challenged(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
    ) -> Option<Answer> {
        if !self.may_be_challenge(head) {
            return None;
        }
        let contents = self.shared.tls.as_ref()?.acme()?.answer(head.target()).await?;
        exchange.answered_by = Some("acme");
        let mut answer = Answer::new(200);
        let _ = answer.head.fields.append(b"Content-Type", b"application/octet-stream");
        answer.body = contents.into();
        Some(self.own(client, exchange, head, answer))
    }

    /// Checks the client's password, if the route asks for one.
    async fn authenticate(&self, exchange: &Exchange, head: &RequestHead) -> Result<(), Failure> {
        match &self.shared.decider.routing.of(exchange.request.route).edits.guard {
            Some(guard) => guard.authenticate(&head.fields).await,
            None => Ok(()),
        }
    }

    /// Redirects to `https`, and refuses clients of networks that the route's guard does not admit.
    fn guard(
        &self,
        client: &Client,
        exchange: &Exchange,
        head: &RequestHead,
    ) -> Result<Option<Answer>, Failure> {
        if let Some(answer) = self.to_https(client, exchange, head) {
            return Ok(Some(answer));
        }
        if self.admits(client, exchange, head) { Ok(None) } else { Err(Failure::Denied) }
    }

    /// Applies the rest of the route's guard, and gives the route's own answer, if there is one.
    fn after_guard(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Result<Option<Answer>, Failure> {
        let route = self.shared.decider.routing.of(exchange.request.route);
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
            Some(answer) if answer.takes(client.is_secure()) => {
                self.route_answer(client, exchange, head, answer).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether the client's network may make requests of the route.
    fn admits(&self, client: &Client, exchange: &Exchange, head: &RequestHead) -> bool {
        let Some(guard) = &self.shared.decider.routing.of(exchange.request.route).edits.guard else {
            return true;
        };
        if !guard.looks_at_addresses() {
            return true;
        }
        let relays = &self.shared.guards.entry.trusted_relays;
        let address = client_address(&head.fields, client.address.ip(), relays);
        address.is_some_and(|address| guard.admits(address))
    }

    /// Answers a request that came without TLS and should not have: the same is available under `https`.
    fn to_https(&self, client: &Client, exchange: &Exchange, head: &RequestHead) -> Option<Answer> {
        let port = self.shared.redirect?;
        if client.is_secure() || head.target().starts_with(larder_edge::WELL_KNOWN) {
            return None;
        }
        let location = larder_edge::under_https(host(head), head.target(), port)?;
        let mut answer = Answer::new(308);
        let _ = answer.head.fields.append(b"Location", location.as_bytes());
        Some(self.own(client, exchange, head, answer))
    }

    fn route_answer(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &RequestHead,
        given: &edits::Answer,
    ) -> Result<Answer, Failure> {
        exchange.answered_by = Some(given.name());
        let answer = match given {
            edits::Answer::Redirect { status, to, .. } => {
                let location = self.known((client, exchange), head, None, |known| edits::location(to, known));
                let location = location.ok_or(Failure::BadRequest)?;
                let mut answer = Answer::new(status.as_u16());
                let _ = answer.head.fields.append(b"Location", &location);
                answer
            }
            edits::Answer::Respond { status, body, content_type } => {
                let mut answer = Answer::new(status.as_u16());
                if !body.is_empty() {
                    let _ = answer.head.fields.append(b"Content-Type", content_type.as_bytes());
                }
                answer.body = body.clone().into();
                answer
            }
        };
        Ok(self.own(client, exchange, head, answer))
    }
}

/// Whether a path is one of those by which nodes answer switches and monitors. Clients do not reach them through the switch.
fn is_of_nodes(target: &[u8]) -> bool {
    target.starts_with(b"/.larder/")
}

/// Gives a target in absolute form the form that rules, keys and nodes expect (RFC 9112 section 3.2.1).
fn to_origin_form(head: &mut RequestHead) -> Result<(), Fault> {
    if head.form() != Form::Absolute {
        return Ok(());
    }
    // The form says that there is a scheme.
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

/// Counts a hop of a request that has only so many (RFC 9110 section 7.6.2). Returns whether it may go on.
fn count_hop(head: &mut RequestHead) -> bool {
    if !matches!(head.method(), b"OPTIONS" | b"TRACE") {
        return true;
    }
    let hops = head.fields.get(b"max-forwards").and_then(|hops| std::str::from_utf8(hops).ok()?.parse().ok());
    match hops {
        None => true,
        Some(0_u32) => false,
        // A field that is there is replaced.
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
    fn paths_of_nodes_are_not_for_clients() {
        for path in ["/.larder/load", "/.larder/events?x", "/.larder/"] {
            assert!(is_of_nodes(path.as_bytes()), "{path}");
        }
        for path in ["/", "/.larder", "/a/.larder/load", "/.lard"] {
            assert!(!is_of_nodes(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_target_loses_its_host() {
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
    fn hops_are_counted_where_they_count() {
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
