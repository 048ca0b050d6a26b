//! What the switch tells others of targets, and learns of them in passing: nodes that ask who has a target, replies that are
//! relayed.

use super::edge::Edge;
use crate::lease::Lease;
use crate::target;
use larder_core::rules::Headers;
use larder_core::{NodeId, Request, TargetId};
use larder_edge::Lookup;
use larder_handoff::channel::message::ToNode;
use larder_handoff::channel::whereabouts::{Asked, HOLDERS_MAX, Has, Holder, Where};
use std::cell::Cell;

/// The fields of a request that are not known, and whether anybody wanted one.
#[derive(Default)]
struct Unseen(Cell<bool>);

impl Headers for Unseen {
    fn get(&self, _name: &str) -> Option<&[u8]> {
        self.0.set(true);
        None
    }
}

impl Edge {
    /// Answers a node's question.
    pub(super) fn tell_where(&self, node: NodeId, question: &Where) {
        let has = self.whereabouts(node, question.id, &question.asked);
        if let Err(error) = self.peers.send(node, &ToNode::Has(has)) {
            tracing::debug!(%node, %error, "a node's question was not answered");
        }
    }

    /// What the dispatcher remembers of a request's target, for the node that asks. A target that is mapped nowhere is
    /// placed, as a first request would place it: else every node would read it for itself.
    fn whereabouts(&self, node: NodeId, id: u64, asked: &Asked) -> Has {
        let nodes = self.decider.dispatcher.nodes();
        let mut has = Has { id, target: None, here: false, load: nodes.load(node), holders: Vec::new() };
        let unseen = Unseen::default();
        let head = target::rule_head(
            asked.method.as_bytes(),
            asked.host.as_bytes(),
            asked.target.as_bytes(),
            &unseen,
        );
        let request = self.decider.routing.request(&head, None);
        if unseen.0.get() {
            // Another target, on another route, for all that is known.
            return has;
        }
        has.target = Some(request.target.0);
        let mut servers = self.servers(&request);
        if servers.is_empty() && self.decider.dispatcher.settings_of(request.route).policy.is_by_target() {
            // Its load, or its place in the queue, is given back at once: the request is at the node already.
            let _ = Lease::new(self.decider.clone()).arrive(self.decider.clock.now(), request);
            servers = self.servers(&request);
        }
        for server in servers {
            if server == node {
                has.here = true;
            } else if has.holders.len() < HOLDERS_MAX
                && nodes.is_open(server)
                && let Some(entry) = self.decider.nodes.get(server)
            {
                let (address, load) = (entry.resolved, nodes.load(server));
                has.holders.push(Holder { node: server.0, address, load });
            }
        }
        has
    }

    /// A relayed request has been answered: how long the reply will be, if it says so and if that is ever asked.
    pub(crate) fn note_relayed(&self, method: &[u8], target: TargetId, status: u16, reply: &impl Lookup) {
        if !self.config.setting.allows_repair() || method != b"GET" || status != 200 {
            return;
        }
        let length = reply.first("Content-Length").and_then(|length| std::str::from_utf8(length).ok());
        if let Some(bytes) = length.and_then(|length| length.parse().ok()) {
            self.learned.note_reply(target, bytes);
        }
    }
}

