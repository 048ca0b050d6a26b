//! `larder sim bound`: the upper bound of clusters, and the share of it that each policy reaches.

use core::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_core::{Bytes, PolicyKind};
use serde::Serialize;

use super::{Bound, Bounds};
use crate::cost::Costs;
use crate::sweep::sweep;
use crate::tables::{compute_initial_table, needs_table};
use crate::ward_costs::measure_ward_costs;
use crate::{CacheChoice, Scenario, SimError, SimNode, Workload, simulate};

/// The name and version of the JSON schema.
pub const SCHEMA: &str = "larder-bound/1";

/// The options of a comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policies, without duplicates; none for the bound alone.
    pub policies: Vec<PolicyKind>,
    /// The numbers of nodes, each 1 to 1,024.
    pub nodes: Vec<u16>,
    /// The memory of a node.
    pub memory: Bytes,
    /// The nodes' cache replacement policy.
    pub cache: CacheKind,
    /// The cost model.
    pub costs: Costs,
    /// The dispatcher's settings except the policy and its table.
    pub settings: Settings,
    /// The period of load reports, in simulated time.
    pub report_every: Duration,
    /// Share of the requests, from the first, that warms the memories and is not measured, 0 to 0.9.
    pub warmup: f64,
}

/// The result of a policy on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyShare {
    /// The policy.
    pub policy: String,
    /// Requests per second, to the last reply.
    pub throughput: f64,
    /// Throughput over the bound, 0 to 1.
    pub share: f64,
    /// Share of the requests that cause no read, 0 to 1.
    pub hit_ratio: f64,
    /// Requests of the busiest node over the mean.
    pub imbalance: f64,
}

/// The bound of a cluster, and the policies on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundCluster {
    /// The number of nodes.
    pub nodes: u16,
    /// The bound.
    pub bound: Bound,
    /// The policies, in the given order.
    pub policies: Vec<PolicyShare>,
}

/// The bounds of all clusters, with their conditions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundReport {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// A description of the workload.
    pub workload: String,
    /// Requests of each run.
    pub requests: u64,
    /// Requests that are not measured.
    pub warmup_requests: u64,
    /// Targets.
    pub targets: u64,
    /// Bytes of all targets.
    pub working_set_bytes: u64,
    /// Memory of each node.
    pub memory_bytes: u64,
    /// The nodes' cache replacement policy.
    pub cache: String,
    /// The cost model.
    pub costs: String,
    /// The clusters, in the given order.
    pub clusters: Vec<BoundCluster>,
}

/// Computes the bound of every cluster, and runs every policy on it at saturation. Calls `done` after each run.
///
/// # Errors
/// Returns an error for options out of range, and for a workload without requests.
pub fn compare(
    workload: &Workload,
    name: &str,
    options: &Options,
    done: &(dyn Fn() + Sync),
) -> Result<BoundReport, SimError> {
    let out = |key, range| Err(SimError::OutOfRange { key, range });
    if options.nodes.is_empty() || !options.nodes.iter().all(|nodes| (1..=1_024).contains(nodes)) {
        return out("nodes", "1 to 1024");
    }
    if !(0.0..=0.9).contains(&options.warmup) {
        return out("warmup", "0 to 0.9");
    }
    if workload.requests.is_empty() {
        return Err(SimError::Workload("there are no requests"));
    }
    let warmup = (options.warmup * workload.requests.len() as f64) as usize;
    let bounds = Bounds::new(workload, warmup, &options.costs)?;
    let policies = options.policies.len();
    let runs = sweep(options.nodes.len() * policies, |job| {
        let (nodes, policy) = (options.nodes[job / policies], options.policies[job % policies]);
        let share = run_policy(workload, &scenario(options, nodes, warmup), policy, &bounds);
        done();
        share
    });
    let mut runs = runs.into_iter();
    let cluster = |nodes: &u16| {
        let bound = bounds.of(&scenario(options, *nodes, warmup))?;
        let policies = runs.by_ref().take(policies).collect::<Result<_, _>>()?;
        Ok(BoundCluster { nodes: *nodes, bound, policies })
    };
    Ok(BoundReport {
        schema: SCHEMA,
        workload: name.to_owned(),
        requests: workload.requests.len() as u64,
        warmup_requests: warmup as u64,
        targets: workload.items.len() as u64,
        working_set_bytes: workload.bytes(),
        memory_bytes: options.memory.get(),
        cache: options.cache.to_string(),
        costs: options.costs.name().to_owned(),
        clusters: options.nodes.iter().map(cluster).collect::<Result<_, SimError>>()?,
    })
}

fn scenario(options: &Options, nodes: u16, warmup: usize) -> Scenario {
    Scenario {
        nodes: vec![SimNode::with_cache(options.memory); usize::from(nodes)],
        cache: CacheChoice::Kind(options.cache),
        costs: options.costs,
        warmup,
        report_every: Some(options.report_every),
        ..Scenario::lard98(usize::from(nodes), options.settings.clone())
    }
}

/// Runs a policy. `ward` and `part` have the routing table of the first third of the requests.
pub(super) fn run_policy(
    workload: &Workload,
    scenario: &Scenario,
    policy: PolicyKind,
    bounds: &Bounds,
) -> Result<PolicyShare, SimError> {
    let table = if needs_table(policy) {
        let mean = workload.bytes() / workload.items.len().max(1) as u64;
        let costs = measure_ward_costs(&scenario.costs, mean)?;
        let first = workload.requests.len() / 3;
        Some(compute_initial_table(workload, first, &scenario.nodes, &costs)?.into())
    } else {
        None
    };
    let settings = Settings { policy, table, ..scenario.settings.clone() };
    let outcome = simulate(workload, &Scenario { settings, ..scenario.clone() })?;
    let unread = outcome.hits + outcome.shared + outcome.peer_hits;
    Ok(PolicyShare {
        policy: policy.name().to_owned(),
        throughput: outcome.throughput,
        share: outcome.throughput / bounds.of(scenario)?.throughput,
        hit_ratio: unread as f64 / outcome.requests.max(1) as f64,
        imbalance: outcome.imbalance,
    })
}
