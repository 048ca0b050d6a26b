//! A plan for prompts: the nodes that each policy needs for a goal, its capacity, and whether routing by prefix pays.
//!
//! Both numbers are found by bisection. They assume that a larger cluster, or a slower clock, does not make the first tokens later. A policy
//! that scatters a branch over more nodes may break this by a few percent; the capacity has an error of 2.2 % from the bisection alone.
//!
//! A trace ends, so an overloaded cluster may meet a goal before its queues have grown. Therefore the goal must also hold for the last
//! quarter of the requests alone, and no trace is made shorter than 10 times the goal's time. A capacity that is beyond this is stated
//! as a lower bound.

use core::fmt;
use core::str::FromStr;

use larder_core::chain::ChainPolicyKind;
use serde::Serialize;

use super::outcome::percentile;
use super::workload::PromptRequest;
use super::{EngineModel, PromptCluster, PromptOutcome, PromptWorkload, Reuse, simulate_prompts};
use crate::SimError;
use crate::sweep::sweep;

/// Largest number of nodes that a plan considers.
pub const PLAN_NODES_MAX: u16 = 256;
/// Largest factor by which a plan changes the speed of a trace to find a capacity.
const SPEED_MAX: f64 = 64.0;
/// Least duration of a trace in times of the goal.
const GOALS_MIN: f64 = 10.0;
/// Halvings of the interval between a speed that meets the goal and its double, which does not.
const CAPACITY_STEPS: u32 = 5;
/// The default goal in times of the 90th percentile on idle engines.
const DEFAULT_GOAL_TIMES: f64 = 4.0;

/// A percentile of the times to the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Percentile {
    /// The median.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
}

impl Percentile {
    const fn percent(self) -> usize {
        match self {
            Self::P50 => 50,
            Self::P90 => 90,
            Self::P99 => 99,
        }
    }
}

/// The goal of a cluster: a percentile of the times to the first token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FirstTokenGoal {
    /// The percentile.
    pub percentile: Percentile,
    /// Its largest time in s, above 0.
    pub seconds: f64,
}

/// A text that is not a goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a goal of first tokens: write p50=500ms, p90=5s or p99=30s")]
pub struct FirstTokenGoalError(String);

impl FromStr for FirstTokenGoal {
    type Err = FirstTokenGoalError;

    fn from_str(text: &str) -> Result<Self, FirstTokenGoalError> {
        let parse = || {
            let (name, time) = text.split_once('=')?;
            let percentile = match name.trim() {
                "p50" => Percentile::P50,
                "p90" => Percentile::P90,
                "p99" => Percentile::P99,
                _ => return None,
            };
            Some(Self { percentile, seconds: crate::plan::seconds(time.trim())? })
        };
        parse().ok_or_else(|| FirstTokenGoalError(text.chars().take(60).collect()))
    }
}

impl fmt::Display for FirstTokenGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.percentile.percent();
        let (time, unit) = if self.seconds < 0.01 { (self.seconds * 1e3, "ms") } else { (self.seconds, "s") };
        write!(f, "{percent} % of the first tokens within {time:.3} {unit}")
    }
}

impl FirstTokenGoal {
    /// Returns whether a run meets the goal, with all requests and with the last quarter of them. Refused requests count as late.
    fn is_met_by(self, outcome: &PromptOutcome) -> bool {
        let waits = &outcome.waits_ns;
        let is_met = |waits: &[u64]| {
            let limit_ns = (self.seconds * 1e9) as u64;
            let in_time = waits.iter().filter(|ns| **ns <= limit_ns && **ns < u64::MAX).count();
            !waits.is_empty() && in_time >= (waits.len() * self.percentile.percent()).div_ceil(100)
        };
        is_met(waits) && is_met(&waits[waits.len() * 3 / 4..])
    }
}

