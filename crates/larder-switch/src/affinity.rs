//! Session affinity: the node that a sticky client returns to, before the dispatcher decides. Used by requests and by
//! explanations.

use crate::decider::Decider;
use crate::edits::{Sticky, StickyBy, rendezvous};
use larder_core::dispatch::{Request, RequestAffinity};
use larder_core::rules::Head;
use larder_core::{NodeId, Time};

/// Affinity of a request to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affinity {
    /// The node.
    pub(crate) node: NodeId,
    /// Form in which the dispatcher takes it.
    pub(crate) tie: RequestAffinity,
    /// Whether the client has named the node by the switch's cookie.
    pub(crate) by_cookie: bool,
}

impl Decider {
    /// Returns the affinity of a request, if its route has sticky sessions. `token` returns the value of a cookie.
    pub(crate) fn affinity<'c>(
        &self,
        request: &Request,
        head: &Head<'_>,
        now: Time,
        token: impl FnOnce(&str) -> Option<&'c [u8]>,
    ) -> Option<Affinity> {
        let route = self.routing.route(request.route);
        let sticky = route.edits.sticky.as_ref()?;
        let (node, by_cookie) = match (&sticky.by, &route.tokens) {
            (StickyBy::Cookie(of), Some(tokens)) => (tokens.node(token(of.name())?, &self.nodes)?, true),
            (StickyBy::Key(key), _) => (self.session_node(request, key.session(head)?)?, false),
            (StickyBy::Cookie(_), None) => return None,
        };
        let tie = if self.keeps_sessions(node, sticky, now) {
            RequestAffinity::Sticky(node)
        } else {
            RequestAffinity::Expired(node)
        };
        Some(Affinity { node, tie, by_cookie })
    }

    /// Returns the node of a session without a cookie: the rendezvous hash over the nodes of the route.
    fn session_node(&self, request: &Request, session: u64) -> Option<NodeId> {
        let (nodes, group) = (self.dispatcher.nodes(), self.dispatcher.group_of(request.route));
        let members: Vec<_> = self
            .nodes
            .members()
            .filter(|node| nodes.takes(node.id, group))
            .map(|node| (node.id, node.name.clone(), nodes.weight(node.id).milli()))
            .collect();
        rendezvous(session, members.iter().map(|(id, name, weight)| (*id, &**name, *weight)))
    }

    /// Whether a node still takes its sticky clients. A draining node does for a while, unless it has failed.
    fn keeps_sessions(&self, node: NodeId, sticky: &Sticky, now: Time) -> bool {
        let Some(node) = self.nodes.get(node) else { return true };
        let lasts = |since| now.since(since) < sticky.drain && node.condition().healthy;
        node.draining_since().is_none_or(lasts)
    }
}
