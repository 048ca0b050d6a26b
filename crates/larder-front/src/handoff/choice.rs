//! What the rule of [`super::mechanism`] sees of a request.

use super::edge::Edge;
use super::mechanism::{Delivery, Facts, Speaks};
use larder_core::{NodeId, Request, RouteId};

impl Edge {
    /// What the rule sees before a node is known.
    pub(super) fn facts(&self, speaks: Speaks, accepted: bool) -> Facts {
        Facts {
            setting: self.config.setting,
            speaks,
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
    pub(super) fn facts_of(&self, route: RouteId, speaks: Speaks, accepted: bool) -> Facts {
        let (facts, routed) = (self.facts(speaks, accepted), self.decider.routing.of(route));
        Facts {
            setting: routed.mechanism.unwrap_or(facts.setting),
            edited: routed.edited,
            edits_later: self.decider.routing.edits,
            guarded: self.decider.routing.guarded,
            ..facts
        }
    }

    /// What the rule says of a request that goes to `node`.
    pub(crate) fn delivery(
        &self,
        request: Request,
        node: NodeId,
        speaks: Speaks,
        accepted: bool,
    ) -> Delivery {
        let peer = self.peers.capability(node);
        let failures = self
            .decider
            .nodes
            .get(node)
            .map_or(0, |node| node.failures.load(std::sync::atomic::Ordering::Relaxed));
        let facts = Facts {
            channel: peer.up,
            node_cookie: peer.cookie && peer.linked,
            node_repair: peer.repair && peer.linked,
            node_failures: failures,
            reply_bytes: self.learned.reply_bytes(request.target),
            locality_lost: !peer.lateral
                && self.learned.locality_lost(request.route, self.config.locality_lost_max),
            ..self.facts_of(request.route, speaks, accepted)
        };
        facts.choose()
    }
}
