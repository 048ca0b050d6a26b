//! A cluster to be simulated.

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

/// A node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimNode {
    /// Its memory for contents.
    pub cache: Bytes,
    /// Its weight for the dispatcher.
    pub weight: Weight,
    /// The groups it belongs to; routes may be confined to one.
    pub groups: Groups,
    /// How many times faster its processor is than the cost model's; above 0.
    pub cpu_speed: f64,
    /// How many times faster its disks are than the cost model's; above 0.
    pub disk_speed: f64,
    /// Its disks, 1 to 64. Items are spread over them in turn, in the order of how often they are asked for (LARD
    /// section 4.3).
    pub disks: u16,
}

impl SimNode {
    /// A node of speed 1 with one disk.
    pub const fn with_cache(cache: Bytes) -> Self {
        Self { cache, weight: Weight::ONE, groups: Groups::NONE, cpu_speed: 1.0, disk_speed: 1.0, disks: 1 }
    }
}

/// How nodes use their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheChoice {
    /// As the live node does.
    Kind(CacheKind),
    /// Nothing ever leaves: only first uses miss.
    Unbounded,
    /// One memory for all, replaced by global age, with free bookkeeping: WRR/GMS of LARD section 3.2, after Feeley
    /// et al., SOSP 1995. At most 64 nodes.
    Global(CacheKind),
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It joins; until then it was no member. Nodes that join are the last ones, and join in order.
    Join,
    /// It leaves for good.
    Leave,
    /// It drains.
    Drain,
    /// It fails. Requests in flight there end there.
    Down,
    /// It is back, with the memory it had.
    Up,
    /// It is back, and its memory is empty.
    Restart,
    /// It gets another weight.
    Reweigh(Weight),
}

/// Something that happens while a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// After so many requests have come.
    pub after: u64,
    /// The node: its place in [`Scenario::nodes`].
    pub node: u16,
    /// What happens to it.
    pub what: Happening,
}

/// Switches side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SideBySide {
    /// The number of switches, 1 to 64. One alone places as several would, and hears of nobody.
    pub count: u16,
    /// The time that a message between two of them takes; at most 10 s.
    pub delay: Duration,
    /// The settings of their protocol.
    pub settings: SwitchesSettings,
}

impl SideBySide {
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

/// The times at which the table of `ward` and `part` is made anew from the requests since the last time.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// The period, in simulated time; above 0. The paper's is a day; it mentions 15 minutes.
    pub every: Duration,
    /// Most targets counted.
    pub targets_max: usize,
    /// Thousandths of a count that are carried over into the next period.
    pub carry_permille: u16,
    /// The prices.
    pub prices: WardCosts,
}

impl Refresh {
    /// So often, at most 1,048,576 targets (2^20) counted, half of each count carried over.
    pub const fn new(every: Duration, prices: WardCosts) -> Self {
        Self { every, targets_max: 1 << 20, carry_permille: 500, prices }
    }
}

/// Everything of a run but the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The nodes.
    pub nodes: Vec<SimNode>,
    /// The dispatcher's settings; its table has room for the nodes whatever `nodes_max` says.
    pub settings: Settings,
    /// How nodes use their memory.
    pub cache: CacheChoice,
    /// Items above this are not kept in memory.
    pub object_max: Bytes,
    /// Memory that an item takes at least; the live node charges 512 bytes for the smallest object.
    pub object_min: Bytes,
    /// Who asks, and when.
    pub arrivals: Arrivals,
    /// What requests take.
    pub costs: Costs,
    /// How many requests, from the first, are not measured.
    pub warmup: usize,
    /// How often nodes report their load to the dispatcher; never if `None`.
    pub report_every: Option<Duration>,
    /// Routes beside the default one, whose settings are [`Scenario::settings`]; [`Item::route`](crate::Item::route)
    /// says which a request takes.
    pub routes: Vec<RouteSpec>,
    /// When the table of `ward` and `part` is made anew; never if `None`.
    pub refresh: Option<Refresh>,
    /// Switches side by side; one alone, which knows of no others, if `None`.
    pub switches: Option<SideBySide>,
    /// What happens to the nodes, in order.
    pub changes: Vec<Planned>,
    /// A node with fewer requests in flight counts as underutilised; the paper's is 40 % of T_low, which is 10.
    pub idle_below: u32,
}

impl Scenario {
    /// The LARD simulation: `count` nodes of 32 MB (2^20 bytes) under Greedy-Dual-Size, S requests outstanding.
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
    /// The first value that is out of its range.
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
        let joining = self.changes.iter().filter(|planned| planned.what == Happening::Join);
        let first = self.nodes.len() - joining.clone().count().min(self.nodes.len());
        if first == 0 || !joining.zip(first..).all(|(planned, node)| usize::from(planned.node) == node) {
            return out("such that the last nodes join, in order, and one at least is there from the start");
        }
        Ok(())
    }

    /// How many nodes are there from the start.
    pub(crate) fn initial_nodes(&self) -> usize {
        self.nodes.len() - self.changes.iter().filter(|planned| planned.what == Happening::Join).count()
    }
}
