//! Simulation of a cluster of inference engines: which policy of chains gives which reuse and which time to the first
//! token.
//!
//! The dispatchers and the policies are those of [`larder_core::chain`], in one switch or several. Requests arrive at the times of a trace,
//! whether or not the cluster keeps up with them (an open system). The dispatcher takes no time. It learns of the first and of the last token of a
//! reply at once, as a relay would. Engines are modelled; [`EngineModel`] has the costs, with their sources and
//! errors.

mod engine;
mod generated;
mod model;
mod outcome;
mod plan;
mod switches;
mod workload;

pub use engine::{Engine, EngineEvent, EngineRequest};
pub use model::{EngineModel, UnknownEngine};
pub use outcome::{PromptOutcome, TokenTimes, table};
pub use plan::{
    Capacity, FirstTokenGoal, FirstTokenGoalError, PLAN_NODES_MAX, Percentile, PromptPlan, PromptPlanOptions,
    PromptPlanRow, plan_prompts,
};
pub use workload::{PromptRequest, PromptWorkload, Reuse};

use larder_core::Time;
use larder_core::cache::Block;
use larder_core::chain::{ChainPolicyKind, ChainSettings, Work};
use outcome::Counts;
use switches::SwitchRow;

use crate::SimError;
use crate::calendar::{Calendar, EventKey};

/// Largest number of nodes.
pub const NODES_MAX: u16 = 1_024;
/// Largest number of switches.
pub const SWITCHES_MAX: u16 = 64;
/// Default objective for the time to the first token in s: that of DualMap's example.
pub const DEFAULT_OBJECTIVE_S: f64 = 5.0;

/// A cluster of equal engines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptCluster {
    /// Number of nodes, 1 to [`NODES_MAX`].
    pub nodes: u16,
    /// The engine of each node.
    pub engine: EngineModel,
    /// The policy.
    pub policy: ChainPolicyKind,
    /// The objective for the time to the first token in s, above 0. Policies with an objective are told it as tokens that
    /// the engine prefills in this time.
    pub objective_s: f64,
    /// Number of switches before the nodes, 1 to [`SWITCHES_MAX`]. Each places a share of the requests.
    pub switches: u16,
    /// Whether the switches do not know each other.
    pub isolated: bool,
}

/// Simulates a cluster.
///
/// # Errors
/// [`SimError`] if a number is out of range.
pub fn simulate_prompts(
    workload: &PromptWorkload,
    cluster: &PromptCluster,
) -> Result<PromptOutcome, SimError> {
    if !(1..=NODES_MAX).contains(&cluster.nodes) {
        return Err(SimError::OutOfRange { key: "nodes", range: "1 to 1024" });
    }
    if !(1..=SWITCHES_MAX).contains(&cluster.switches) {
        return Err(SimError::OutOfRange { key: "switches", range: "1 to 64" });
    }
    if cluster.engine.kv_tokens == 0 {
        return Err(SimError::OutOfRange { key: "memory", range: "at least 1 token" });
    }
    Simulation::new(workload, cluster)?.run()
}

/// The state of a run.
struct Simulation<'w> {
    workload: &'w PromptWorkload,
    cluster: PromptCluster,
    switches: SwitchRow,
    engines: Vec<Engine<&'w [Block]>>,
    /// Ends of the current iterations.
    calendar: Calendar,
    sequence: u64,
    /// Work of each request that is in the cluster.
    works: Vec<Option<Work>>,
    events: Vec<EngineEvent>,
    counts: Counts,
}

impl<'w> Simulation<'w> {
    fn new(workload: &'w PromptWorkload, cluster: &PromptCluster) -> Result<Self, SimError> {
        let nodes = usize::from(cluster.nodes);
        let objective_tokens = cluster.engine.prefill_tokens(cluster.objective_s);
        let settings = ChainSettings { policy: cluster.policy, objective_tokens, ..ChainSettings::default() };
        Ok(Self {
            workload,
            cluster: *cluster,
            switches: SwitchRow::new(&settings, cluster)?,
            engines: (0..nodes).map(|_| Engine::new(cluster.engine)).collect(),
            calendar: Calendar::new(nodes),
            sequence: 0,
            works: workload.requests.iter().map(|_| None).collect(),
            events: Vec::new(),
            counts: Counts { first_token_ns: vec![None; workload.len()], ..Counts::default() },
        })
    }

    fn run(mut self) -> Result<PromptOutcome, SimError> {
        let mut next = 0;
        loop {
            let (node, key) = self.calendar.next();
            match self.workload.requests.get(next) {
                Some(request) if request.time <= key.time() => {
                    self.arrive(next);
                    next += 1;
                }
                None if key == EventKey::NEVER => break,
                _ => self.end_iteration(node, key.time()),
            }
        }
        let computed: Vec<u64> = self.engines.iter().map(|engine| engine.computed).collect();
        self.counts.preemptions = self.engines.iter().map(|engine| engine.preemptions).sum();
        Ok(self.counts.outcome(self.cluster.policy, self.workload, &computed))
    }

    fn arrive(&mut self, number: usize) {
        let request = &self.workload.requests[number];
        let blocks = self.workload.chain(request);
        self.switches.advance(request.time);
        let Some(decision) = self.switches.arrive(number, blocks) else {
            self.counts.refused += 1;
            return;
        };
        self.counts.credited_tokens += decision.credited;
        let node = decision.node.index();
        self.works[number] = Some(decision.work);
        self.engines[node].add(EngineRequest {
            number,
            blocks,
            prompt: request.prompt,
            output: request.output,
        });
        if self.calendar.key(node) == EventKey::NEVER {
            self.begin_iteration(node, request.time);
        }
    }

    fn begin_iteration(&mut self, node: usize, now: Time) {
        let key = match self.engines[node].begin(&mut self.events) {
            Some(ns) => {
                self.sequence += 1;
                EventKey::new(now, self.sequence).later(ns)
            }
            None => EventKey::NEVER,
        };
        self.calendar.set(node, key);
        self.take_events(now);
    }

    fn end_iteration(&mut self, node: usize, now: Time) {
        self.switches.advance(now);
        self.engines[node].end(&mut self.events);
        self.take_events(now);
        self.begin_iteration(node, now);
    }

    fn take_events(&mut self, now: Time) {
        for event in self.events.drain(..) {
            match event {
                EngineEvent::Started { cached, .. } => self.counts.cached_tokens += cached,
                EngineEvent::FirstToken { number } => {
                    let wait = now.since(self.workload.requests[number].time);
                    let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
                    self.counts.first_token_ns[number] = Some(ns);
                    if let Some(work) = &mut self.works[number] {
                        self.switches.first_token(number, work);
                    }
                }
                EngineEvent::Finished { number } | EngineEvent::Refused { number } => {
                    let request = &self.workload.requests[number];
                    if matches!(event, EngineEvent::Refused { .. }) {
                        self.counts.refused += 1;
                    } else {
                        self.counts.finished += 1;
                        self.counts.output_tokens += u64::from(request.output);
                        self.counts.end = self.counts.end.max(now);
                    }
                    if let Some(work) = self.works[number].take() {
                        self.switches.finish(number, self.workload.chain(request), work);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
