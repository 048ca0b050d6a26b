//! Sticky sessions: wishes out of requests, cookies into replies.

use super::{Context, Fields, Relay, headers, link};
use crate::edits::{Sticky, StickyBy, cookie, other_cookies};
use crate::target::target_key;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, COOKIE, SET_COOKIE};
use larder_core::rules::Head;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

impl Relay {
    /// Finds out which node the client wishes, if its route keeps sessions.
    pub(super) fn wish(&self, session: &Session, context: &mut Context) {
        if self.shared.routing.of(context.request.route).edits.sticky.is_none() {
            return;
        }
        let header = session.req_header();
        let (parts, fields) = (target_key(headers::host(header), header.raw_path()), Fields(header));
        let head = Head::new(header.method.as_str().as_bytes(), parts.host, parts.path, &fields);
        let token = |name: &str| cookie(&header.headers, name);
        if let Some(wish) = self.shared.wish(&context.request, &head, context.arrived, token) {
            context.sticky = wish.by_cookie.then_some(wish.node);
            context.request = context.request.with_tie(wish.tie);
        }
    }

    /// Takes the switch's cookie out of what the node gets.
    pub(super) fn unstick(
        &self,
        session: &Session,
        request: &mut RequestHeader,
        context: &Context,
    ) -> Result<()> {
        let sticky = &self.shared.routing.of(context.request.route).edits.sticky;
        let Some(Sticky { by: StickyBy::Cookie(of), .. }) = sticky else { return Ok(()) };
        if cookie(&session.req_header().headers, of.name()).is_none() {
            return Ok(());
        }
        match other_cookies(&session.req_header().headers, of.name()) {
            Some(others) => request.insert_header(COOKIE, others),
            None => {
                request.remove_header(&COOKIE);
                Ok(())
            }
        }
    }

    /// Names the node to the client, if that does not know it yet.
    pub(super) fn stick(
        &self,
        session: &Session,
        reply: &mut ResponseHeader,
        context: &Context,
    ) -> Result<()> {
        let route = self.shared.routing.of(context.request.route);
        let (Some(Sticky { by: StickyBy::Cookie(of), .. }), Some(tokens), Some(decision)) =
            (&route.edits.sticky, &route.tokens, context.decision)
        else {
            return Ok(());
        };
        if context.sticky == Some(decision.node) && !of.renewed() {
            return Ok(());
        }
        let Some(node) = self.shared.nodes.get(decision.node) else { return Ok(()) };
        let by_tls = link(session).is_some_and(|link| link.security.is_some());
        reply.append_header(SET_COOKIE, tokens.set_cookie(of, &node.name, by_tls))?;
        // A shared cache may keep the reply, but not for others what names this client's node (RFC 9111 section 5.2.2.4).
        reply.append_header(CACHE_CONTROL, HeaderValue::from_static("no-cache=\"set-cookie\""))?;
        Ok(())
    }
}
