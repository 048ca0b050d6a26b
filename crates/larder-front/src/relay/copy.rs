//! Copies of requests for routes that mirror.

use super::{Context, Fields, Relay, correct, headers, link};
use crate::copies::{Duplicate, Outcome};
use crate::edits::{Known, Values};
use crate::target::target_key;
use http::header::{CONNECTION, COOKIE, HOST, TRANSFER_ENCODING, UPGRADE};
use larder_core::Request;
use larder_core::rules::Head;
use larder_edge::Fields as _;
use larder_http::h1::RequestHead;
use pingora_error::Result;
use pingora_http::RequestHeader;
use pingora_proxy::Session;

/// The same in the form of our own engine.
fn as_head(header: &RequestHeader) -> Option<RequestHead> {
    let mut text = [header.method.as_str().as_bytes(), b" ", header.raw_path(), b" HTTP/1.1\r\n"].concat();
    for (name, value) in &header.headers {
        text.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend_from_slice(b"\r\n");
    let mut head = RequestHead::new();
    head.read(&text).ok()?;
    Some(head)
}

impl Relay {
    /// Begins the copies of a request that has its node; those without a body are sent.
    pub(super) fn copy(&self, session: &mut Session, context: &mut Context) {
        let route = self.shared.routing.of(context.request.route);
        if route.mirrors.is_empty() || session.req_header().headers.contains_key(UPGRADE) {
            return;
        }
        let bodyless = session.as_mut().is_body_empty();
        let client = link(session).and_then(|link| link.announced());
        for mirror in &route.mirrors {
            if !mirror.takes() {
                continue;
            }
            let Some(place) = mirror.enter() else { continue };
            // What cannot be said to a node otherwise is no fault of the client's.
            match self.copied(session, context, mirror.route) {
                Ok((header, request)) => match as_head(&header) {
                    Some(head) => context.copies.push(Duplicate::new(place, head, request, client)),
                    None => mirror.count(Outcome::Failed),
                },
                Err(_) => mirror.count(Outcome::Failed),
            }
        }
        if bodyless {
            context.copies.drain(..).for_each(|copy| copy.send(&self.shared));
        }
    }

    /// A piece of the request's body passes. What is sent to a node again was not whole when the node failed, and is
    /// not copied.
    pub(super) fn copy_body(&self, piece: Option<&[u8]>, end: bool, context: &mut Context) {
        if context.copies.is_empty() {
            return;
        }
        if context.tries > 1 {
            return context.copies.clear();
        }
        if let Some(piece) = piece {
            context.copies.retain_mut(|copy| copy.push(piece));
        }
        if end {
            context.copies.drain(..).for_each(|copy| copy.send(&self.shared));
        }
    }

    /// Header and request of a copy: the client's, for HTTP/1.1, with the fields and rules of the route that it goes by.
    fn copied(
        &self,
        session: &Session,
        context: &Context,
        to: larder_core::RouteId,
    ) -> Result<(RequestHeader, Request)> {
        let header = session.req_header();
        let (key, fields) = (target_key(headers::host(header), header.raw_path()), Fields(header));
        let head = Head::new(header.method.as_str().as_bytes(), key.host, key.path, &fields);
        let route = self.shared.routing.of(to);
        let target = route.with_key_head(&head, |head| route.key.id(head));
        let request = Request::new(target).with_class(route.classes.classify(&head)).with_route(to);
        let mut copy = header.clone();
        for name in correct::listed(&header.headers).into_iter().chain([CONNECTION, TRANSFER_ENCODING]) {
            copy.remove_header(&name);
        }
        for name in ["keep-alive", "proxy-connection", "te", "trailer", "expect"] {
            copy.remove_header(name);
        }
        if copy.headers.contains_key(COOKIE) {
            self.unstick(session, &mut copy, context)?;
        }
        let path = route.edits.rewrite.as_ref().map_or(head.path.into(), |rewrite| rewrite.apply(head.path));
        let query = head.query.map_or(Vec::new(), |query| [b"?", query].concat());
        copy.set_raw_path(&[&*path, &query].concat())?;
        copy.insert_header(HOST, key.host)?;
        headers::via(&mut copy, &self.shared.via)?;
        headers::target(&mut copy, target)?;
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &context.request_id) {
            headers::Engine(&mut copy).set(ids.config.header.as_str(), id);
        }
        let (mut values, rules) =
            (Values::default(), [&self.shared.routing.request_fields, &route.edits.request_fields]);
        self.known(session, context, None, |known| {
            let known = Known { route: &route.name, target, node: None, reason: None, ..*known };
            rules.iter().for_each(|rules| rules.render(&known, &mut values));
        });
        rules.iter().fold(0, |from, rules| rules.edit(&mut headers::Engine(&mut copy), &values, from));
        Ok((copy, request))
    }
}
