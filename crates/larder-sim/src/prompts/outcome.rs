//! The outcome of a simulation of inference engines, and its table.

use std::fmt::Write as _;

use larder_core::Time;
use larder_core::chain::ChainPolicyKind;
use serde::Serialize;

use super::workload::PromptWorkload;
use crate::text::number;

/// Counts of a run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) finished: u64,
    pub(super) refused: u64,
    pub(super) preemptions: u64,
    pub(super) cached_tokens: u64,
    pub(super) credited_tokens: u64,
    pub(super) output_tokens: u64,
    /// By the order of arrival; `None` if there is no first token.
    pub(super) first_token_ns: Vec<Option<u64>>,
    pub(super) end: Time,
}

/// Times from the arrival of a request to the first token of its reply, in s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TokenTimes {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptOutcome {
    /// The policy's name.
    pub policy: &'static str,
    /// Requests that ended with a complete reply.
    pub finished: u64,
    /// Requests that need more memory than a node has.
    pub refused: u64,
    /// Sequences that gave their memory back and were computed again.
    pub preemptions: u64,
    /// Tokens of prompts that a node had stored, as a share of all.
    pub token_hit_ratio: f64,
    /// The share that the dispatcher expected; 0 if the policy does not follow caches.
    pub expected_hit_ratio: f64,
    /// Times to the first token.
    pub first_token_s: TokenTimes,
    /// Finished requests per second, from the first arrival to the last reply.
    pub requests_per_s: f64,
    /// Tokens of replies per second.
    pub output_tokens_per_s: f64,
    /// Tokens that the busiest node computed, divided by the mean of all nodes.
    pub imbalance: f64,
    /// Time to the first token in ns, by the order of arrival; `u64::MAX` if the request was refused.
    #[serde(skip)]
    pub(super) waits_ns: Vec<u64>,
}

impl Counts {
    pub(super) fn outcome(
        self,
        policy: ChainPolicyKind,
        workload: &PromptWorkload,
        computed: &[u64],
    ) -> PromptOutcome {
        let begin = workload.requests.first().map_or(Time::ZERO, |request| request.time);
        let seconds = self.end.since(begin).as_secs_f64();
        let ratio = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let most = computed.iter().copied().max().unwrap_or(0);
        let mean = ratio(computed.iter().sum::<u64>() as f64, computed.len() as f64);
        PromptOutcome {
            policy: policy.name(),
            finished: self.finished,
            refused: self.refused,
            preemptions: self.preemptions,
            token_hit_ratio: ratio(self.cached_tokens as f64, workload.prompt_tokens() as f64),
            expected_hit_ratio: ratio(self.credited_tokens as f64, workload.prompt_tokens() as f64),
            first_token_s: times(&mut self.first_token_ns.iter().copied().flatten().collect::<Vec<u64>>()),
            requests_per_s: ratio(self.finished as f64, seconds),
            output_tokens_per_s: ratio(self.output_tokens as f64, seconds),
            imbalance: ratio(most as f64, mean),
            waits_ns: self.first_token_ns.into_iter().map(|ns| ns.unwrap_or(u64::MAX)).collect(),
        }
    }
}

/// Returns the mean and the percentiles: the smallest time that this share of the requests does not exceed.
fn times(ns: &mut [u64]) -> TokenTimes {
    if ns.is_empty() {
        return TokenTimes::default();
    }
    ns.sort_unstable();
    let at = |percent| percentile(ns, percent);
    let mean = ns.iter().map(|ns| *ns as f64).sum::<f64>() / ns.len() as f64 / 1e9;
    TokenTimes { mean, p50: at(50), p90: at(90), p99: at(99) }
}

/// Returns the smallest of these sorted times that `percent` of them do not exceed, in s; 0 if there is none.
pub(super) fn percentile(sorted_ns: &[u64], percent: usize) -> f64 {
    let place = (sorted_ns.len() * percent).div_ceil(100).max(1);
    sorted_ns.get(place - 1).map_or(0.0, |ns| *ns as f64 / 1e9)
}

/// Returns the outcomes as a table, one line per policy.
pub fn table(outcomes: &[PromptOutcome]) -> String {
    const HEAD: [&str; 9] =
        ["policy", "hits", "TTFT mean", "p50", "p90", "p99", "requests/s", "tokens/s", "imbalance"];
    const WIDTHS: [usize; 9] = [14, 7, 10, 10, 10, 10, 10, 9, 9];
    let line = |cells: [String; 9]| {
        let mut text = format!("{:<width$}", cells[0], width = WIDTHS[0]);
        for (cell, width) in cells.iter().zip(WIDTHS).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
        text
    };
    let mut text = line(HEAD.map(str::to_owned));
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let seconds = |s: f64| format!("{s:.3} s");
    for outcome in outcomes {
        let times = outcome.first_token_s;
        text.push_str(&line([
            outcome.policy.to_owned(),
            percent(outcome.token_hit_ratio),
            seconds(times.mean),
            seconds(times.p50),
            seconds(times.p90),
            seconds(times.p99),
            format!("{:.2}", outcome.requests_per_s),
            number(outcome.output_tokens_per_s.round()),
            format!("{:.2}", outcome.imbalance),
        ]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_of_requests() {
        let mut ns: Vec<u64> = (1..=200).rev().map(|s| s * 1_000_000_000).collect();
        let found = times(&mut ns);
        assert_eq!(found, TokenTimes { mean: 100.5, p50: 100.0, p90: 180.0, p99: 198.0 });
        assert_eq!(times(&mut []), TokenTimes::default());
    }
}
