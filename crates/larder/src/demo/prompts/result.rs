//! The result of `larder demo --prompts`.

use larder_core::chain::ChainPolicyKind;
use larder_sim::prompts::PromptOutcome;
use schemars::JsonSchema;
use serde::Serialize;

use super::LiveRun;

/// Identifier of the JSON document.
pub(super) const SCHEMA: &str = "larder-demo-prompts/1";

/// The result of the demo.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PromptsReport {
    /// Identifier of this document.
    pub(crate) schema: &'static str,
    /// Number of servers.
    pub(crate) nodes: u16,
    /// Model of the servers' engines.
    pub(crate) engine: &'static str,
    /// Requests that were sent under each policy.
    pub(crate) requests: usize,
    /// Time of their arrivals, in s.
    pub(crate) seconds: u64,
    /// Share of the tokens that a cache without a limit would have.
    pub(crate) reuse_unlimited: f64,
    /// Results of the policies.
    pub(crate) policies: Vec<PolicyOutcome>,
}

/// The result of a policy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PolicyOutcome {
    /// Name of the policy.
    pub(crate) policy: &'static str,
    /// Requests with a complete reply.
    pub(crate) finished: usize,
    /// Requests without one at the end of the run.
    pub(crate) unfinished: usize,
    /// Requests that failed.
    pub(crate) errors: usize,
    /// The first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Share of the tokens of the finished requests that their servers had.
    pub(crate) hit_ratio: f64,
    /// Mean time to the first token of the finished requests, in s.
    pub(crate) first_token_s_mean: f64,
    /// Median of these times.
    pub(crate) first_token_s_p50: f64,
    /// 99th percentile of these times.
    pub(crate) first_token_s_p99: f64,
    /// Finished requests per second, until the last reply or the end of the run.
    pub(crate) requests_per_s: f64,
    /// Hit ratio of the simulation, which ends with the last reply.
    pub(crate) simulated_hit_ratio: f64,
    /// Mean time to the first token of the simulation, in s.
    pub(crate) simulated_first_token_s_mean: f64,
}

impl PolicyOutcome {
    pub(super) fn new(policy: ChainPolicyKind, run: &LiveRun, simulated: &PromptOutcome) -> Self {
        let mut times: Vec<f64> =
            run.completions.iter().map(|completion| completion.first_token.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        let ratio = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let sum =
            |of: fn(&super::client::Completion) -> u64| run.completions.iter().map(of).sum::<u64>() as f64;
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
        let percentile = |percent| times.get(rank(percent)).copied().unwrap_or(0.0);
        Self {
            policy: policy.name(),
            finished: times.len(),
            unfinished: run.unfinished,
            errors: run.errors,
            error: run.error.clone(),
            hit_ratio: ratio(sum(|completion| completion.cached), sum(|completion| completion.tokens)),
            first_token_s_mean: ratio(times.iter().sum(), times.len() as f64),
            first_token_s_p50: percentile(50),
            first_token_s_p99: percentile(99),
            requests_per_s: ratio(times.len() as f64, run.elapsed.as_secs_f64()),
            simulated_hit_ratio: simulated.token_hit_ratio,
            simulated_first_token_s_mean: simulated.first_token_s.mean,
        }
    }
}
