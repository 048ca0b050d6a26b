//! `larder sim churn`: measures the cost of a node that joins, leaves or returns, under each policy.
//!
//! Every policy serves the same requests on the same cluster several times: once undisturbed, and once for
//! each [`ChurnEvent`], which happens after half of the requests. All runs are equal up to the event, so all
//! later differences are its effects. The undisturbed run shows how many targets a policy moves without an
//! event.
//!
//! * *Targets moved*: the share of the targets requested before and after the event that have moved. A target
//!   has moved if its first request after the event went to another node than its last request before. The
//!   minimum for a cluster of n nodes is 1/n if a node leaves, 0 or 1/(n+1) if a node joins, and 0 after a
//!   node has returned.
//! * *Hits lost*: the additional misses after the event, compared with the undisturbed run.
//! * *Lowest*: the lowest hit ratio of a window (2 % of the requests) after the event.
//! * *Settled*: the requests until the loss against the undisturbed run stays, for three windows, within one
//!   point of its value at the end of the run.
//!
//! All runs have the same number of clients (S of the cluster without a node), each with one outstanding
//! request. Requests in flight at a node that goes end there. Time: five simulations per policy.

mod measure;
mod text;

use core::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_core::{Bytes, PolicyKind};
use serde::{Deserialize, Serialize};

use crate::cost::Costs;
use crate::scenario::{NodeChange, ScheduledChange, TableRefresh};
use crate::sweep::sweep;
use crate::tables::{compute_initial_table, needs_table};
use crate::ward_costs::measure_ward_costs;
use crate::{
    Arrivals, CacheChoice, RunHistory, Scenario, SimError, SimNode, Workload, simulate_with_history,
};

pub use text::{markdown, table};

/// The change of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChurnEvent {
    /// A node joins with an empty memory.
    Join,
    /// A node leaves for good.
    Leave,
    /// A node is marked down and returns after 2 % of the requests with its memory unchanged.
    Flap,
    /// A node is marked down and returns after 2 % of the requests with an empty memory.
    Restart,
}

impl ChurnEvent {
    /// All events.
    pub const ALL: [Self; 4] = [Self::Join, Self::Leave, Self::Flap, Self::Restart];

    /// Returns the event's name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Flap => "flap",
            Self::Restart => "restart",
        }
    }
}

/// The options of a comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policies, without duplicates.
    pub policies: Vec<PolicyKind>,
    /// The number of nodes before the event, 2 to 1,000.
    pub nodes: u16,
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
    /// The period of new tables for `ward` and `part`, in simulated time.
    pub refresh_every: Duration,
}

/// The result of one policy and event. Ratios and shares are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChurnRow {
    /// The policy.
    pub policy: String,
    /// The event.
    pub event: ChurnEvent,
    /// Share of the targets that moved, of those requested before and after.
    pub moved: f64,
    /// Share of the targets that moved in the undisturbed run.
    pub moved_anyway: f64,
    /// Share of the targets that moved while the node was gone, of those requested before and meanwhile.
    /// `None` for a join or leave.
    pub moved_meanwhile: Option<f64>,
    /// Hit ratio of the last tenth of the requests before the event.
    pub hit_before: f64,
    /// The lowest hit ratio of a window after the event.
    pub hit_lowest: f64,
    /// Hit ratio of the last tenth of the run.
    pub hit_after: f64,
    /// Hit ratio of the last tenth of the undisturbed run.
    pub hit_anyway: f64,
    /// Hits lost against the undisturbed run until the end; negative if the event gained hits.
    pub hits_lost: i64,
    /// Requests until the hit ratio settled; `None` if it did not settle by the end of the run.
    pub settled_after: Option<u64>,
}

/// The results of all policies and events, with their conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Churn {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// A description of the workload.
    pub workload: String,
    /// Requests of each run.
    pub requests: u64,
    /// Targets.
    pub targets: u64,
    /// Bytes of all targets.
    pub working_set_bytes: u64,
    /// Nodes before the event.
    pub nodes: u16,
    /// Memory of each node.
    pub memory_bytes: u64,
    /// The nodes' cache replacement policy.
    pub cache: String,
    /// The cost model.
    pub costs: String,
    /// The number of outstanding requests.
    pub clients: u32,
    /// The period of load reports, in seconds of simulated time.
    pub report_every_s: f64,
    /// The period of new routing tables, in seconds of simulated time.
    pub refresh_every_s: f64,
    /// The rows in the order of the policies, then in the order of [`ChurnEvent::ALL`].
    pub rows: Vec<ChurnRow>,
}

/// The name and version of the JSON schema.
pub const SCHEMA: &str = "larder/churn/1";

/// The smallest number of requests: windows of 2 % need some hundreds to be meaningful.
pub const REQUESTS_MIN: usize = 10_000;

