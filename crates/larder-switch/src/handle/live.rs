//! Overview of the switch, which pages and terminals request periodically.

use super::hottest::HotTarget;
use super::shadow::ShadowStatus;
use super::status::{NodeStatus, SwitchHandle, SwitchStatus};
use crate::handoff::mechanism::Delivery;
use crate::reload_counts::ReloadCounts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Number of listed hot targets.
const HOTTEST: usize = 20;

/// Overview of the switch. Counters start with the process; a rate is the difference of two reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveStatus {
    /// State of the switch.
    pub status: SwitchStatus,
    /// Reload counters.
    pub reloads: ReloadCounts,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// Requests by the reason of their decision, without zeros.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Connections by delivery and reason; empty without handoff.
    pub deliveries: Vec<DeliveryCount>,
    /// Requests that the switch answered or ended itself, by failure, without zeros.
    pub failures: BTreeMap<&'static str, u64>,
    /// Time from the end of a request header to the last byte of the reply.
    pub latency: Latency,
    /// Most requested targets.
    pub hottest: Vec<HotTarget>,
    /// Results of other policies; `None` if shadow mode is off.
    pub shadow: Option<ShadowStatus>,
}

/// Number of connections with one delivery and reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeliveryCount {
    /// Mechanism.
    pub mechanism: &'static str,
    /// Reason.
    pub why: &'static str,
    /// Number of connections.
    pub count: u64,
}

/// Histogram of times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Upper bounds in seconds; an additional count holds larger times.
    pub bounds_s: Vec<f64>,
    /// Requests per bucket.
    pub counts: Vec<u64>,
}

impl SwitchHandle {
    /// Returns an overview of the switch.
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
