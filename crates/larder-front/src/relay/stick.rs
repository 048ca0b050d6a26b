//! Sticky sessions: wishes out of requests, cookies into replies.

use super::{Context, Fields, Relay, headers, link};
use crate::edits::{Sticky, StickyBy, cookie, other_cookies, rendezvous};
use crate::target::target_key;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, COOKIE, SET_COOKIE};
use larder_core::NodeId;
use larder_core::dispatch::Tie;
use larder_core::rules::Head;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

impl Relay {
    /// Finds out which node the client wishes, if its route keeps sessions.
    pub(super) fn wish(&self, session: &Session, context: &mut Context) {
        let route = self.shared.routing.of(context.request.route);
        let Some(sticky) = &route.edits.sticky else { return };
        let header = session.req_header();
        let node = match (&sticky.by, &route.tokens) {
            (StickyBy::Cookie(of), Some(tokens)) => {
                let value = cookie(&header.headers, of.name());
                context.sticky = value.and_then(|value| tokens.node(value, &self.shared.nodes));
                context.sticky
            }
            (StickyBy::Key(key), _) => {
                let (parts, fields) = (target_key(headers::host(header), header.raw_path()), Fields(header));
                let head = Head::new(header.method.as_str().as_bytes(), parts.host, parts.path, &fields);
                key.session(&head).and_then(|session| self.home(context, session))
            }
            (StickyBy::Cookie(_), None) => None,
        };
        if let Some(node) = node {
            let tie =
                if self.keeps_clients(node, sticky, context) { Tie::Wish(node) } else { Tie::Past(node) };
            context.request = context.request.with_tie(tie);
        }
    }

    /// The node of a session that no cookie names, among those that take requests of the route.
    fn home(&self, context: &Context, session: u64) -> Option<NodeId> {
        let dispatcher = &self.shared.dispatcher;
        let (nodes, group) = (dispatcher.nodes(), dispatcher.group_of(context.request.route));
        let members: Vec<_> = self
            .shared
            .nodes
            .members()
            .filter(|node| nodes.is_open(node.id) && nodes.is_in(node.id, group))
            .map(|node| (node.id, node.name.clone(), nodes.weight(node.id).milli()))
            .collect();
        rendezvous(session, members.iter().map(|(id, name, weight)| (*id, &**name, *weight)))
    }

    /// Whether a node still takes its own clients. One that drains does for a while, unless it has failed since.
    fn keeps_clients(&self, node: NodeId, sticky: &Sticky, context: &Context) -> bool {
        let Some(node) = self.shared.nodes.get(node) else { return true };
        let lasts = |since| context.arrived.since(since) < sticky.drain && node.standing().healthy;
        node.drains_since().is_none_or(lasts)
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
        if let Some(set) = tokens.set_cookie(of, &node.name, by_tls) {
            reply.append_header(SET_COOKIE, set)?;
            // A shared cache may keep the reply, but not for others what names this client's node (RFC 9111 section 5.2.2.4).
            reply.append_header(CACHE_CONTROL, HeaderValue::from_static("no-cache=\"set-cookie\""))?;
        }
        Ok(())
    }
}
