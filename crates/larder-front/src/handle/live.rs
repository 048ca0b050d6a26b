//! The switch at one glance: what a page or a terminal that shows it asks for, again and again.

use super::hottest::HotTarget;
use super::shadow::ShadowStatus;
use super::status::{NodeStatus, SwitchHandle, SwitchStatus};
use crate::handoff::mechanism::Delivery;
use crate::reload_counts::ReloadCounts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Hot targets that are listed.
const HOTTEST: usize = 20;

/// The switch at one glance. Counts are since the start of the process: whoever wants rates takes the difference of two.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveStatus {
    /// The switch as a whole.
    pub status: SwitchStatus,
    /// Which process of it this is, and how changes went.
    pub reloads: ReloadCounts,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// Requests by why their node was chosen; reasons that have not come up are left out.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Connections by how they were delivered and why so, where handoff is on; else empty.
    pub deliveries: Vec<DeliveryCount>,
    /// Requests that the switch itself answered or broke off, by why; what has not come up is left out.
    pub failures: BTreeMap<&'static str, u64>,
    /// From the end of a request's header to the last byte of its reply.
    pub latency: Latency,
    /// The targets that are asked for most.
    pub hottest: Vec<HotTarget>,
    /// What other policies would have made of it; `None` where shadow mode is off.
    pub shadow: Option<ShadowStatus>,
}

/// Connections that were delivered in one way for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeliveryCount {
    /// How.
    pub mechanism: &'static str,
    /// Why so.
    pub why: &'static str,
    /// How many.
    pub count: u64,
}

/// A histogram of times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Upper bounds, seconds; times above the last are in one more count.
    pub bounds_s: Vec<f64>,
    /// Requests between a bound and the one before it.
    pub counts: Vec<u64>,
}

impl SwitchHandle {
    /// The switch at one glance.
    pub fn live(&self) -> LiveStatus {
        let shared = &*self.shared;
        let deliveries = shared.handoff.iter().flat_map(|edge| edge.counts.deliveries());
        let delivery = |(Delivery { mechanism, reason }, count)| DeliveryCount {
            mechanism: mechanism.name(),
            why: reason.name(),
            count,
        };
        let (bounds_s, counts) = shared.decider.metrics.request_times();
        LiveStatus {
            status: self.status(),
            reloads: *shared.reloads.lock().unwrap_or_else(PoisonError::into_inner),
            nodes: self.nodes(),
            decisions: shared.decider.metrics.decisions().filter(|(_, count)| *count > 0).collect(),
            deliveries: deliveries.map(delivery).collect(),
            failures: shared.decider.metrics.failures().filter(|(_, count)| *count > 0).collect(),
            latency: Latency { bounds_s, counts },
            hottest: self.hottest(HOTTEST),
            shadow: self.shadow(),
        }
    }
}
