//! Facts for the rule of [`super::mechanism`].

use super::edge::Edge;
use super::mechanism::{ConnectionFacts, Delivery, FirstBytes};
use larder_core::{NodeId, Request, RouteId};

impl Edge {
    /// Returns the facts that are known before a node is chosen.
    pub(super) fn facts(&self, first_bytes: FirstBytes, accepted: bool) -> ConnectionFacts {
        ConnectionFacts {
            setting: self.config.setting,
            first_bytes,
            accepted,
            channel: false,
            node_cookie: false,
            node_repair: false,
            node_failures: 0,
            reply_bytes: None,
            repair_bytes_min: self.config.repair_bytes_min,
            locality_lost: false,
            edited: false,
            edits_later: false,
            guarded: false,
        }
    }

    /// Returns the facts for a request of a known route, including the route's own settings.
    pub(super) fn route_facts(
        &self,
        route: RouteId,
        first_bytes: FirstBytes,
        accepted: bool,
    ) -> ConnectionFacts {
        let (facts, route_state) = (self.facts(first_bytes, accepted), self.decider.routing.route(route));
        ConnectionFacts {
            setting: route_state.mechanism.unwrap_or(facts.setting),
            edited: route_state.has_edits,
            edits_later: self.decider.routing.any_edits,
            guarded: self.decider.routing.any_guards,
            ..facts
        }
    }

    /// Chooses the delivery of a request that goes to `node`.
    pub(crate) fn choose_delivery(
        &self,
        request: Request,
        node: NodeId,
        first_bytes: FirstBytes,
        accepted: bool,
    ) -> Delivery {
        let capability = self.channels.capability(node);
        let failures = self
            .decider
            .nodes
            .get(node)
            .map_or(0, |node| node.failures.load(std::sync::atomic::Ordering::Relaxed));
        let facts = ConnectionFacts {
            channel: capability.up,
            node_cookie: capability.cookie && capability.linked,
            node_repair: capability.repair && capability.linked,
            node_failures: failures,
            reply_bytes: self.history.reply_bytes(request.target),
            locality_lost: !capability.lateral
                && self.history.locality_lost(request.route, self.config.locality_lost_max),
            ..self.route_facts(request.route, first_bytes, accepted)
        };
        facts.choose()
    }
}
