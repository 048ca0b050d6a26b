//! A cluster to be simulated.

use core::time::Duration;

use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_core::nodes::{NODES_LIMIT, Weight};

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
        Self { cache, weight: Weight::ONE, cpu_speed: 1.0, disk_speed: 1.0, disks: 1 }
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
            idle_below: 10,
        }
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
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
        self.costs.check()
    }
}
