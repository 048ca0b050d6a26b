//! `equal-p99`: the throughput of each policy under a limit on the 99th percentile of the delay.
//!
//! Content-aware policies and load-balancing policies trade hits for balance, so the throughput at full load
//! says little: a policy with longer queues may look better. Here each policy is loaded with more and more
//! clients, each with an outstanding request, from one per node to S in steps of about a quarter. The result
//! is the highest throughput of the runs whose 99th percentile is within the limit. There is no
//! interpolation.
//!
//! `[params]`: `workload`, `nodes`, `memory_share` (per node, of the working set), `policies`, `over_p99_ms`.
//! A policy is named as in a config; `bounded 1.5` is `bounded` with that factor. The cost model is `lard98`,
//! and nodes report every 200 ms. The first third is the warm-up, from which the table of `ward` and `part`
//! is computed. Metrics: `throughput`, `hit_ratio`, `clients`, `p99_ms`, `imbalance`, all of the best run; 0
//! if no run is within the limit.

use core::time::Duration;

use larder_core::dispatch::Settings;
use larder_core::{Bytes, PolicyKind};
use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use super::ward::WorkloadParams;
use larder_sim::measure_ward_costs;
use larder_sim::tables::{compute_initial_table, needs_table};
use larder_sim::{Arrivals, Outcome, Scenario, SimNode, Workload, simulate};

/// The builtin `equal-p99`.
#[derive(Debug)]
pub(super) struct EqualP99;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EqualP99Params {
    workload: WorkloadParams,
    nodes: u16,
    memory_share: f64,
    policies: Vec<String>,
    over_p99_ms: Vec<f64>,
}

#[derive(Debug)]
struct EqualP99Plan {
    params: EqualP99Params,
    /// The settings of each line.
    lines: Vec<Settings>,
}

/// The largest number of lines, and of limits.
const LIST_MAX: usize = 32;

impl Builtin for EqualP99 {
    fn name(&self) -> &'static str {
        "equal-p99"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let params: EqualP99Params = params(table)?;
        params.workload.check()?;
        if !(1..=1_024).contains(&params.nodes) {
            return Err(format!("nodes: must be 1 to 1,024, not {}", params.nodes));
        }
        if !(params.memory_share > 0.0 && params.memory_share <= 1.0) {
            return Err(format!("memory_share: must be above 0 and at most 1, not {}", params.memory_share));
        }
        let fits = |count: usize| (1..=LIST_MAX).contains(&count);
        let limit_ok = |ms: &f64| *ms > 0.0 && *ms <= 1e7;
        if !fits(params.over_p99_ms.len()) || !params.over_p99_ms.iter().all(limit_ok) {
            return Err(format!(
                "over_p99_ms: must be 1 to {LIST_MAX} numbers above 0 and at most 10,000,000"
            ));
        }
        if !fits(params.policies.len()) {
            return Err(format!("policies: must be 1 to {LIST_MAX} names"));
        }
        let twice = |(at, name): (usize, &String)| params.policies[..at].contains(name);
        if params.policies.iter().enumerate().any(twice) {
            return Err("policies: has a name twice".to_owned());
        }
        let lines = params.policies.iter().map(|name| settings(name)).collect::<Result<_, _>>()?;
        Ok(Box::new(EqualP99Plan { params, lines }))
    }
}

/// Returns the settings for a line's name.
fn settings(name: &str) -> Result<Settings, String> {
    let (policy, factor) =
        name.split_once(' ').map_or((name, None), |(policy, factor)| (policy, Some(factor)));
    let policy: PolicyKind = policy.parse().map_err(|error| format!("policies: {error}"))?;
    let mut settings = Settings { policy, ..Settings::default() };
    if let Some(factor) = factor {
        let permille = factor.parse::<f64>().ok().filter(|factor| (1.0..=100.0).contains(factor));
        let (PolicyKind::Bounded, Some(factor)) = (policy, permille) else {
            return Err(format!("policies: '{name}': only bounded takes a factor, such as 'bounded 1.25'"));
        };
        settings.policies.bounded.factor_permille = (factor * 1_000.0).round() as u32;
    }
    settings.validate().map_err(|error| format!("policies: '{name}': {error}"))?;
    Ok(settings)
}