/// The options of a plan.
#[derive(Clone, Debug)]
pub struct PromptPlanOptions {
    /// The policies, without repetitions.
    pub policies: Vec<ChainPolicyKind>,
    /// The engine of each node.
    pub engine: EngineModel,
    /// The goal. Default: the 90th percentile is at most 4 times that of idle engines without stored blocks.
    pub goal: Option<FirstTokenGoal>,
    /// The number of nodes at which policies are compared. Default: the least with which a policy meets the goal.
    pub nodes: Option<u16>,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptPlan {
    /// Requests of the workload.
    pub requests: usize,
    /// Mean rate of requests.
    pub requests_per_s: f64,
    /// Tokens of a prompt on average.
    pub prompt_tokens: f64,
    /// Tokens of a reply on average.
    pub reply_tokens: f64,
    /// The engine of each node.
    pub engine: EngineModel,
    /// The goal.
    pub goal: FirstTokenGoal,
    /// The goal's percentile on idle engines without stored blocks, in s.
    pub idle_s: f64,
    /// Reuse of a cache without a limit: the ceiling of any cluster.
    pub reuse_unlimited: Reuse,
    /// Reuse of one cache with the memory of 1, 2, 4 and so on nodes, up to the ceiling.
    pub reuse_by_nodes: Vec<(u16, Reuse)>,
    /// Whether the trace is shorter than 10 times the goal's time, so that queues of an overloaded cluster may not have grown.
    pub is_short: bool,
    /// Requests that need more memory than a node has, and are refused by every policy.
    pub too_large: usize,
    /// The number of nodes at which policies are compared; `None` if no policy meets the goal.
    pub nodes: Option<u16>,
    /// The policies, in the order of the options.
    pub policies: Vec<PromptPlanRow>,
}

/// The result of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptPlanRow {
    /// The policy's name.
    pub policy: &'static str,
    /// Whether the policy looks at prompts.
    pub routes_by_prefix: bool,
    /// The least number of nodes that meets the goal at the rate of the workload; `None` if [`PLAN_NODES_MAX`] do not.
    pub nodes_needed: Option<u16>,
    /// The outcome with the nodes of the plan.
    pub outcome: Option<PromptOutcome>,
    /// The largest rate of requests that meets the goal with the nodes of the plan; `None` if 1/64 of the workload's does not.
    pub capacity: Option<Capacity>,
}

/// A rate of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// Requests per second.
    pub per_s: f64,
    /// Whether higher rates were not tried, because the trace would be too short.
    pub is_lower_bound: bool,
}

/// Makes a plan. `progress` gets the number of policies whose search has ended, twice for each policy, and the number of all.
///
/// # Errors
/// [`SimError`] if an option is out of range, or the workload has fewer than two requests.
pub fn plan_prompts(
    workload: &PromptWorkload,
    options: &PromptPlanOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<PromptPlan, SimError> {
    let seconds = workload.seconds();
    if seconds <= 0.0 {
        return Err(SimError::Workload(
            "the trace has no two requests at different times, so it has no rate",
        ));
    }
    if options.nodes.is_some_and(|nodes| !(1..=PLAN_NODES_MAX).contains(&nodes)) {
        return Err(SimError::OutOfRange { key: "nodes", range: "1 to 256" });
    }
    let engine = options.engine;
    let mut idle: Vec<u64> = workload.requests.iter().map(|one| engine.prefill_ns(one.prompt)).collect();
    idle.sort_unstable();
    let idle = |which: Percentile| percentile(&idle, which.percent());
    let goal = options.goal.unwrap_or(FirstTokenGoal {
        percentile: Percentile::P90,
        seconds: idle(Percentile::P90) * DEFAULT_GOAL_TIMES,
    });
    let search = Search { workload, engine, goal };
    let steps = options.policies.len() * 2;
    let done = core::sync::atomic::AtomicUsize::new(0);
    let step = || progress(done.fetch_add(1, core::sync::atomic::Ordering::Relaxed) + 1, steps);
    let needed = sweep(options.policies.len(), |at| {
        let needed = search.nodes_needed(options.policies[at]);
        step();
        needed
    });
    let needed = needed.into_iter().collect::<Result<Vec<_>, _>>()?;
    let nodes = options.nodes.or_else(|| needed.iter().flatten().min().copied());
    let rows = sweep(options.policies.len(), |at| {
        let row = search.row(options.policies[at], needed[at], nodes);
        step();
        row
    });
    let requests = workload.len() as f64;
    let is_too_large = |one: &&PromptRequest| one.prompt + u64::from(one.output) > engine.kv_tokens;
    let reuse_unlimited = workload.reuse(u64::MAX);
    let replies: f64 = workload.requests.iter().map(|one| f64::from(one.output)).sum();
    Ok(PromptPlan {
        requests: workload.len(),
        requests_per_s: requests / seconds,
        prompt_tokens: workload.prompt_tokens() as f64 / requests,
        reply_tokens: replies / requests,
        engine,
        goal,
        idle_s: idle(goal.percentile),
        reuse_unlimited,
        reuse_by_nodes: reuse_by_nodes(workload, engine.kv_tokens, reuse_unlimited),
        is_short: seconds < GOALS_MIN * goal.seconds,
        too_large: workload.requests.iter().filter(is_too_large).count(),
        nodes,
        policies: rows.into_iter().collect::<Result<_, _>>()?,
    })
}

/// Returns the reuse of one cache with the memory of 1, 2, 4 and so on nodes, until it is within a point of the ceiling.
fn reuse_by_nodes(workload: &PromptWorkload, node_tokens: u64, ceiling: Reuse) -> Vec<(u16, Reuse)> {
    let mut found = Vec::new();
    let mut nodes = 1;
    while nodes <= PLAN_NODES_MAX {
        let reuse = workload.reuse(node_tokens.saturating_mul(nodes.into()));
        found.push((nodes, reuse));
        if reuse.tokens >= ceiling.tokens - 0.01 {
            break;
        }
        nodes *= 2;
    }
    found
}

impl PromptPlan {
    /// Returns the policy that needs the fewest nodes, and of these the one with the largest capacity; `None` if no policy meets the goal.
    pub fn best(&self) -> Option<&PromptPlanRow> {
        self.best_of(|_| true)
    }

    /// Returns the best policy that does not look at prompts.
    pub fn best_without_prefixes(&self) -> Option<&PromptPlanRow> {
        self.best_of(|row| !row.routes_by_prefix)
    }

    fn best_of(&self, is_candidate: impl Fn(&PromptPlanRow) -> bool) -> Option<&PromptPlanRow> {
        let capacity = |row: &PromptPlanRow| row.capacity.map_or(0.0, |capacity| capacity.per_s);
        let candidates = self.policies.iter().filter(|row| row.nodes_needed.is_some() && is_candidate(row));
        // The first of equal policies.
        candidates
            .min_by(|a, b| a.nodes_needed.cmp(&b.nodes_needed).then(capacity(b).total_cmp(&capacity(a))))
    }
}

/// The search for the nodes and the capacity of policies.
struct Search<'w> {
    workload: &'w PromptWorkload,
    engine: EngineModel,
    goal: FirstTokenGoal,
}

