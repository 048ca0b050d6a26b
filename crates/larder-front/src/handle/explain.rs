//! Why a request goes where it goes.

use super::status::SwitchHandle;
use crate::edits::cookie_of;
use larder_core::NodeId;
use larder_core::rules::{Head, Headers};
use serde::Serialize;
use std::net::IpAddr;

/// Why a request goes where it goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainReply {
    /// The method.
    pub method: String,
    /// The host, as compared: in lower case.
    pub host: String,
    /// Path and query.
    pub target: String,
    /// The route that takes it.
    pub route: String,
    /// The group of nodes it may use, by name; `None` for all.
    pub group: Option<String>,
    /// Its service class: `n`, `db`, `cb` or `dcb`.
    pub class: String,
    /// The template of its key.
    pub key_template: String,
    /// Its key: what counts as the same target. Bytes that are no UTF-8 are shown as U+FFFD.
    pub key: String,
    /// The target's id, 16 hexadecimal digits: the hash of the key.
    pub id: String,
    /// The policy that decides.
    pub policy: String,
    /// The node that the client is to come back to, by its cookie or by what its request brings; `None` where it comes back to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_of: Option<String>,
    /// Whether the target is remembered.
    pub known: bool,
    /// The nodes that serve it, by name, in the order in which they were added; empty if it is not remembered.
    pub servers: Vec<String>,
    /// Seconds since the servers last changed; `None` if it is not remembered, or its policy does not keep
    /// when that was.
    pub unchanged_for_s: Option<f64>,
    /// What the switch answers by itself: `redirect` or `respond`; `None` where a node is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The path that the node is asked for; `None` where it is the client's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_path: Option<String>,
    /// The node that a request for it would go to now; `None` if none takes requests.
    pub node: Option<String>,
    /// Why that one.
    pub reason: Option<String>,
}

impl SwitchHandle {
    /// What is known of a target and where a GET for it would go now. Changes nothing.
    pub fn explain(&self, host: &str, path_and_query: &str) -> ExplainReply {
        self.explain_request("GET", host, path_and_query, &(), None)
    }

    /// Like [`SwitchHandle::explain`], for a request of any method with these fields (a list of names and values will
    /// do), from this client if it is known: shares of routes may go by it.
    pub fn explain_request(
        &self,
        method: &str,
        host: &str,
        path_and_query: &str,
        headers: &dyn Headers,
        client: Option<IpAddr>,
    ) -> ExplainReply {
        let shared = &*self.shared;
        let now = shared.decider.clock.now();
        let head = Head::new(method.as_bytes(), host.as_bytes(), path_and_query.as_bytes(), headers);
        let request = shared.decider.routing.request(&head, client);
        let affinity =
            shared.decider.affinity(&request, &head, now, |name| cookie_of(headers.get("cookie")?, name));
        let request = affinity.map_or(request, |affinity| request.with_tie(affinity.tie));
        let route = shared.decider.routing.route(request.route);
        let explanation = shared.decider.dispatcher.explain_request(now, &request);
        let mut key = Vec::new();
        route.with_key_head(&head, |head| route.key.render(head, &mut key));
        let name = |node: NodeId| shared.decider.dispatcher.nodes().name(node).to_string();
        let known = explanation.known;
        ExplainReply {
            method: method.to_owned(),
            host: host.to_ascii_lowercase(),
            target: path_and_query.to_owned(),
            route: route.name.to_string(),
            group: route.group.clone(),
            class: request.class.to_string(),
            key_template: route.key.to_string(),
            key: String::from_utf8_lossy(&key).into_owned(),
            id: explanation.target.to_string(),
            policy: explanation.policy.to_string(),
            session_of: affinity.map(|affinity| name(affinity.node)),
            known: known.is_some(),
            servers: known.iter().flat_map(|known| &known.servers).map(|&node| name(node)).collect(),
            unchanged_for_s: known.and_then(|known| known.changed).map(|at| (now - at).as_secs_f64()),
            answer: route.edits.answer.as_ref().map(|answer| answer.name().to_owned()),
            node_path: route.edits.rewrite.as_ref().and_then(|rewrite| match rewrite.apply(head.path) {
                path if path == head.path => None,
                path => Some(String::from_utf8_lossy(&path).into_owned()),
            }),
            node: explanation.decision.map(|decision| name(decision.node)),
            reason: explanation.decision.map(|decision| decision.reason.to_string()),
        }
    }
}
