//! Prepares a request for a node: its fields, its path and its body.

use super::client::Client;
use super::exchange::Exchange;
use super::facts::{apply, host};
use super::requests::Requests;
use super::trace;
use crate::edits::{Sticky, StickyBy, cookie, other_cookies};
use crate::failure::Failure;
use crate::target::target_key;
use larder_core::TargetId;
use larder_core::rules::Head;
use larder_edge::Fields;
use larder_http::h1::RequestHead;
use std::time::Duration;

impl Requests {
    /// Prepares a request for an attempt at a node.
    pub(super) fn prepare(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Result<(), Failure> {
        let is_first = exchange.attempts == 0;
        let tracer = self.shared.observers.tracer.as_ref();
        if let (Some(trace), Some(tracer), Some(decision)) = (&mut exchange.trace, tracer, exchange.decision)
        {
            trace.start_attempt((&self.shared.decider, tracer), decision, exchange.attempts);
        }
        exchange.attempts = exchange.attempts.saturating_add(1);
        (exchange.unreported, exchange.body_bytes) = (true, 0);
        if is_first {
            head.fields.add("Via", self.shared.via.as_bytes());
            write_target(head, exchange.request.target);
        }
        trace::write_traceparent(tracer, exchange.trace.as_deref(), &mut head.fields);
        if self.shared.decider.routing.route(exchange.request.route).has_edits {
            self.edit(client, exchange, head)?;
        }
        if let Some(resume) = &exchange.resume {
            resume.apply(head);
        }
        exchange.hedge_timeout = self.hedge_delay(exchange, head);
        Ok(())
    }

    /// Edits a request by the rules of its route. In a further attempt, restores the client's fields first.
    fn edit(&self, client: &Client, exchange: &mut Exchange, head: &mut RequestHead) -> Result<(), Failure> {
        match (&exchange.client_fields, &exchange.client_target) {
            (Some(fields), target) => {
                head.fields.restore(fields);
                if let Some(target) = target {
                    head.set_target(target).map_err(|_| Failure::Internal)?;
                }
                let tracer = self.shared.observers.tracer.as_ref();
                trace::write_traceparent(tracer, exchange.trace.as_deref(), &mut head.fields);
            }
            (None, _) => exchange.client_fields = Some(head.fields.save()),
        }
        let route = self.shared.decider.routing.route(exchange.request.route);
        let rules = [&self.shared.decider.routing.request_fields, &route.edits.request_fields];
        // Rules see the fields and the path as the client sent them.
        let values = self.values((client, exchange), head, None, rules);
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &exchange.request_id) {
            Fields::set(&mut head.fields, ids.config.header.as_str(), id);
        }
        if let Some(rewrite) = &route.edits.rewrite {
            let key = target_key(host(head), head.target());
            let parts = Head::get(key.host, key.path);
            let path = rewrite.apply(parts.path);
            if path != parts.path {
                let query = parts.query.map_or(Vec::new(), |query| [b"?", query].concat());
                let target = [&*path, &query].concat();
                exchange.client_target = Some(head.target().into());
                head.set_target(&target).map_err(|_| Failure::BadRequest)?;
            }
        }
        self.remove_switch_cookie(exchange, head);
        if let Some(values) = values {
            apply(rules, &values, &mut head.fields);
        }
        Ok(())
    }

    /// Removes the switch's cookie from a request.
    pub(super) fn remove_switch_cookie(&self, exchange: &Exchange, head: &mut RequestHead) {
        let sticky = &self.shared.decider.routing.route(exchange.request.route).edits.sticky;
        let Some(Sticky { by: StickyBy::Cookie(of), .. }) = sticky else { return };
        if cookie(&head.fields, of.name()).is_none() {
            return;
        }
        match other_cookies(&head.fields, of.name()) {
            Some(others) => Fields::set(&mut head.fields, "Cookie", &others),
            None => head.fields.remove(b"cookie"),
        }
    }

    /// Checks a piece of the request body: the body must arrive fast enough and be no larger than its route allows.
    pub(super) fn check_body(
        &self,
        exchange: &mut Exchange,
        piece: &[u8],
        is_last: bool,
    ) -> Result<(), Failure> {
        exchange.body_bytes += piece.len() as u64;
        let guard = &self.shared.decider.routing.route(exchange.request.route).edits.guard;
        if guard.as_ref().is_some_and(|guard| guard.body_is_too_large(exchange.body_bytes)) {
            return Err(Failure::BodyTooLarge);
        }
        self.copy_body(exchange, piece, is_last);
        let (rate, base) = (self.shared.guards.limits.body_rate_min, self.shared.timeouts.client_read);
        if rate == 0 || is_last {
            return Ok(());
        }
        let at_rate = Duration::from_millis(exchange.body_bytes.saturating_mul(1000) / rate);
        let is_late = self.shared.decider.clock.now() - exchange.attempt_began > base.saturating_add(at_rate);
        if is_late { Err(Failure::BodyTimeout) } else { Ok(()) }
    }
}

/// Sets `Larder-Target` to the target's id in 16 hexadecimal digits, so that the node can report its cache by the
/// switch's ids whatever the key template. Replaces a value from the client.
pub(super) fn write_target(head: &mut RequestHead, target: TargetId) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let text: [u8; 16] = std::array::from_fn(|at| DIGITS[(target.0 >> (60 - 4 * at)) as usize & 15]);
    Fields::set(&mut head.fields, "Larder-Target", &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_field_replaces_the_clients_value() {
        let mut head = RequestHead::new();
        head.read(b"GET / HTTP/1.1\r\nHost: h\r\nLarder-Target: x\r\nlarder-target: y\r\n\r\n")
            .expect("a request");
        for id in [0, 0x0123_4567_89ab_cdef, u64::MAX] {
            write_target(&mut head, TargetId(id));
            let values: Vec<_> = head.fields.all(b"larder-target").collect();
            assert_eq!(values, [TargetId(id).to_string().as_bytes()]);
        }
    }
}
