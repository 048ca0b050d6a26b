//! `larder sim churn`: what a node that joins, leaves or comes and goes costs under each policy.
//!
//! Every policy runs the same requests over the same cluster several times: once undisturbed, and once for each
//! [`Event`], which happens after half the requests. All runs are the same up to there, so what differs afterwards is
//! the event's doing; how much a policy moves targets anyway shows in the undisturbed run.
//!
//! * *Targets moved*: of the targets asked for before and after, the share whose first request afterwards was served by
//!   another node than their last request before. A cluster of n nodes that moves no more than it must moves 1/n of
//!   them when a node leaves, none or 1/(n+1) when one joins, and none when a node has come back.
//! * *Hits lost*: requests after the event that missed beyond those of the undisturbed run.
//! * *Lowest*: the lowest hit ratio of a window (2 % of the requests) after the event.
//! * *Settled*: requests until the distance to the undisturbed run stays, for three windows, within one point of what it
//!   is at the end of the run.
//!
//! Clients are as many in all runs (S of the cluster without a node), each with one request outstanding. Requests in
//! flight at a node that goes end there. Time: five simulations a policy.

mod measure;
mod text;

use core::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_core::{Bytes, PolicyKind};
use serde::{Deserialize, Serialize};

use crate::cost::Costs;
use crate::prices::prices;
use crate::scenario::{Happening, Planned, Refresh};
use crate::sweep::sweep;
use crate::tables::{needs_table, table_of_first};
use crate::{Arrivals, CacheChoice, Scenario, SimError, SimNode, Watched, Workload, simulate_watched};

pub use text::{markdown, table};

/// What happens to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A node joins, its memory empty.
    Join,
    /// A node leaves for good.
    Leave,
    /// A node is taken for dead and comes back after 2 % of the requests, its memory as it was.
    Flap,
    /// The same, its memory empty.
    Restart,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 4] = [Self::Join, Self::Leave, Self::Flap, Self::Restart];

    /// The word used in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Flap => "flap",
            Self::Restart => "restart",
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policies, none twice.
    pub policies: Vec<PolicyKind>,
    /// Nodes before anything happens, 2 to 1,000.
    pub nodes: u16,
    /// Memory of each.
    pub memory: Bytes,
    /// What nodes evict first.
    pub cache: CacheKind,
    /// What requests take.
    pub costs: Costs,
    /// The dispatcher's settings but for the policy and its table.
    pub settings: Settings,
    /// How often nodes report their load, in simulated time.
    pub report_every: Duration,
    /// How often `ward` and `part` get a new table, in simulated time.
    pub refresh_every: Duration,
}

/// One policy and one event. Ratios and shares are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// What happened.
    pub event: Event,
    /// Targets moved, of those asked for before and after.
    pub moved: f64,
    /// The same in the undisturbed run.
    pub moved_anyway: f64,
    /// Targets served elsewhere while the node was gone, of those asked for before and meanwhile; none for a join or
    /// leave.
    pub moved_meanwhile: Option<f64>,
    /// Hit ratio of the last tenth of the requests before the event.
    pub hit_before: f64,
    /// The lowest hit ratio of a window after it.
    pub hit_lowest: f64,
    /// Hit ratio of the last tenth of the run.
    pub hit_after: f64,
    /// The same in the undisturbed run.
    pub hit_anyway: f64,
    /// Hits lost against the undisturbed run, up to the end; below 0 if the event brought hits.
    pub hits_lost: i64,
    /// Requests until the hit ratio had settled; none if it had not by the end of the run.
    pub settled_after: Option<u64>,
}

/// All rows, and what they are about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Churn {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The workload in words.
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
    /// What nodes evict first.
    pub cache: String,
    /// The cost model.
    pub costs: String,
    /// Requests outstanding.
    pub clients: u32,
    /// How often nodes report, in seconds of simulated time.
    pub report_every_s: f64,
    /// How often routing tables are made anew, likewise.
    pub refresh_every_s: f64,
    /// Policies in the order asked for, events in the order of [`Event::ALL`].
    pub rows: Vec<Row>,
}

/// Name and version of the JSON.
pub const SCHEMA: &str = "larder/churn/1";

/// Fewest requests: windows of 2 % need some hundreds to mean anything.
pub const REQUESTS_MIN: usize = 10_000;

/// Runs every policy through every event; `done` hears of each run that has ended.
///
/// # Errors
/// Options out of range, or too short a workload.
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
    let plan = Runs::new(workload, options)?;
    let kinds = 1 + Event::ALL.len();
    let jobs = options.policies.len() * kinds;
    let runs: Vec<Watched> = sweep(jobs, |job| {
        let event = (job % kinds).checked_sub(1).map(|event| Event::ALL[event]);
        let run = plan.run(options.policies[job / kinds], event);
        done();
        run
    })
    .into_iter()
    .collect::<Result<_, _>>()?;
    let rows = options.policies.iter().zip(runs.chunks(kinds)).flat_map(|(policy, runs)| {
        let (calm, disturbed) = runs.split_at(1);
        let items = workload.items.len();
        let rows: Vec<Row> = Event::ALL
            .into_iter()
            .zip(disturbed)
            .map(|(event, run)| measure::row(policy.name(), event, &calm[0], run, items))
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

/// What the runs of all policies share.
struct Runs<'w> {
    workload: &'w Workload,
    options: &'w Options,
    clients: u32,
    refresh: Refresh,
}

impl<'w> Runs<'w> {
    fn new(workload: &'w Workload, options: &'w Options) -> Result<Self, SimError> {
        let Settings { t_low, t_high, .. } = options.settings;
        let clients = (u32::from(options.nodes) - 2).saturating_mul(t_high).saturating_add(t_low).max(2) - 1;
        let mean = workload.bytes() / workload.items.len().max(1) as u64;
        let refresh = Refresh::new(options.refresh_every, prices(&options.costs, mean)?);
        Ok(Self { workload, options, clients, refresh })
    }

    fn run(&self, policy: PolicyKind, event: Option<Event>) -> Result<Watched, SimError> {
        let Options { nodes, memory, cache, costs, .. } = *self.options;
        let half = self.workload.requests.len() / 2;
        let after = half as u64;
        let back = after + self.workload.requests.len() as u64 / 50;
        let node = nodes / 2;
        let planned = |after, node, what| Planned { after, node, what };
        let changes = match event {
            // The moment is noted all the same: the undisturbed run is cut there, too.
            None => vec![planned(after, node, Happening::Up)],
            Some(Event::Join) => vec![planned(after, nodes, Happening::Join)],
            Some(Event::Leave) => vec![planned(after, node, Happening::Leave)],
            Some(Event::Flap) => {
                vec![planned(after, node, Happening::Down), planned(back, node, Happening::Up)]
            }
            Some(Event::Restart) => {
                vec![planned(after, node, Happening::Down), planned(back, node, Happening::Restart)]
            }
        };
        let count = usize::from(nodes) + usize::from(event == Some(Event::Join));
        let cluster = vec![SimNode::with_cache(memory); count];
        let table = if needs_table(policy) {
            let first =
                table_of_first(self.workload, half / 2, &cluster[..nodes as usize], &self.refresh.prices)?;
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
        simulate_watched(self.workload, &scenario).map(|(_, watched)| watched)
    }
}

#[cfg(test)]
mod tests;
