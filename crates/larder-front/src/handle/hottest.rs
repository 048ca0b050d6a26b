//! The targets that are asked for most, as an operator sees them.

use super::status::SwitchHandle;
use crate::hottest::{COUNTED_MAX, Label};
use larder_core::{NodeId, TargetId};
use serde::Serialize;

/// A target that many ask for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotTarget {
    /// Host and path with query of a request for it, cut at 512 bytes.
    pub target: String,
    /// Its id, 16 hexadecimal digits.
    pub id: String,
    /// The route that takes it.
    pub route: String,
    /// Requests a second, estimated, in the last half to whole minute.
    pub requests_per_s: f64,
    /// Share of all requests, estimated.
    pub share: f64,
    /// The nodes that serve it, by name; empty if its policy remembers none.
    pub servers: Vec<String>,
}

impl SwitchHandle {
    /// The `most` targets that are asked for most, the hottest first.
    pub fn hottest(&self, most: usize) -> Vec<HotTarget> {
        let shared = &*self.shared;
        let now = shared.decider.clock.now();
        let name = |node: &NodeId| shared.decider.dispatcher.nodes().name(*node).to_string();
        let row = |(target, requests_per_s, share, label): (TargetId, f64, f64, Label)| {
            let known = shared.decider.dispatcher.explain_request(now, &label.request).known;
            HotTarget {
                target: label.text.into(),
                id: target.to_string(),
                route: shared.decider.routing.route(label.request.route).name.to_string(),
                requests_per_s,
                share,
                servers: known.iter().flat_map(|known| &known.servers).map(name).collect(),
            }
        };
        shared.observers.hottest.top(now, most.min(COUNTED_MAX)).into_iter().map(row).collect()
    }
}
