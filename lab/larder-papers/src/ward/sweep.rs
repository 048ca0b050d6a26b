//! The strategies against a parameter that the paper leaves open, or that the log was fitted with.

use larder_trace::ward::CoreChoice;
use serde::Deserialize;

use super::{
    CommonParams, STRATEGIES, WorkloadParams, analyse, check_forward, check_list, check_nodes, check_window,
    core_of, frequencies, table, usual_window, working_set,
};
use crate::PaperError;
use crate::builtin::{Builtin, Plan, params};
use crate::report::Sample;
use crate::traces::Traces;
use larder_sim::Workload;

/// `ward-sweep`: the three strategies against one parameter.
///
/// `[params]`: `workload`, `memory_share`, `window`, `nodes`, `over_forward_us`, and one of `over_window` (a
/// node's own outstanding requests), `over_locality`, `over_memory` (a node's memory as a share of the
/// working set) and `over_shuffled` (a trace in its own order, x = 0, and in random order, x = 1). There is a line for each strategy and cost: `RR, 276 us`. Metrics: `throughput`, `speedup`
/// (over one node with the same memory and window), `hit_ratio`.
#[derive(Debug)]
pub(crate) struct StrategySweep;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepPlan {
    workload: WorkloadParams,
    memory_share: f64,
    #[serde(default = "usual_window")]
    window: u32,
    nodes: u16,
    over_forward_us: Vec<f64>,
    #[serde(default)]
    over_window: Vec<u32>,
    #[serde(default)]
    over_locality: Vec<f64>,
    #[serde(default)]
    over_memory: Vec<f64>,
    #[serde(default)]
    over_shuffled: Vec<bool>,
}

impl Builtin for StrategySweep {
    fn name(&self) -> &'static str {
        "ward-sweep"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: SweepPlan = params(table)?;
        check_nodes("nodes", plan.nodes)?;
        check_list("over_forward_us", &plan.over_forward_us, check_forward)?;
        let lists = [
            plan.over_window.len(),
            plan.over_locality.len(),
            plan.over_memory.len(),
            plan.over_shuffled.len(),
        ];
        if lists.iter().filter(|values| **values > 0).count() != 1 {
            return Err(
                "give exactly one of 'over_window', 'over_locality', 'over_memory' and 'over_shuffled'"
                    .to_owned(),
            );
        }
        if !plan.over_window.is_empty() {
            check_list("over_window", &plan.over_window, check_window)?;
        }
        let values: Vec<f64> = (0..plan.values()).map(|at| plan.value(at)).collect();
        check_list("values", &values, |_, _| Ok(()))?;
        (0..plan.jobs()).try_for_each(|job| plan.job(job).1.check())?;
        Ok(Box::new(plan))
    }
}

impl SweepPlan {
    fn line(strategy: &str, forward_us: f64) -> String {
        format!("{strategy}, {forward_us} us")
    }

    /// Returns the number of values of the swept parameter.
    fn values(&self) -> usize {
        self.over_window.len() + self.over_locality.len() + self.over_memory.len() + self.over_shuffled.len()
    }

    /// Returns a value of the swept parameter.
    fn value(&self, at: usize) -> f64 {
        let windows = self.over_window.iter().map(|window| f64::from(*window));
        let shares = self.over_locality.iter().chain(&self.over_memory).copied();
        let orders = self.over_shuffled.iter().map(|shuffled| f64::from(u8::from(*shuffled)));
        windows.chain(shares).chain(orders).nth(at).unwrap_or_default()
    }

    /// Returns the value of the swept parameter, and the parameters with it.
    fn job(&self, job: usize) -> (f64, CommonParams) {
        let (at, price) = (job / self.over_forward_us.len(), job % self.over_forward_us.len());
        let Self { ref workload, memory_share, window, .. } = *self;
        let forward_us = self.over_forward_us[price];
        let mut common = CommonParams { workload: workload.clone(), memory_share, forward_us, window };
        let x = self.value(at);
        if let Some(window) = self.over_window.get(at) {
            common.window = *window;
        } else if let Some(shuffled) = self.over_shuffled.get(at) {
            common.workload.shuffled = *shuffled;
        } else if self.over_memory.is_empty() {
            common.workload.locality = Some(x);
        } else {
            common.memory_share = x;
        }
        (x, common)
    }

    fn measure(
        common: &CommonParams,
        workload: &Workload,
        nodes: u16,
        core: Option<CoreChoice>,
    ) -> Result<(f64, f64), PaperError> {
        let cluster = common.cluster(nodes, working_set(workload));
        let table = match core {
            Some(core) => Some(table(&analyse(&frequencies(workload), &cluster, core)?, workload)?),
            None => None,
        };
        let outcome = common.run(workload, &cluster, table)?;
        Ok((outcome.throughput, 1.0 - outcome.miss_ratio))
    }
}

impl Plan for SweepPlan {
    fn lines(&self) -> Vec<String> {
        let prices = self.over_forward_us.iter();
        prices.flat_map(|price| STRATEGIES.map(|strategy| Self::line(strategy, *price))).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "speedup", "hit_ratio"]
    }

    fn jobs(&self) -> usize {
        self.values() * self.over_forward_us.len()
    }

    fn key(&self, job: usize) -> String {
        // The x is in the key: sweeps over other parameters may have the same run at another x.
        let (x, common) = self.job(job);
        format!("ward-sweep {common:?} {} at {x}", self.nodes)
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (x, common) = self.job(job);
        let workload = traces.workload(&common.spec()?)?;
        let (single, _) = Self::measure(&common, &workload, 1, None)?;
        let mut samples = Vec::new();
        for strategy in STRATEGIES {
            let (throughput, hit_ratio) = Self::measure(&common, &workload, self.nodes, core_of(strategy))?;
            let values =
                [("throughput", throughput), ("speedup", throughput / single), ("hit_ratio", hit_ratio)];
            let line = Self::line(strategy, common.forward_us);
            samples.push(Sample::new(&line, x, values));
        }
        Ok(samples)
    }
}
