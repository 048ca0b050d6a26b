//! What the rule of [`super::mechanism`] sees of a request.

use super::edge::Edge;
use super::mechanism::{ConnectionFacts, Delivery, FirstBytes};
use larder_core::{NodeId, Request, RouteId};

impl Edge {
    /// What the rule sees before a node is known.
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

    /// The same for a request of a known route, whose own word counts.
    pub(super) fn facts_of(
        &self,
        route: RouteId,
        first_bytes: FirstBytes,
        accepted: bool,
    ) -> ConnectionFacts {
        let (facts, routed) = (self.facts(first_bytes, accepted), self.decider.routing.route(route));
        ConnectionFacts {
            setting: routed.mechanism.unwrap_or(facts.setting),
            edited: routed.has_edits,
            edits_later: self.decider.routing.any_edits,
            guarded: self.decider.routing.any_guards,
            ..facts
        }
    }

    /// What the rule says of a request that goes to `node`.
    pub(crate) fn delivery(
        &self,
        request: Request,
        node: NodeId,
        first_bytes: FirstBytes,
        accepted: bool,
    ) -> Delivery {
        let peer = self.peers.capability(node);
        let failures = self
            .decider
            .nodes
            .get(node)
            .map_or(0, |node| node.failures.load(std::sync::atomic::Ordering::Relaxed));
        let facts = ConnectionFacts {
            channel: peer.up,
            node_cookie: peer.cookie && peer.linked,
            node_repair: peer.repair && peer.linked,
            node_failures: failures,
            reply_bytes: self.learned.reply_bytes(request.target),
            locality_lost: !peer.lateral
                && self.learned.locality_lost(request.route, self.config.locality_lost_max),
            ..self.facts_of(request.route, first_bytes, accepted)
        };
        facts.choose()
    }
}
