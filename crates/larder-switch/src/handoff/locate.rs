//! Locations of targets: questions of nodes about which nodes have a target, and sizes of relayed replies.

use super::edge::Edge;
use crate::lease::Lease;
use crate::target;
use larder_core::rules::Headers;
use larder_core::{NodeId, Request, TargetId};
use larder_edge::Lookup;
use larder_handoff::channel::holders::{HOLDERS_MAX, Holder, HolderQuery, HolderReply, RequestSummary};
use larder_handoff::channel::message::ToNode;
use std::cell::Cell;

/// Headers of a request whose fields are unknown. Records whether a rule has read one.
#[derive(Default)]
struct MissingHeaders(Cell<bool>);

impl Headers for MissingHeaders {
    fn get(&self, _name: &str) -> Option<&[u8]> {
        self.0.set(true);
        None
    }
}

impl Edge {
    /// Answers a node's question about a target.
    pub(super) fn answer_locate(&self, node: NodeId, question: &HolderQuery) {
        let has = self.locate(node, question.id, &question.request);
        if let Err(error) = self.channels.send(node, &ToNode::Holders(has)) {
            tracing::debug!(%node, %error, "handoff: answer to a node's query not sent");
        }
    }

    /// Returns the nodes that have a request's target. A target without servers is placed, as its first request would
    /// be. Otherwise every node would fetch it for itself.
    fn locate(&self, node: NodeId, id: u64, asked: &RequestSummary) -> HolderReply {
        let nodes = self.decider.dispatcher.nodes();
        let mut has =
            HolderReply { id, target: None, is_holder: false, load: nodes.load(node), holders: Vec::new() };
        let missing = MissingHeaders::default();
        let head = target::rule_head(
            asked.method.as_bytes(),
            asked.host.as_bytes(),
            asked.target.as_bytes(),
            &missing,
        );
        let request = self.decider.routing.request(&head, None);
        if missing.0.get() {
            // The unknown fields may change the target and the route.
            return has;
        }
        has.target = Some(request.target.0);
        let mut servers = self.servers(&request);
        if servers.is_empty() && self.decider.dispatcher.settings_of(request.route).policy.is_by_target() {
            // The load or the place in the queue is returned at once, because the request is at the node already.
            let _ = Lease::new(self.decider.clone()).arrive(self.decider.clock.now(), request);
            servers = self.servers(&request);
        }
        for server in servers {
            if server == node {
                has.is_holder = true;
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

    /// Records the size of a relayed reply, if it has a length and handoff uses it.
    pub(crate) fn note_relayed(&self, method: &[u8], target: TargetId, status: u16, reply: &impl Lookup) {
        if !self.config.setting.allows_repair() || method != b"GET" || status != 200 {
            return;
        }
        let length = reply.first("Content-Length").and_then(|length| std::str::from_utf8(length).ok());
        if let Some(bytes) = length.and_then(|length| length.parse().ok()) {
            self.history.note_reply(target, bytes);
        }
    }
}

impl Edge {
    /// Returns the nodes that have a request's target.
    fn servers(&self, request: &Request) -> Vec<NodeId> {
        let known = self.decider.dispatcher.explain_request(self.decider.clock.now(), request).known;
        known.map_or(Vec::new(), |known| known.servers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::channels::{LATERAL_FOR_TESTS, UP_FOR_TESTS};
    use super::super::mechanism::{DeliveryReason, FirstBytes, MechanismSetting};
    use super::super::tests::{Bench, GET, key};
    use super::*;
    use larder_edge::Fields as _;

    fn asked(target: &str) -> RequestSummary {
        RequestSummary { method: "GET".to_owned(), host: "h".to_owned(), target: target.to_owned() }
    }

    #[tokio::test]
    async fn nodes_learn_the_holders_of_placed_targets() {
        let bench = Bench::new(|_| {});
        let edge = &bench.edge;
        bench.punt(key(1), true, 1, GET);
        let all = [NodeId(0), NodeId(1)].map(|node| edge.locate(node, 2, &asked("/a")));
        let (at, other) = if all[0].is_holder { (0, 1) } else { (1, 0) };
        assert!(all[at].is_holder && all[at].holders.is_empty() && all[at].load == 1, "{all:?}");
        let address = "127.0.0.1:9".parse().expect("an address");
        let holder = Holder { node: at as u16, address, load: 1 };
        assert_eq!((all[other].is_holder, &all[other].holders[..]), (false, &[holder][..]));
        assert_eq!(all[0].target, all[1].target);
        // Mapped nowhere, it is placed, and stays where it is.
        let placed = [NodeId(0), NodeId(1), NodeId(0)].map(|node| edge.locate(node, 3, &asked("/b")));
        assert_eq!(
            (placed[0].is_holder, placed[0].holders.len()),
            (placed[2].is_holder, placed[2].holders.len())
        );
        assert!(placed[0].is_holder != placed[1].is_holder, "{placed:?}");
        assert_eq!((placed[2].id, bench.load()), (3, 1), "and counts no load");
        edge.decider.dispatcher.fail(edge.decider.clock.now(), NodeId(at as u16), &mut Vec::new());
        let lost = edge.locate(NodeId(other as u16), 4, &asked("/a"));
        assert_eq!(lost.holders, [], "a dead node has nothing");
    }

    #[tokio::test]
    async fn unknown_fields_give_no_answer() {
        let template = "{path}{header:x-tenant}".parse().expect("a template");
        let bench = Bench::new(|config| config.key = template);
        bench.punt(key(1), true, 1, GET);
        for node in [NodeId(0), NodeId(1)] {
            let has = bench.edge.locate(node, 1, &asked("/a"));
            assert_eq!((has.target, has.is_holder, has.holders.len()), (None, false, 0));
        }
    }

    #[tokio::test]
    async fn routes_that_lose_locality_are_relayed_unless_the_node_fetches_from_others() {
        let bench = Bench::new(|_| {});
        let request = Request::new(TargetId(1));
        (0..99).for_each(|_| bench.edge.history.note_later_request(request.route, true));
        let relayed = |bits| {
            bench.edge.channels.set_bits(NodeId(0), bits);
            let delivery = || bench.edge.choose_delivery(request, NodeId(0), FirstBytes::Http1, false);
            (0..64).filter(|_| delivery().reason == DeliveryReason::Locality).count()
        };
        assert_eq!(relayed(UP_FOR_TESTS), 60, "one in sixteen is tried");
        assert_eq!(relayed(UP_FOR_TESTS | LATERAL_FOR_TESTS), 0);
    }

    #[tokio::test]
    async fn relayed_replies_record_their_size() {
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
            assert_eq!(bench.edge.history.reply_bytes(target), None, "{method:?} {status} {length:?}");
        }
        bench.edge.note_relayed(b"GET", target, 200, &reply(Some("1234")));
        assert_eq!(bench.edge.history.reply_bytes(target), Some(1_234));
        let cookie = Bench::new(|config| config.handoff.setting = MechanismSetting::Cookie);
        cookie.edge.note_relayed(b"GET", target, 200, &reply(Some("1234")));
        assert_eq!(cookie.edge.history.reply_bytes(target), None, "nobody would ask");
    }
}
