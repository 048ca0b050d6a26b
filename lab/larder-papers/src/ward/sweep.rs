//! The size of the paper's queues: the strategies against the number of a node's own outstanding requests.

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

/// `ward-window`: the three strategies against the number of a node's own outstanding requests.
///
/// `[params]`: `workload`, `memory_share`, `nodes`, `over_forward_us` and `over_window`. There is a line for
/// each strategy and cost: `RR, 276 us`. Metrics: `throughput`, `speedup` (over one node with the same memory
/// and window), `hit_ratio`.
#[derive(Debug)]
pub(crate) struct Window;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowPlan {
    workload: WorkloadParams,
    memory_share: f64,
    nodes: u16,
    over_forward_us: Vec<f64>,
    over_window: Vec<u32>,
}

impl Builtin for Window {
    fn name(&self) -> &'static str {
        "ward-window"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: WindowPlan = params(table)?;
        plan.common(0.0, usual_window()).check()?;
        check_nodes("nodes", plan.nodes)?;
        check_list("over_forward_us", &plan.over_forward_us, check_forward)?;
        check_list("over_window", &plan.over_window, check_window)?;
        Ok(Box::new(plan))
    }
}

impl WindowPlan {
    fn common(&self, forward_us: f64, window: u32) -> CommonParams {
        let Self { ref workload, memory_share, .. } = *self;
        CommonParams { workload: workload.clone(), memory_share, forward_us, window }
    }

    fn line(strategy: &str, forward_us: f64) -> String {
        format!("{strategy}, {forward_us} us")
    }

    fn job(&self, job: usize) -> CommonParams {
        let prices = self.over_forward_us.len();
        self.common(self.over_forward_us[job % prices], self.over_window[job / prices])
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

impl Plan for WindowPlan {
    fn lines(&self) -> Vec<String> {
        let prices = self.over_forward_us.iter();
        prices.flat_map(|price| STRATEGIES.map(|strategy| Self::line(strategy, *price))).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "speedup", "hit_ratio"]
    }

    fn jobs(&self) -> usize {
        self.over_window.len() * self.over_forward_us.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-window {:?} {}", self.job(job), self.nodes)
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let common = self.job(job);
        let workload = traces.workload(&common.spec()?)?;
        let (single, _) = Self::measure(&common, &workload, 1, None)?;
        let mut samples = Vec::new();
        for strategy in STRATEGIES {
            let (throughput, hit_ratio) = Self::measure(&common, &workload, self.nodes, core_of(strategy))?;
            let values =
                [("throughput", throughput), ("speedup", throughput / single), ("hit_ratio", hit_ratio)];
            let line = Self::line(strategy, common.forward_us);
            samples.push(Sample::new(&line, f64::from(common.window), values));
        }
        Ok(samples)
    }
}
