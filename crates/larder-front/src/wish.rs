//! Which node a client comes back to, before anybody has decided: sticky sessions, for requests and for who asks why they go where they go.

use crate::decider::Decider;
use crate::edits::{Sticky, StickyBy, rendezvous};
use larder_core::dispatch::{Request, Tie};
use larder_core::rules::Head;
use larder_core::{NodeId, Time};

/// What ties a request to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The node.
    pub(crate) node: NodeId,
    /// As the dispatcher hears of it.
    pub(crate) tie: Tie,
    /// The client has said so itself, by the switch's cookie.
    pub(crate) by_cookie: bool,
}

impl Decider {
    /// The node that the client of a request wishes, if the request's route keeps sessions. `token`: the value of a cookie.
    pub(crate) fn wish<'c>(
        &self,
        request: &Request,
        head: &Head<'_>,
        now: Time,
        token: impl FnOnce(&str) -> Option<&'c [u8]>,
    ) -> Option<Wish> {
        let route = self.routing.of(request.route);
        let sticky = route.edits.sticky.as_ref()?;
        let (node, by_cookie) = match (&sticky.by, &route.tokens) {
            (StickyBy::Cookie(of), Some(tokens)) => (tokens.node(token(of.name())?, &self.nodes)?, true),
            (StickyBy::Key(key), _) => (self.home(request, key.session(head)?)?, false),
            (StickyBy::Cookie(_), None) => return None,
        };
        let tie = if self.keeps_clients(node, sticky, now) { Tie::Wish(node) } else { Tie::Past(node) };
        Some(Wish { node, tie, by_cookie })
    }

    /// The node of a session that no cookie names, among those that take requests of the route.
    fn home(&self, request: &Request, session: u64) -> Option<NodeId> {
        let (nodes, group) = (self.dispatcher.nodes(), self.dispatcher.group_of(request.route));
        let members: Vec<_> = self
            .nodes
            .members()
            .filter(|node| nodes.takes(node.id, group))
            .map(|node| (node.id, node.name.clone(), nodes.weight(node.id).milli()))
            .collect();
        rendezvous(session, members.iter().map(|(id, name, weight)| (*id, &**name, *weight)))
    }

    /// Whether a node still takes its own clients. One that drains does for a while, unless it has failed since.
    fn keeps_clients(&self, node: NodeId, sticky: &Sticky, now: Time) -> bool {
        let Some(node) = self.nodes.get(node) else { return true };
        let lasts = |since| now.since(since) < sticky.drain && node.standing().healthy;
        node.drains_since().is_none_or(lasts)
    }
}
