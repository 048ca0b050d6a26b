//! Requests that may be hedged: which, and what the relay hears of the race.

use super::{Context, Relay};
use crate::hedge::{Asked, Race, Second};
use crate::node::Node;
use http::Method;
use http::header::UPGRADE;
use larder_core::Time;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::sync::Arc;

impl Relay {
    /// Where the engine is to send the first try of a request that may be hedged; `None` for any other.
    ///
    /// May be: GET and HEAD without a body, on a route that says so, of a client that need not come back to one node.
    pub(super) fn race(&self, session: &mut Session, context: &mut Context, node: &Node) -> Option<HttpPeer> {
        let route = self.shared.routing.of(context.request.route);
        if route.hedging.is_none() || context.tries != 1 || route.edits.sticky.is_some() {
            return None;
        }
        let bodyless = session.as_mut().is_body_empty();
        let header = session.req_header();
        if !bodyless
            || !matches!(header.method, Method::GET | Method::HEAD)
            || header.headers.contains_key(UPGRADE)
        {
            return None;
        }
        let race = Arc::new(Race::default());
        let peer = race.peer(node, header.raw_path())?;
        context.race = Some(race);
        Some(peer)
    }

    /// The request is as nodes are to get it.
    pub(super) fn ask(&self, header: &RequestHeader, context: &Context) {
        let (Some(race), Some(decision)) = (&context.race, context.decision) else { return };
        let first = self.shared.nodes.get(decision.node).and_then(|node| node.keep());
        let Some(first) = first else { return };
        let asked = Asked { header: Box::new(header.clone()), request: context.request, first };
        race.begin(&self.shared, asked);
    }

    /// An answer has come: where it is the second node's, the request is that one's from now on.
    pub(super) fn take_second(&self, context: &mut Context, now: Time) {
        let second = context.race.as_ref().and_then(|race| race.second());
        let Some(Second { decision, lease, asked }) = second else { return };
        self.tell_unserved(context, now);
        context.lease = lease;
        context.decision = Some(decision);
        if let Some(traced) = &mut context.traced {
            traced.hedged(&self.shared, decision);
        }
        (context.tried, context.untold) = (asked, true);
    }
}
