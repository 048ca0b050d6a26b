//! Copies of requests for routes that mirror.

use super::ask::write_target;
use super::client::Client;
use super::exchange::Exchange;
use super::known::{apply, host, with_head};
use super::requests::Requests;
use crate::copies::Duplicate;
use crate::edits::{Known, Values};
use crate::mirror::Outcome;
use crate::target::target_key;
use larder_core::rules::Head;
use larder_core::{Request, RouteId};
use larder_edge::Fields;
use larder_http::h1::{Body, Fault, RequestHead};

impl Requests {
    /// Begins the copies of a request that has its node. Those without a body are sent.
    pub(super) fn copy(&self, client: &Client, exchange: &mut Exchange, head: &RequestHead) {
        let route = self.shared.decider.routing.of(exchange.request.route);
        if route.mirrors.is_empty() || head.asks_for_upgrade() {
            return;
        }
        for mirror in &route.mirrors {
            if !mirror.takes() {
                continue;
            }
            let Some(place) = mirror.enter() else { continue };
            match self.copied(client, exchange, head, mirror.route) {
                Ok((head, request)) => {
                    exchange.copies.push(Duplicate::new(place, head, request, client.announced()));
                }
                // A request that cannot be written for the other route is no fault of the client's.
                Err(_) => mirror.count(Outcome::Failed),
            }
        }
        if head.body() == Body::None {
            exchange.copies.drain(..).for_each(|copy| copy.send(&self.shared.decider));
        }
    }

    /// A piece of the request's body passes. A body that is sent to a node again was not whole when the first one failed, and is not
    /// copied.
    pub(super) fn copy_body(&self, exchange: &mut Exchange, piece: &[u8], is_last: bool) {
        if exchange.copies.is_empty() {
            return;
        }
        if exchange.tries > 1 {
            return exchange.copies.clear();
        }
        exchange.copies.retain_mut(|copy| copy.push(piece));
        if is_last {
            exchange.copies.drain(..).for_each(|copy| copy.send(&self.shared.decider));
        }
    }

    /// The head of a copy, with the fields and rules of the route that it goes by.
    fn copied(
        &self,
        client: &Client,
        exchange: &Exchange,
        head: &RequestHead,
        to: RouteId,
    ) -> Result<(RequestHead, Request), Fault> {
        let route = self.shared.decider.routing.of(to);
        let request = with_head(head, |head| {
            let target = route.with_key_head(head, |head| route.key.id(head));
            Request::new(target).with_class(route.classes.classify(head)).with_route(to)
        });
        let mut copy = head.clone();
        copy.fields.remove_if(|name| {
            [&b"transfer-encoding"[..], b"content-length", b"trailer", b"expect"]
                .iter()
                .any(|gone| name.eq_ignore_ascii_case(gone))
        });
        self.remove_own_cookie(exchange, &mut copy);
        let key = target_key(host(head), head.target());
        let parts = Head::get(key.host, key.path);
        if let Some(rewrite) = &route.edits.rewrite {
            let query = parts.query.map_or(Vec::new(), |query| [b"?", query].concat());
            copy.set_target(&[&*rewrite.apply(parts.path), &query].concat())?;
        }
        copy.fields.add("Via", self.shared.via.as_bytes());
        write_target(&mut copy, request.target);
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &exchange.request_id) {
            Fields::set(&mut copy.fields, ids.config.header.as_str(), id);
        }
        let rules = [&self.shared.decider.routing.request_fields, &route.edits.request_fields];
        let mut values = Values::default();
        self.known((client, exchange), head, None, |known| {
            let known =
                Known { route: &route.name, target: request.target, node: None, reason: None, ..*known };
            rules.iter().for_each(|rules| rules.render(&known, &mut values));
        });
        apply(rules, &values, &mut copy.fields);
        Ok((copy, request))
    }
}