impl Search<'_> {
    fn run(
        &self,
        workload: &PromptWorkload,
        policy: ChainPolicyKind,
        nodes: u16,
    ) -> Result<PromptOutcome, SimError> {
        simulate_prompts(
            workload,
            &PromptCluster {
                nodes,
                engine: self.engine,
                policy,
                objective_s: self.goal.seconds,
                switches: 1,
                isolated: false,
            },
        )
    }

    fn meets(&self, policy: ChainPolicyKind, nodes: u16, speed: f64) -> Result<bool, SimError> {
        Ok(self.goal.is_met_by(&self.run(&self.workload.at_speed(speed), policy, nodes)?))
    }

    fn nodes_needed(&self, policy: ChainPolicyKind) -> Result<Option<u16>, SimError> {
        let meets = |nodes| self.meets(policy, nodes, 1.0);
        let mut most = 1;
        while !meets(most)? {
            if most >= PLAN_NODES_MAX {
                return Ok(None);
            }
            most *= 2;
        }
        let mut least = most / 2 + 1;
        while least < most {
            let middle = least.midpoint(most);
            if meets(middle)? {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        Ok(Some(most))
    }

    fn row(
        &self,
        policy: ChainPolicyKind,
        nodes_needed: Option<u16>,
        nodes: Option<u16>,
    ) -> Result<PromptPlanRow, SimError> {
        let (mut outcome, mut capacity) = (None, None);
        if let Some(nodes) = nodes {
            let found = self.run(self.workload, policy, nodes)?;
            capacity = self.capacity(policy, nodes, self.goal.is_met_by(&found))?;
            outcome = Some(found);
        }
        let routes_by_prefix = policy.routes_by_prefix();
        Ok(PromptPlanRow { policy: policy.name(), routes_by_prefix, nodes_needed, outcome, capacity })
    }

    fn capacity(
        &self,
        policy: ChainPolicyKind,
        nodes: u16,
        meets_now: bool,
    ) -> Result<Option<Capacity>, SimError> {
        let meets = |speed| self.meets(policy, nodes, speed);
        let seconds = self.workload.seconds();
        let rate = |speed: f64| speed * self.workload.len() as f64 / seconds;
        let most = (seconds / (GOALS_MIN * self.goal.seconds)).clamp(1.0, SPEED_MAX);
        // A speed that meets the goal, and a higher one that does not.
        let (mut meeting, mut missing) = (1.0, 1.0);
        if meets_now {
            loop {
                missing = (meeting * 2.0_f64).min(most);
                if missing <= meeting {
                    return Ok(Some(Capacity { per_s: rate(meeting), is_lower_bound: true }));
                }
                if !meets(missing)? {
                    break;
                }
                meeting = missing;
            }
        } else {
            loop {
                meeting = missing / 2.0;
                if meeting < 1.0 / SPEED_MAX {
                    return Ok(None);
                }
                if meets(meeting)? {
                    break;
                }
                missing = meeting;
            }
        }
        for _ in 0..CAPACITY_STEPS {
            let middle = (meeting * missing).sqrt();
            if meets(middle)? {
                meeting = middle;
            } else {
                missing = middle;
            }
        }
        Ok(Some(Capacity { per_s: rate(meeting), is_lower_bound: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(policies: &[ChainPolicyKind]) -> PromptPlanOptions {
        PromptPlanOptions {
            policies: policies.to_vec(),
            engine: EngineModel::LLAMA3_8B,
            goal: None,
            nodes: None,
        }
    }

    #[test]
    fn goals_are_percentiles_with_a_time() {
        assert_eq!("p90=1.5s".parse(), Ok(FirstTokenGoal { percentile: Percentile::P90, seconds: 1.5 }));
        assert_eq!(" p99 = 200ms".parse(), Ok(FirstTokenGoal { percentile: Percentile::P99, seconds: 0.2 }));
        for text in ["", "p90", "p95=1s", "p90=-1s", "p90=1", "p90=0s", "p90=infs"] {
            let error = text.parse::<FirstTokenGoal>().expect_err(text);
            assert!(error.to_string().contains("write p50=500ms"), "{error}");
        }
    }

    /// The plan's own numbers are checked by simulating them, and their neighbours.
    #[test]
    fn the_plan_is_the_least_cluster_that_meets_the_goal() {
        let workload = PromptWorkload::agents(3, 240.0, 1.0);
        let kinds = [ChainPolicyKind::LeastLoad, ChainPolicyKind::LardPrefix];
        let steps = std::sync::Mutex::new(Vec::new());
        let plan = plan_prompts(&workload, &options(&kinds), &|done, all| {
            steps.lock().expect("no panic").push((done, all));
        })
        .expect("a plan");
        let mut steps = steps.into_inner().expect("no panic");
        steps.sort_unstable();
        assert_eq!(steps, [(1, 4), (2, 4), (3, 4), (4, 4)]);
        let meets = |kind, nodes, speed| {
            let cluster = PromptCluster {
                nodes,
                engine: plan.engine,
                policy: kind,
                objective_s: plan.goal.seconds,
                switches: 1,
                isolated: false,
            };
            plan.goal.is_met_by(&simulate_prompts(&workload.at_speed(speed), &cluster).expect("in range"))
        };
        for (kind, row) in kinds.into_iter().zip(&plan.policies) {
            let needed = row.nodes_needed.expect("agents need few nodes");
            assert!(meets(kind, needed, 1.0) && (needed == 1 || !meets(kind, needed - 1, 1.0)), "{row:?}");
            let capacity = row.capacity.expect("a capacity");
            let speed = capacity.per_s / plan.requests_per_s;
            let nodes = plan.nodes.expect("nodes");
            assert!(!capacity.is_lower_bound, "{row:?}");
            assert!(meets(kind, nodes, speed) && !meets(kind, nodes, speed * 1.05), "{row:?}");
        }
        let (best, other) = (plan.best().expect("a best"), plan.best_without_prefixes().expect("another"));
        assert_eq!((best.policy, other.policy), ("lard-prefix", "least-load"), "{plan:?}");
        assert_eq!(plan.nodes, best.nodes_needed);
        assert!(best.nodes_needed < other.nodes_needed, "{plan:?}");
        // The default goal.
        assert!((plan.goal.seconds - 4.0 * plan.idle_s).abs() < 1e-9);
        // The reuse grows with the memory, to the ceiling.
        let reuses: Vec<f64> = plan.reuse_by_nodes.iter().map(|(_, reuse)| reuse.tokens).collect();
        assert!(reuses.is_sorted() && *reuses.last().expect("one") >= plan.reuse_unlimited.tokens - 0.01);
    }

    #[test]
    fn a_goal_that_idle_engines_miss_has_no_nodes() {
        let workload = PromptWorkload::agents(3, 60.0, 0.2);
        let goal = Some(FirstTokenGoal { percentile: Percentile::P50, seconds: 0.001 });
        let options = PromptPlanOptions { goal, ..options(&[ChainPolicyKind::LardPrefix]) };
        let plan = plan_prompts(&workload, &options, &|_, _| {}).expect("a plan");
        assert_eq!((plan.nodes, plan.policies[0].nodes_needed, plan.best()), (None, None, None));
        assert!(plan.idle_s > 0.001);
        // With a number of nodes, the outcome is shown all the same.
        let plan = plan_prompts(&workload, &PromptPlanOptions { nodes: Some(2), ..options }, &|_, _| {});
        let row = &plan.expect("a plan").policies[0];
        assert!(row.outcome.is_some() && row.capacity.is_none(), "{row:?}");
    }

    /// Refused requests are late, and so is a last quarter that waits longer and longer.
    #[test]
    fn a_goal_counts_refused_requests_and_the_end_of_the_trace() {
        let goal = FirstTokenGoal { percentile: Percentile::P90, seconds: 1.0 };
        let outcome = |waits_ms: &[Option<u64>]| {
            let waits_ns = waits_ms.iter().map(|ms| ms.map_or(u64::MAX, |ms| ms * 1_000_000)).collect();
            let workload = PromptWorkload::agents(3, 60.0, 0.2);
            let cluster = PromptCluster {
                nodes: 1,
                engine: EngineModel::LLAMA3_8B,
                policy: ChainPolicyKind::Rr,
                objective_s: 1.0,
                switches: 1,
                isolated: false,
            };
            PromptOutcome { waits_ns, ..simulate_prompts(&workload, &cluster).expect("in range") }
        };
        let mut waits = vec![Some(1_000); 100];
        assert!(goal.is_met_by(&outcome(&waits)));
        waits[..10].fill(None);
        assert!(goal.is_met_by(&outcome(&waits)));
        waits[10] = Some(1_001);
        assert!(!goal.is_met_by(&outcome(&waits)), "11 of 100 are late");
        let mut waits = vec![Some(1); 100];
        waits[97..].fill(Some(2_000));
        assert!(!goal.is_met_by(&outcome(&waits)), "3 of the last 25 are late");
        assert!(!goal.is_met_by(&outcome(&[])));
    }

    /// Faster clocks would make the trace too short for the goal.
    #[test]
    fn a_capacity_beyond_the_trace_is_a_lower_bound() {
        let workload = PromptWorkload::agents(3, 120.0, 0.2);
        let goal = Some(FirstTokenGoal { percentile: Percentile::P90, seconds: 8.0 });
        let options = PromptPlanOptions { goal, nodes: Some(8), ..options(&[ChainPolicyKind::LardPrefix]) };
        let plan = plan_prompts(&workload, &options, &|_, _| {}).expect("a plan");
        let capacity = plan.policies[0].capacity.expect("a capacity");
        let speed = workload.seconds() / 80.0;
        assert!(capacity.is_lower_bound && !plan.is_short, "{plan:?}");
        assert!((capacity.per_s / plan.requests_per_s - speed).abs() < 1e-9, "{capacity:?} {speed}");
        let goal = Some(FirstTokenGoal { percentile: Percentile::P90, seconds: 20.0 });
        let plan = plan_prompts(&workload, &PromptPlanOptions { goal, ..options }, &|_, _| {});
        assert!(plan.expect("a plan").is_short);
    }

    #[test]
    fn wrong_options_are_errors() {
        let workload = PromptWorkload::agents(3, 60.0, 0.2);
        for nodes in [0, PLAN_NODES_MAX + 1] {
            let options = PromptPlanOptions { nodes: Some(nodes), ..options(&[ChainPolicyKind::Rr]) };
            let error = plan_prompts(&workload, &options, &|_, _| {}).expect_err("out of range");
            assert!(error.to_string().starts_with("nodes is out of range"), "{error}");
        }
        let mut one = workload;
        one.truncate(1);
        assert!(plan_prompts(&one, &options(&[ChainPolicyKind::Rr]), &|_, _| {}).is_err());
    }
}
