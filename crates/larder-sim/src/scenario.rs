//! Scenarios: the cluster to be simulated.

use core::time::Duration;

use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_core::dispatch::{RouteSpec, Settings};
use larder_core::nodes::{Groups, NODES_LIMIT, Weight};
use larder_core::switches::SwitchesSettings;
use larder_trace::ward::WardCosts;

use crate::SimError;
use crate::cost::Costs;
use crate::source::Arrivals;

/// A simulated node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimNode {
    /// The node's memory for contents.
    pub cache: Bytes,
    /// The node's weight for the dispatcher.
    pub weight: Weight,
    /// The node's groups; a route may be confined to one group.
    pub groups: Groups,
    /// The speed of the processor relative to the cost model; above 0.
    pub cpu_speed: f64,
    /// The speed of the disks relative to the cost model; above 0.
    pub disk_speed: f64,
    /// The number of disks, 1 to 64. Items are striped over the disks in decreasing request frequency (LARD
    /// section 4.3).
    pub disks: u16,
}

impl SimNode {
    /// Creates a node of speed 1 with one disk.
    pub const fn with_cache(cache: Bytes) -> Self {
        Self { cache, weight: Weight::ONE, groups: Groups::NONE, cpu_speed: 1.0, disk_speed: 1.0, disks: 1 }
    }
}

/// The organisation of the nodes' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheChoice {
    /// A cache per node with this replacement policy, as in the live node.
    Kind(CacheKind),
    /// A memory without limit per node: only first uses miss.
    Unbounded,
    /// One memory of all nodes, replaced by global age, with free bookkeeping: WRR/GMS of LARD section 3.2,
    /// after Feeley et al., SOSP 1995. At most 64 nodes.
    Global(CacheKind),
}

/// A change to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The node joins. It was no member before. Nodes that join are the last ones, and they join in order.
    Join,
    /// The node leaves for good.
    Leave,
    /// The node drains.
    Drain,
    /// The node fails. Its requests in flight end there.
    Down,
    /// The node is back, with its memory unchanged.
    Up,
    /// The node is back with an empty memory.
    Restart,
    /// The node gets another weight.
    Reweigh(Weight),
}

/// A change to a node at a given point of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledChange {
    /// The number of requests that arrive before the change.
    pub after: u64,
    /// The node: its index in [`Scenario::nodes`].
    pub node: u16,
    /// The change.
    pub change: NodeChange,
}

/// A group of switches in front of the same nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchGroup {
    /// The number of switches, 1 to 64. A single switch runs the protocol without peers.
    pub count: u16,
    /// The delay of a message between two switches; at most 10 s.
    pub delay: Duration,
    /// The settings of the protocol between switches.
    pub settings: SwitchesSettings,
}

impl SwitchGroup {
    fn check(&self) -> Result<(), SimError> {
        let out = |key, range| Err(SimError::OutOfRange { key, range });
        if !(1..=64).contains(&self.count) {
            return out("switches", "1 to 64");
        }
        if self.delay > Duration::from_secs(10) {
            return out("switch_delay_ms", "at most 10,000");
        }
        self.settings.validate()?;
        Ok(())
    }
}

/// The periodic refresh of the routing tables of `ward` and `part` from the requests since the last refresh.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRefresh {
    /// The period in simulated time; above 0. The paper uses a day and mentions 15 minutes.
    pub every: Duration,
    /// The largest number of targets counted.
    pub targets_max: usize,
    /// The part of each count that is carried over into the next period, in thousandths.
    pub carry_permille: u16,
    /// The costs for ward-analysis.
    pub costs: WardCosts,
}

impl TableRefresh {
    /// Creates a refresh with this period, at most 1,048,576 (2^20) targets, and half of each count carried
    /// over.
    pub const fn new(every: Duration, costs: WardCosts) -> Self {
        Self { every, targets_max: 1 << 20, carry_permille: 500, costs }
    }
}