/// Runs every policy through every event, and calls `done` after each run.
///
/// # Errors
/// Returns an error for options out of range, and for a workload that is too short.
pub fn churn(
    workload: &Workload,
    name: &str,
    options: &Options,
    done: &(dyn Fn() + Sync),
) -> Result<Churn, SimError> {
    let out = |key, range| Err(SimError::OutOfRange { key, range });
    if !(2..=1_000).contains(&options.nodes) {
        return out("nodes", "2 to 1000");
    }
    if options.policies.is_empty() {
        return out("policies", "at least one");
    }
    if workload.requests.len() < REQUESTS_MIN {
        return Err(SimError::Workload("churn needs at least 10,000 requests"));
    }
    let plan = ChurnRuns::new(workload, options)?;
    let kinds = 1 + ChurnEvent::ALL.len();
    let jobs = options.policies.len() * kinds;
    let runs: Vec<RunHistory> = sweep(jobs, |job| {
        let event = (job % kinds).checked_sub(1).map(|event| ChurnEvent::ALL[event]);
        let run = plan.run(options.policies[job / kinds], event);
        done();
        run
    })
    .into_iter()
    .collect::<Result<_, _>>()?;
    let rows = options.policies.iter().zip(runs.chunks(kinds)).flat_map(|(policy, runs)| {
        let (calm, disturbed) = runs.split_at(1);
        let items = workload.items.len();
        let rows: Vec<ChurnRow> = ChurnEvent::ALL
            .into_iter()
            .zip(disturbed)
            .map(|(event, run)| measure::compute_row(policy.name(), event, &calm[0], run, items))
            .collect();
        rows
    });
    Ok(Churn {
        schema: SCHEMA.to_owned(),
        workload: name.to_owned(),
        requests: workload.requests.len() as u64,
        targets: workload.items.len() as u64,
        working_set_bytes: workload.bytes(),
        nodes: options.nodes,
        memory_bytes: options.memory.get(),
        cache: options.cache.to_string(),
        costs: options.costs.name().to_owned(),
        clients: plan.clients,
        report_every_s: options.report_every.as_secs_f64(),
        refresh_every_s: options.refresh_every.as_secs_f64(),
        rows: rows.collect(),
    })
}

/// The parameters that the runs of all policies share.
struct ChurnRuns<'w> {
    workload: &'w Workload,
    options: &'w Options,
    clients: u32,
    refresh: TableRefresh,
}

impl<'w> ChurnRuns<'w> {
    fn new(workload: &'w Workload, options: &'w Options) -> Result<Self, SimError> {
        let Settings { t_low, t_high, .. } = options.settings;
        let clients = (u32::from(options.nodes) - 2).saturating_mul(t_high).saturating_add(t_low).max(2) - 1;
        let mean = workload.bytes() / workload.items.len().max(1) as u64;
        let refresh = TableRefresh::new(options.refresh_every, measure_ward_costs(&options.costs, mean)?);
        Ok(Self { workload, options, clients, refresh })
    }

    fn run(&self, policy: PolicyKind, event: Option<ChurnEvent>) -> Result<RunHistory, SimError> {
        let Options { nodes, memory, cache, costs, .. } = *self.options;
        let half = self.workload.requests.len() / 2;
        let after = half as u64;
        let back = after + self.workload.requests.len() as u64 / 50;
        let node = nodes / 2;
        let planned = |after, node, change| ScheduledChange { after, node, change };
        let changes = match event {
            // The time is recorded nevertheless, because the undisturbed run is divided there, too.
            None => vec![planned(after, node, NodeChange::Up)],
            Some(ChurnEvent::Join) => vec![planned(after, nodes, NodeChange::Join)],
            Some(ChurnEvent::Leave) => vec![planned(after, node, NodeChange::Leave)],
            Some(ChurnEvent::Flap) => {
                vec![planned(after, node, NodeChange::Down), planned(back, node, NodeChange::Up)]
            }
            Some(ChurnEvent::Restart) => {
                vec![planned(after, node, NodeChange::Down), planned(back, node, NodeChange::Restart)]
            }
        };
        let count = usize::from(nodes) + usize::from(event == Some(ChurnEvent::Join));
        let cluster = vec![SimNode::with_cache(memory); count];
        let table = if needs_table(policy) {
            let first = compute_initial_table(
                self.workload,
                half / 2,
                &cluster[..nodes as usize],
                &self.refresh.costs,
            )?;
            Some(first.into())
        } else {
            None
        };
        let settings = Settings { policy, table, ..self.options.settings.clone() };
        let scenario = Scenario {
            nodes: cluster,
            cache: CacheChoice::Kind(cache),
            arrivals: Arrivals::Closed { clients: self.clients },
            costs,
            report_every: Some(self.options.report_every),
            refresh: Some(self.refresh.clone()),
            changes,
            ..Scenario::lard98(count, settings)
        };
        simulate_with_history(self.workload, &scenario).map(|(_, history)| history)
    }
}

#[cfg(test)]
mod tests;
