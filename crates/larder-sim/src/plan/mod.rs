//! `larder plan`: predicts the effect of policies, nodes and memory on the requests of a log.
//!
//! A log is replayed on a grid of policies, numbers of nodes and sizes of memory. The cluster is saturated: S
//! requests are outstanding, as in the LARD paper's simulation (section 3.1). Stated rules choose a cell of
//! the grid. Short logs are replayed whole. Long logs are sampled for the grid and then replayed whole on the
//! recommended cluster. The whole replay gives that cluster's values without sampling error and measures the
//! deviation of the samples, which is added to the stated errors.
//!
//! Policies know what they would know in a running cluster. Nodes report every 200 ms ([`REPORT_EVERY`]) and
//! report what they cache. `ward` and `part` have the routing table of the log's warm-up, as if it were
//! yesterday's log.
//!
//! The stated error of a value has these terms: Student's t over the strata of the sample (`run.rs`), the share of a node's
//! memory that the sampling needs (`grid.rs`), and the deviation from the whole replay (`study.rs`, `check_choice`).
//!
//! * [`merge()`] turns several logs into one workload; [`merge_as`] uses the caller's ids and classes.
//! * [`plan`] turns a workload and [`Options`] into a [`Plan`]. It does no I/O.
//!
//! The same workload and options give the same plan on any number of threads.

mod choose;
mod facts;
mod goal;
mod grid;
mod merge;
mod policies;
mod result;
mod run;
mod sample;
mod study;
mod unmet_goal;
mod warnings;

#[cfg(test)]
mod coverage;
#[cfg(test)]
mod tests;

pub(crate) use goal::seconds;
pub use goal::{Goal, GoalError, Prices};
pub use grid::{EXACT_REQUESTS, NODES, POLICIES, SAMPLED_REQUESTS, Sampling};
pub use larder_trace::stats::Coverage;
pub use merge::{TargetIdentity, merge, merge_as};
pub use result::{
    BoundRow, Cell, Check, Estimate, Gain, LoadDelays, LogFacts, LowGainCluster, Method, Plan, PolicyChange,
    Recommendation, SCHEMA, Spread,
};

use core::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_core::{Bytes, PolicyKind};

use crate::cost::Costs;
use crate::{SimError, Workload};

/// The period of the simulated nodes' load reports: the default of the switch.
pub const REPORT_EVERY: Duration = Duration::from_millis(200);

/// The largest number of nodes in a grid.
pub const NODES_MAX: u16 = 1_024;

/// The largest number of cells in a grid.
pub const CELLS_MAX: usize = 10_000;

/// The options of a plan.
#[derive(Clone, Debug)]
pub struct Options {
    /// Policies to compare, without duplicates. Default: the six of [`POLICIES`].
    pub policies: Vec<PolicyKind>,
    /// Numbers of nodes, each 1 to 1,024. Default: [`NODES`].
    pub nodes: Vec<u16>,
    /// Sizes of a node's memory for contents. If empty (the default): four sizes from a sixteenth of the
    /// working set to all of it.
    pub memory: Vec<Bytes>,
    /// The goal of the cluster. Default: none, which selects the knee.
    pub goal: Option<Goal>,
    /// The load for goals and delays, in requests per second. Default: the log's busiest minute for goals, 70
    /// % of the recommended cell's throughput for delays.
    pub load: Option<f64>,
    /// The prices of nodes.
    pub prices: Option<Prices>,
    /// The cost model.
    pub costs: Costs,
    /// The nodes' cache replacement policy. Default: `gds`.
    pub cache: CacheKind,
    /// The dispatcher's settings except policy and tables.
    pub settings: Settings,
    /// Seeds, at least one. The first seed draws samples and arrivals. The others rename targets, which shows
    /// the influence of hash placement. Default: 1 to 5.
    pub seeds: Vec<u64>,
    /// The sampling of the log.
    pub sampling: Sampling,
    /// Share of the requests, from the first, that warms the memories and is not measured, 0 to 0.9. Default:
    /// a third.
    pub warmup: f64,
}

impl Options {
    /// Returns the default options with a cost model.
    pub fn new(costs: Costs) -> Self {
        Self {
            policies: POLICIES.to_vec(),
            nodes: NODES.to_vec(),
            memory: Vec::new(),
            goal: None,
            load: None,
            prices: None,
            costs,
            cache: CacheKind::Gds,
            settings: Settings::default(),
            seeds: (1..=5).collect(),
            sampling: Sampling::Auto,
            warmup: 1.0 / 3.0,
        }
    }
}

/// The progress of a plan, in simulated requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The name of the current step.
    pub what: &'static str,
    /// Requests simulated in this step.
    pub done: u64,
    /// Requests of this step.
    pub total: u64,
}

/// A plan that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The log has too few requests.
    #[error(
        "the log has {0} requests that can be replayed (GET, status 200, with a body); a plan needs at least 3"
    )]
    TooShort(usize),
    /// An option is invalid.
    #[error("{0}")]
    Option(String),
    /// The simulation rejects its arguments.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// Replays a workload on the grid and recommends a cell.
///
/// Time: the simulated requests, at most [`EXACT_REQUESTS`] for a grid that is sampled automatically, plus a
/// few whole replays of the recommended cluster. Memory: a few times the workload.
///
/// # Errors
/// Returns an error for a log without requests, and for options out of range.
pub fn plan(
    workload: &Workload,
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Plan, PlanError> {
    check(options)?;
    if workload.requests.len() < 3 {
        return Err(PlanError::TooShort(workload.requests.len()));
    }
    study::Study::new(workload, options, progress)?.plan()
}

fn check(options: &Options) -> Result<(), PlanError> {
    let wrong = |text: &str| Err(PlanError::Option(text.to_owned()));
    let twice = |(at, kind): (usize, &PolicyKind)| options.policies[..at].contains(kind);
    if options.policies.is_empty() || options.policies.iter().enumerate().any(twice) {
        return wrong("name at least one policy, and none twice");
    }
    if options.nodes.is_empty() || !options.nodes.iter().all(|nodes| (1..=NODES_MAX).contains(nodes)) {
        return wrong(&format!("numbers of nodes must be from 1 to {NODES_MAX}"));
    }
    if options.memory.contains(&Bytes::ZERO) {
        return wrong("memory sizes must be above 0");
    }
    let cells = options.policies.len() * options.nodes.len() * options.memory.len().max(4);
    if cells > CELLS_MAX {
        return wrong(&format!("{cells} combinations are too many; at most {CELLS_MAX}"));
    }
    if options.seeds.is_empty() || options.seeds.len() > 100 {
        return wrong("name 1 to 100 seeds");
    }
    if !(0.0..=0.9).contains(&options.warmup) {
        return wrong("the warm-up must be from 0 to 90 % of the requests");
    }
    if matches!(options.sampling, Sampling::Rate(rate) if !(1e-6..=0.5).contains(&rate)) {
        return wrong("the sampling rate must be above 0 and at most 0.5; 'exact' replays everything");
    }
    if options.load.is_some_and(|load| !(load > 0.0 && load.is_finite())) {
        return wrong("the load must be above 0");
    }
    let price_ok = |price: f64| price.is_finite() && price >= 0.0;
    if options.prices.is_some_and(|p| !price_ok(p.node_hour) || !price_ok(p.gb_hour) || p.hour(1, 1) <= 0.0) {
        return wrong("prices must not be negative, and a node must cost something");
    }
    if options.goal == Some(Goal::Cost) && options.prices.is_none() {
        return wrong("the goal 'cost' needs prices");
    }
    Ok(())
}
