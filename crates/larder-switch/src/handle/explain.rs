//! Explanations of decisions: why a request goes to its node.

use super::status::SwitchHandle;
use crate::edits::cookie_in_field;
use larder_core::NodeId;
use larder_core::rules::{Head, Headers};
use serde::Serialize;
use std::net::IpAddr;

/// Explanation of a decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainReply {
    /// The method.
    pub method: String,
    /// Host in lower case.
    pub host: String,
    /// Path and query.
    pub target: String,
    /// Route that takes the request.
    pub route: String,
    /// Group of nodes that the route may use; `None` for all nodes.
    pub group: Option<String>,
    /// Service class: `n`, `db`, `cb` or `dcb`.
    pub class: String,
    /// Template of the target key.
    pub key_template: String,
    /// Target key. Bytes that are not UTF-8 are shown as U+FFFD.
    pub key: String,
    /// Target id in 16 hexadecimal digits: the hash of the key.
    pub id: String,
    /// Policy of the route.
    pub policy: String,
    /// Node that the client's session belongs to; `None` if there is no session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_of: Option<String>,
    /// Whether the policy knows the target.
    pub known: bool,
    /// Servers of the target by name, in the order in which they were added; empty if the target is unknown.
    pub servers: Vec<String>,
    /// Seconds since the servers last changed; `None` if the target is unknown, or its policy does not record that.
    pub unchanged_for_s: Option<f64>,
    /// Direct reply of the switch: `redirect` or `respond`; `None` if a node is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Path sent to the node; `None` if it is the client's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_path: Option<String>,
    /// Node that the request would go to now; `None` if no node takes requests.
    pub node: Option<String>,
    /// Reason for this node.
    pub reason: Option<String>,
}

impl SwitchHandle {
    /// Explains where a GET for a target would go now. Changes nothing.
    pub fn explain(&self, host: &str, path_and_query: &str) -> ExplainReply {
        self.explain_request("GET", host, path_and_query, &(), None)
    }

    /// Like [`SwitchHandle::explain`], for any method, these fields (for example a list of names and values) and this
    /// client, which may decide shares of routes.
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
        let affinity = shared
            .decider
            .affinity(&request, &head, now, |name| cookie_in_field(headers.get("cookie")?, name));
        let request = affinity.map_or(request, |affinity| request.with_affinity(affinity.tie));
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