/// The cluster and the arrivals of a run: everything but the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The nodes.
    pub nodes: Vec<SimNode>,
    /// The dispatcher's settings. Its node table has room for the nodes whatever `nodes_max` is.
    pub settings: Settings,
    /// The organisation of the nodes' memory.
    pub cache: CacheChoice,
    /// The size of the largest item that is kept in memory.
    pub object_max: Bytes,
    /// The least memory that an item takes. The live node charges 512 bytes for the smallest object.
    pub object_min: Bytes,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// The cost model.
    pub costs: Costs,
    /// The number of requests, from the first, that are not measured.
    pub warmup: usize,
    /// The period of the nodes' load reports; `None` if there are none.
    pub report_every: Option<Duration>,
    /// The routes beside the default route, whose settings are [`Scenario::settings`].
    /// [`Item::route`](crate::Item::route) names the route of a request.
    pub routes: Vec<RouteSpec>,
    /// The refresh of the tables of `ward` and `part`; `None` if the tables stay.
    pub refresh: Option<TableRefresh>,
    /// The group of switches; `None` for a single switch without peers.
    pub switches: Option<SwitchGroup>,
    /// The changes to the nodes, in order.
    pub changes: Vec<ScheduledChange>,
    /// The load below which a node counts as underutilised. The paper's is 40 % of T_low, which is 10
    /// (section 3.3).
    pub idle_below: u32,
}

impl Scenario {
    /// Creates the scenario of the LARD simulation: `count` nodes of 32 MB (2^20 bytes) under
    /// Greedy-Dual-Size, S requests outstanding.
    pub fn lard98(count: usize, settings: Settings) -> Self {
        Self {
            nodes: vec![SimNode::with_cache(Bytes::mib(32)); count],
            settings,
            cache: CacheChoice::Kind(CacheKind::Gds),
            object_max: Bytes(u64::MAX),
            object_min: Bytes(1),
            arrivals: Arrivals::Closed { clients: 0 },
            costs: Costs::Lard98(crate::cost::Lard98::default()),
            warmup: 0,
            report_every: None,
            routes: Vec::new(),
            refresh: None,
            switches: None,
            changes: Vec::new(),
            idle_below: 10,
        }
    }

    /// Checks that all values are within their ranges, as every run does first.
    ///
    /// # Errors
    /// Returns an error for the first value that is out of its range.
    pub fn check(&self) -> Result<(), SimError> {
        let out = |key, range| Err(SimError::OutOfRange { key, range });
        if self.nodes.is_empty() || self.nodes.len() > NODES_LIMIT as usize {
            return out("nodes", "1 to 65534");
        }
        if matches!(self.cache, CacheChoice::Global(_)) && self.nodes.len() > 64 {
            return out("nodes", "at most 64 with global memory");
        }
        if matches!(self.cache, CacheChoice::Global(_)) && matches!(self.costs, Costs::Modelled(_)) {
            return out("cache", "each node's own for the model 'modelled', which is a live node");
        }
        let speed = |value: f64| value.is_finite() && value > 0.0;
        if !self.nodes.iter().all(|node| speed(node.cpu_speed) && speed(node.disk_speed)) {
            return out("node.cpu_speed and node.disk_speed", "above 0");
        }
        if !self.nodes.iter().all(|node| (1..=64).contains(&node.disks)) {
            return out("node.disks", "1 to 64");
        }
        if self.report_every == Some(Duration::ZERO) {
            return out("report_every", "above 0");
        }
        if self.refresh.as_ref().is_some_and(|refresh| refresh.every == Duration::ZERO) {
            return out("refresh.every", "above 0");
        }
        if let Some(side) = &self.switches {
            side.check()?;
        }
        self.check_changes()?;
        self.costs.check()
    }

    fn check_changes(&self) -> Result<(), SimError> {
        let out = |range| Err(SimError::OutOfRange { key: "changes", range });
        if !self.changes.is_sorted_by_key(|planned| planned.after) {
            return out("in order of time");
        }
        if self.changes.iter().any(|planned| usize::from(planned.node) >= self.nodes.len()) {
            return out("about nodes that exist");
        }
        let joining = self.changes.iter().filter(|planned| planned.change == NodeChange::Join);
        let first = self.nodes.len() - joining.clone().count().min(self.nodes.len());
        if first == 0 || !joining.zip(first..).all(|(planned, node)| usize::from(planned.node) == node) {
            return out("such that the last nodes join, in order, and one at least is there from the start");
        }
        Ok(())
    }

    /// Returns the number of nodes that are members from the start.
    pub(crate) fn initial_nodes(&self) -> usize {
        self.nodes.len() - self.changes.iter().filter(|planned| planned.change == NodeChange::Join).count()
    }
}
