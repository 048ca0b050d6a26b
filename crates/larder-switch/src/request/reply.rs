//! Handling of a node's reply.

use super::client::Client;
use super::exchange::Exchange;
use super::facts::apply;
use super::requests::Requests;
use crate::edits::{Sticky, StickyBy};
use crate::failure::Failure;
use crate::{health, signals};
use larder_core::CacheResult;
use larder_core::cache_status::{CacheStatusMember, members, split_outside_quotes};
use larder_edge::Fields;
use larder_http::h1::{Fault, ReplyHead, RequestHead};
use larder_http::relay::{MessageRejection, ReplyForwarding};

impl Requests {
    /// Handles the head of a node's final reply.
    pub(super) fn receive_head(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        request: &RequestHead,
        reply: &mut ReplyHead,
    ) -> Result<ReplyForwarding, MessageRejection> {
        let now = self.shared.decider.clock.now();
        exchange.reply_head_at = Some(now);
        if let Some(resume) = &exchange.resume {
            exchange.resume_refused = !resume.is_continued_by(reply);
            return if exchange.resume_refused { Err(MessageRejection) } else { Ok(ReplyForwarding::Rest) };
        }
        exchange.first_byte = Some(now - exchange.arrived);
        if let Some(prompt) = &mut exchange.prompt {
            prompt.note_reply(reply.status());
        }
        self.learn_from_reply(exchange, request, reply);
        let edited = self.edit_reply(client, exchange, request, reply);
        if edited.is_err() {
            exchange.failure = Some(Failure::Internal);
            return Err(MessageRejection);
        }
        if self.shared.long_lived.applies_to(request.method(), reply.status(), &reply.fields) {
            exchange.become_long_lived(now);
        }
        Ok(if exchange.encoder.is_some() { ReplyForwarding::Changed } else { ReplyForwarding::AsIs })
    }

    /// Records what the reply says about the node, its cache and the target.
    fn learn_from_reply(&self, exchange: &mut Exchange, request: &RequestHead, reply: &mut ReplyHead) {
        let (method, status) = (request.method(), reply.status());
        let cache_status =
            reply.fields.iter().rev().find(|field| field.name.eq_ignore_ascii_case(b"cache-status"));
        // The last member is the node's.
        let cache = cache_status.and_then(|field| members(field.value).last());
        exchange.cache = cache.and_then(|cache| cache.found());
        if self.shared.observers.shadow.is_some() {
            exchange.cacheable = exchange.cache == Some(CacheResult::Hit)
                || is_cacheable(method, &reply.fields, cache.as_ref());
        }
        let target = exchange.request.target;
        if let Some(node) =
            exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node))
        {
            health::note_success(&node);
            health::outliers::note_status((&self.shared.decider, &self.shared.guards), &node, status);
            signals::note_reply(
                (&self.shared.decider, &self.shared.signals),
                &node,
                target,
                exchange.cache,
                &mut reply.fields,
            );
        }
        if let Some(edge) = &self.shared.handoff {
            edge.note_relayed(method, target, status, &reply.fields);
        }
    }

    fn edit_reply(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        request: &RequestHead,
        reply: &mut ReplyHead,
    ) -> Result<(), Fault> {
        reply.fields.append(b"Via", self.shared.via.as_bytes())?;
        let route = self.shared.decider.routing.route(exchange.request.route);
        if !route.has_edits {
            return Ok(());
        }
        self.set_sticky_cookie(client, exchange, reply)?;
        if let Some(compression) = &route.edits.compress
            && !request.is_http10()
        {
            // A reply without a length is generated while it is sent, so the encoder flushes each piece.
            let (flush, status) = (!reply.fields.has("Content-Length"), reply.status());
            let encoder = compression.prepare((request.method(), &request.fields), status, &mut reply.fields);
            exchange.encoder = encoder.map(|encoder| (encoder, flush));
        }
        self.add_request_id(exchange, &mut reply.fields);
        let rules = [&self.shared.decider.routing.reply_fields, &route.edits.reply_fields];
        if let Some(values) = self.values((client, exchange), request, Some(reply.status()), rules) {
            apply(rules, &values, &mut reply.fields);
        }
        Ok(())
    }

    /// Sets the sticky cookie, if the client does not have it.
    fn set_sticky_cookie(
        &self,
        client: &Client,
        exchange: &Exchange,
        reply: &mut ReplyHead,
    ) -> Result<(), Fault> {
        let route = self.shared.decider.routing.route(exchange.request.route);
        let (Some(Sticky { by: StickyBy::Cookie(of), .. }), Some(tokens), Some(decision)) =
            (&route.edits.sticky, &route.tokens, exchange.decision)
        else {
            return Ok(());
        };
        if exchange.cookie_node == Some(decision.node) && !of.renewed() {
            return Ok(());
        }
        let Some(node) = self.shared.decider.nodes.get(decision.node) else { return Ok(()) };
        let set = tokens.set_cookie(of, &node, &self.shared.decider.nodes, client.is_secure());
        reply.fields.append(b"Set-Cookie", set.as_bytes())?;
        // A shared cache may store the reply, but not the cookie for other clients (RFC 9111 section 5.2.2.4).
        reply.fields.append(b"Cache-Control", b"no-cache=\"set-cookie\"")
    }

    /// Handles a piece of the reply body. Returns whether `instead` replaces it.
    pub(super) fn process_body(
        &self,
        exchange: &mut Exchange,
        piece: &[u8],
        is_last: bool,
        instead: &mut Vec<u8>,
    ) -> bool {
        if let Some(prompt) = &mut exchange.prompt {
            prompt.note_piece();
        }
        if let Some(after) = self.shared.long_lived.after
            && !(is_last || exchange.long_lived)
            && self.shared.decider.clock.now() - exchange.attempt_began > after
        {
            exchange.become_long_lived(self.shared.decider.clock.now());
        }
        let Some((encoder, flush)) = &mut exchange.encoder else { return false };
        // The codecs write to memory, which does not fail. After an error the stream would be cut short, which the
        // client would notice.
        if let Ok(encoded) = encoder.encode(piece, *flush, is_last) {
            instead.extend_from_slice(&encoded);
        }
        true
    }
}

