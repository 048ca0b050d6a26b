//! Copies of requests for mirror routes.

use super::client::Client;
use super::exchange::Exchange;
use super::facts::{apply, host, with_head};
use super::prepare::write_target;
use super::requests::Requests;
use crate::copies::RequestCopy;
use crate::edits::{FieldValues, RequestFacts};
use crate::mirror::CopyOutcome;
use crate::target::target_key;
use larder_core::rules::Head;
use larder_core::{Request, RouteId};
use larder_edge::Fields;
use larder_http::h1::{Body, Fault, RequestHead};

impl Requests {
    /// Begins the copies of a request that has its node. Copies without a body are sent at once.
    pub(super) fn begin_copies(&self, client: &Client, exchange: &mut Exchange, head: &RequestHead) {
        let route = self.shared.decider.routing.route(exchange.request.route);
        if route.mirrors.is_empty() || head.asks_for_upgrade() {
            return;
        }
        for mirror in &route.mirrors {
            if !mirror.selects() {
                continue;
            }
            let Some(permit) = mirror.acquire() else { continue };
            match self.copy_head(client, exchange, head, mirror.route) {
                Ok((head, request)) => {
                    exchange.copies.push(RequestCopy::new(permit, head, request, client.announcement()));
                }
                // A request that cannot be rewritten for the other route is not the client's fault.
                Err(_) => mirror.count(CopyOutcome::Failed),
            }
        }
        if head.body() == Body::None {
            exchange.copies.drain(..).for_each(|copy| copy.send(&self.shared.decider));
        }
    }

    /// Adds a piece of the request body to the copies. If the body is sent to a second node, it was incomplete at the
    /// first failure, and the copies are dropped.
    pub(super) fn copy_body(&self, exchange: &mut Exchange, piece: &[u8], is_last: bool) {
        if exchange.copies.is_empty() {
            return;
        }
        if exchange.attempts > 1 {
            return exchange.copies.clear();
        }
        exchange.copies.retain_mut(|copy| copy.push(piece));
        if is_last {
            exchange.copies.drain(..).for_each(|copy| copy.send(&self.shared.decider));
        }
    }

    /// Returns the head of a copy, with the fields and rules of the mirror route.
    fn copy_head(
        &self,
        client: &Client,
        exchange: &Exchange,
        head: &RequestHead,
        to: RouteId,
    ) -> Result<(RequestHead, Request), Fault> {
        let route = self.shared.decider.routing.route(to);
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
        self.remove_switch_cookie(exchange, &mut copy);
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
        let mut values = FieldValues::default();
        self.with_facts((client, exchange), head, None, |facts| {
            let facts = RequestFacts {
                route: &route.name,
                target: request.target,
                node: None,
                reason: None,
                ..*facts
            };
            rules.iter().for_each(|rules| rules.render(&facts, &mut values));
        });
        apply(rules, &values, &mut copy.fields);
        Ok((copy, request))
    }
}