impl EqualP99Plan {
    fn run(&self, line: usize, clients: u32, workload: &Workload) -> Result<Outcome, PaperError> {
        let memory = Bytes((workload.bytes() as f64 * self.params.memory_share) as u64);
        let nodes = vec![SimNode::with_cache(memory); usize::from(self.params.nodes)];
        let warmup = workload.requests.len() / 3;
        let mut settings = self.lines[line].clone();
        let usual = Scenario::lard98(nodes.len(), settings.clone());
        if needs_table(settings.policy) {
            let mean = workload.bytes() / workload.items.len().max(1) as u64;
            let table =
                compute_initial_table(workload, warmup, &nodes, &measure_ward_costs(&usual.costs, mean)?)?;
            settings.table = Some(table.into());
        }
        let scenario = Scenario {
            nodes,
            settings,
            arrivals: Arrivals::Closed { clients },
            warmup,
            report_every: Some(Duration::from_millis(200)),
            ..usual
        };
        Ok(simulate(workload, &scenario)?)
    }

    /// Returns the numbers of clients: from one per node to S, each about a quarter more than the last.
    fn loads(&self) -> Vec<u32> {
        let Settings { t_low, t_high, .. } = Settings::default();
        let most = (u32::from(self.params.nodes) - 1) * t_high + t_low - 1;
        let mut loads = vec![u32::from(self.params.nodes).min(most)];
        while let Some(last) = loads.last().copied().filter(|last| *last < most) {
            loads.push((last + (last / 4).max(1)).min(most));
        }
        loads
    }
}

impl Plan for EqualP99Plan {
    fn lines(&self) -> Vec<String> {
        self.params.policies.clone()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "hit_ratio", "clients", "p99_ms", "imbalance"]
    }

    fn jobs(&self) -> usize {
        self.lines.len()
    }

    fn key(&self, job: usize) -> String {
        let EqualP99Params { workload, nodes, memory_share, over_p99_ms, .. } = &self.params;
        format!("{workload:?} {nodes} {memory_share} {over_p99_ms:?} {:?}", self.lines[job])
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let workload = traces.workload(&self.params.workload.spec().map_err(PaperError::Builtin)?)?;
        let mut runs = Vec::new();
        for clients in self.loads() {
            runs.push((clients, self.run(job, clients, &workload)?));
        }
        let sample = |limit_ms: &f64| {
            let within = runs.iter().filter(|(_, run)| run.delay.p99_s * 1e3 <= *limit_ms);
            let best = within.max_by(|(_, a), (_, b)| a.throughput.total_cmp(&b.throughput));
            let of = |value: fn(&Outcome) -> f64| best.map_or(0.0, |(_, run)| value(run));
            let values = vec![
                ("throughput", of(|run| run.throughput)),
                ("hit_ratio", of(|run| 1.0 - run.miss_ratio)),
                ("clients", best.map_or(0.0, |(clients, _)| f64::from(*clients))),
                ("p99_ms", of(|run| run.delay.p99_s * 1e3)),
                ("imbalance", of(|run| run.imbalance)),
            ];
            Sample::new(&self.params.policies[job], *limit_ms, values)
        };
        Ok(self.params.over_p99_ms.iter().map(sample).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PARAMS: &str = "workload = { recipe = 'rice-like', scale = 0.01 }\nnodes = 4\nmemory_share = 0.1\n\
        policies = ['lard-r', 'bounded 1.25', 'wrr']\nover_p99_ms = [0.001, 400, 4000]\n";

    fn plan(text: &str) -> Result<Box<dyn Plan>, String> {
        EqualP99.plan(&toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())?)
    }

    #[test]
    fn a_looser_limit_never_serves_less() {
        let plan = plan(PARAMS).expect("the parameters are good");
        let traces = Traces::new(Path::new("nowhere"));
        for job in 0..plan.jobs() {
            let samples = plan.run(job, &traces).expect("it runs");
            let values: Vec<f64> = samples.iter().map(|sample| sample.values["throughput"]).collect();
            assert!(values[0] == 0.0 && values[2] > 0.0, "no request takes a microsecond: {values:?}");
            assert!(values.is_sorted(), "{values:?}");
            assert!(samples.iter().all(|sample| sample.values["p99_ms"] <= sample.x));
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (from, to, complaint) in [
            ("nodes = 4", "nodes = 0", "nodes: must be 1 to"),
            ("'wrr'", "'wrr 1.25'", "only bounded takes a factor"),
            ("bounded 1.25", "bounded 0.5", "only bounded takes a factor"),
            ("'wrr'", "'wr'", "unknown policy 'wr'"),
            ("'wrr'", "'lard-r'", "twice"),
            ("0.001", "0", "over_p99_ms: must be"),
            ("memory_share = 0.1", "memory_share = 2.0", "memory_share: must be"),
        ] {
            let error = plan(&PARAMS.replace(from, to)).err().unwrap_or_default();
            assert!(error.contains(complaint), "{to}: {error}");
        }
    }
}
