//! Status of the most requested targets.

use super::status::SwitchHandle;
use crate::hottest::{COUNTED_MAX, TargetLabel};
use larder_core::{NodeId, TargetId};
use serde::Serialize;

/// One of the most requested targets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotTarget {
    /// Host and path with query, cut at 512 bytes.
    pub target: String,
    /// Target id in 16 hexadecimal digits.
    pub id: String,
    /// Route of the target.
    pub route: String,
    /// Estimated requests per second in the last 30 to 60 seconds.
    pub requests_per_s: f64,
    /// Estimated share of all requests.
    pub share: f64,
    /// Servers of the target by name; empty if its policy records none.
    pub servers: Vec<String>,
}

impl SwitchHandle {
    /// Returns the `most` most requested targets, the hottest first.
    pub fn hottest(&self, most: usize) -> Vec<HotTarget> {
        let shared = &*self.shared;
        let now = shared.decider.clock.now();
        let name = |node: &NodeId| shared.decider.dispatcher.nodes().name(*node).to_string();
        let row = |(target, requests_per_s, share, label): (TargetId, f64, f64, TargetLabel)| {
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