impl Edge {
    /// The nodes that have a request's target, as the dispatcher knows.
    fn servers(&self, request: &Request) -> Vec<NodeId> {
        let known = self.decider.dispatcher.explain_request(self.decider.clock.now(), request).known;
        known.map_or(Vec::new(), |known| known.servers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::mechanism::{DeliveryReason, FirstBytes, MechanismSetting};
    use super::super::peers::{LATERAL_FOR_TESTS, UP_FOR_TESTS};
    use super::super::tests::{Bench, GET, key};
    use super::*;
    use larder_edge::Fields as _;

    fn asked(target: &str) -> Asked {
        Asked { method: "GET".to_owned(), host: "h".to_owned(), target: target.to_owned() }
    }

    #[tokio::test]
    async fn nodes_learn_who_has_what_the_dispatcher_has_placed() {
        let bench = Bench::new(|_| {});
        let edge = &bench.edge;
        bench.punt(key(1), true, 1, GET);
        let all = [NodeId(0), NodeId(1)].map(|node| edge.whereabouts(node, 2, &asked("/a")));
        let (at, other) = if all[0].here { (0, 1) } else { (1, 0) };
        assert!(all[at].here && all[at].holders.is_empty() && all[at].load == 1, "{all:?}");
        let address = "127.0.0.1:9".parse().expect("an address");
        let holder = Holder { node: at as u16, address, load: 1 };
        assert_eq!((all[other].here, &all[other].holders[..]), (false, &[holder][..]));
        assert_eq!(all[0].target, all[1].target);
        // Mapped nowhere, it is placed, and stays where it is.
        let placed = [NodeId(0), NodeId(1), NodeId(0)].map(|node| edge.whereabouts(node, 3, &asked("/b")));
        assert_eq!((placed[0].here, placed[0].holders.len()), (placed[2].here, placed[2].holders.len()));
        assert!(placed[0].here != placed[1].here, "{placed:?}");
        assert_eq!((placed[2].id, bench.load()), (3, 1), "and counts no load");
        edge.decider.dispatcher.fail(edge.decider.clock.now(), NodeId(at as u16), &mut Vec::new());
        let lost = edge.whereabouts(NodeId(other as u16), 4, &asked("/a"));
        assert_eq!(lost.holders, [], "a dead node has nothing");
    }

    #[tokio::test]
    async fn what_is_not_in_the_question_is_not_guessed() {
        let template = "{path}{header:x-tenant}".parse().expect("a template");
        let bench = Bench::new(|config| config.key = template);
        bench.punt(key(1), true, 1, GET);
        for node in [NodeId(0), NodeId(1)] {
            let has = bench.edge.whereabouts(node, 1, &asked("/a"));
            assert_eq!((has.target, has.here, has.holders.len()), (None, false, 0));
        }
    }

    #[tokio::test]
    async fn routes_that_lose_locality_are_relayed_unless_the_node_fetches_from_others() {
        let bench = Bench::new(|_| {});
        let request = Request::new(TargetId(1));
        (0..99).for_each(|_| bench.edge.learned.note_later(request.route, true));
        let relayed = |bits| {
            bench.edge.peers.set_bits(NodeId(0), bits);
            let delivery = || bench.edge.delivery(request, NodeId(0), FirstBytes::Http1, false);
            (0..64).filter(|_| delivery().reason == DeliveryReason::Locality).count()
        };
        assert_eq!(relayed(UP_FOR_TESTS), 60, "one in sixteen is tried");
        assert_eq!(relayed(UP_FOR_TESTS | LATERAL_FOR_TESTS), 0);
    }

    #[tokio::test]
    async fn relayed_replies_teach_how_long_they_are() {
        let bench = Bench::new(|_| {});
        let target = TargetId(5);
        let reply = |length: Option<&str>| {
            let mut reply = http::HeaderMap::new();
            if let Some(length) = length {
                reply.set("Content-Length", length.as_bytes());
            }
            reply
        };
        for (method, status, length) in [
            (&b"HEAD"[..], 200, Some("9")),
            (b"GET", 404, Some("9")),
            (b"GET", 206, Some("9")),
            (b"GET", 200, None),
            (b"GET", 200, Some("x")),
        ] {
            bench.edge.note_relayed(method, target, status, &reply(length));
            assert_eq!(bench.edge.learned.reply_bytes(target), None, "{method:?} {status} {length:?}");
        }
        bench.edge.note_relayed(b"GET", target, 200, &reply(Some("1234")));
        assert_eq!(bench.edge.learned.reply_bytes(target), Some(1_234));
        let cookie = Bench::new(|config| config.handoff.setting = MechanismSetting::Cookie);
        cookie.edge.note_relayed(b"GET", target, 200, &reply(Some("1234")));
        assert_eq!(cookie.edge.learned.reply_bytes(target), None, "nobody would ask");
    }
}