/// Whether caches may store a reply that was not in the node's memory: by the reason that the node gives for
/// forwarding the request, otherwise by the reply's `Cache-Control` (RFC 9111 section 3).
fn is_cacheable(method: &[u8], reply: &impl Fields, cache: Option<&CacheStatusMember<'_>>) -> bool {
    let forbids = |value: &[u8]| {
        split_outside_quotes(value, b',').any(|directive| {
            let name = directive.trim_ascii().split(|byte| *byte == b'=').next().unwrap_or_default();
            name.eq_ignore_ascii_case(b"no-store") || name.eq_ignore_ascii_case(b"private")
        })
    };
    let passes = cache.is_some_and(|cache| matches!(cache.fwd, Some(b"bypass" | b"method" | b"request")));
    matches!(method, b"GET" | b"HEAD") && !passes && !reply.each("Cache-Control").any(forbids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_bypass_the_cache_are_not_cacheable() {
        for (method, control, status, kept) in [
            ("GET", "", "", true),
            ("GET", "max-age=60, public", "n1; fwd=uri-miss; stored", true),
            ("HEAD", "", "n1; fwd=stale; stored", true),
            ("POST", "", "", false),
            ("GET", "max-age=0, No-Store", "", false),
            ("GET", "private=\"a\"", "n1; fwd=uri-miss", false),
            ("GET", "", "n1; fwd=bypass; detail=light", false),
            ("GET", "", "n1; fwd=bypass, n2; fwd=uri-miss", true),
        ] {
            let mut reply = http::HeaderMap::new();
            if !control.is_empty() {
                reply.set("Cache-Control", control.as_bytes());
            }
            let cache = members(status.as_bytes()).last();
            assert_eq!(
                is_cacheable(method.as_bytes(), &reply, cache.as_ref()),
                kept,
                "{method} {control} {status}"
            );
        }
    }
}
