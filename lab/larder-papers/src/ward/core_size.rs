//! Figures 5 and 6: throughput and local requests against the size of the core.

use larder_trace::ward::{Analysis, CoreChoice};
use serde::Deserialize;

use super::{
    CommonParams, WorkloadParams, analyse, check_forward, check_list, check_nodes, frequencies, table,
    usual_window, working_set,
};
use crate::PaperError;
use crate::builtin::{Builtin, Plan, params};
use crate::report::Sample;
use crate::traces::Traces;

/// `ward-core`: throughput and local requests against the size of the core, as in figures 5 and 6.
///
/// `[params]`: `workload`, `memory_share`, `window`, `over_nodes` and `over_forward_us` (two lines for each
/// pair), and `over_core` (sizes of the core as shares of a node's memory). The line `16 nodes, 276 us` has the
/// swept cores; the line `16 nodes, 276 us, computed` has the core of ward-analysis at x = 1. Metrics:
/// `throughput`, `of_best` (relative to the best swept core), `core_targets`, `core_share` (of a node's memory),
/// `local_share`, `overhead_s` (predicted by ward-analysis).
#[derive(Debug)]
pub(crate) struct Core;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CorePlan {
    workload: WorkloadParams,
    memory_share: f64,
    #[serde(default = "usual_window")]
    window: u32,
    over_nodes: Vec<u16>,
    over_forward_us: Vec<f64>,
    over_core: Vec<f64>,
}

impl Builtin for Core {
    fn name(&self) -> &'static str {
        "ward-core"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: CorePlan = params(table)?;
        plan.common(0.0).check()?;
        check_list("over_nodes", &plan.over_nodes, check_nodes)?;
        check_list("over_forward_us", &plan.over_forward_us, check_forward)?;
        check_list("over_core", &plan.over_core, |key, share| {
            let good = (0.0..=1.0).contains(&share);
            if good { Ok(()) } else { Err(format!("{key}: must be 0 to 1, not {share}")) }
        })?;
        Ok(Box::new(plan))
    }
}

impl CorePlan {
    fn common(&self, forward_us: f64) -> CommonParams {
        let Self { ref workload, memory_share, window, .. } = *self;
        CommonParams { workload: workload.clone(), memory_share, forward_us, window }
    }

    /// Returns the number of nodes and the cost of a handoff.
    fn point(&self, job: usize) -> (u16, f64) {
        let prices = self.over_forward_us.len();
        (self.over_nodes[job / prices], self.over_forward_us[job % prices])
    }

    fn line(&self, job: usize) -> String {
        let (nodes, forward_us) = self.point(job);
        format!("{nodes} nodes, {forward_us} us")
    }
}

impl Plan for CorePlan {
    fn lines(&self) -> Vec<String> {
        (0..self.jobs()).flat_map(|job| [self.line(job), format!("{}, computed", self.line(job))]).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "of_best", "core_targets", "core_share", "local_share", "overhead_s"]
    }

    fn jobs(&self) -> usize {
        self.over_nodes.len() * self.over_forward_us.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-core {self:?} {job}")
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (nodes, forward_us) = self.point(job);
        let common = self.common(forward_us);
        let workload = traces.workload(&common.spec()?)?;
        let cluster = common.cluster(nodes, working_set(&workload));
        let memory = cluster.memory_per_node.get() as f64;
        let log = frequencies(&workload);
        // The number of the most frequent files that fit a share of a node's memory.
        let targets_of = |share: f64| {
            let sums = log.rows().iter().scan(0, |sum, row| {
                *sum += row.bytes;
                Some(*sum)
            });
            sums.take_while(|sum| *sum as f64 <= memory * share).count() as u64
        };
        let swept = self.over_core.iter().map(|share| (self.line(job), *share, targets_of(*share)));
        let best = analyse(&log, &cluster, CoreChoice::Best)?.core.targets;
        let computed = (format!("{}, computed", self.line(job)), 1.0, best);
        let mut runs = Vec::new();
        for (line, x, targets) in swept.chain(std::iter::once(computed)) {
            let analysis = analyse(&log, &cluster, CoreChoice::Targets(targets))?;
            let outcome = common.run(&workload, &cluster, Some(table(&analysis, &workload)?))?;
            runs.push((line, x, analysis, outcome));
        }
        let swept = &runs[..self.over_core.len()];
        let greatest = swept.iter().map(|run| run.3.throughput).fold(f64::MIN_POSITIVE, f64::max);
        let sample = |(line, x, analysis, outcome): &(String, f64, Analysis, _)| {
            let outcome: &larder_sim::outcome::Outcome = outcome;
            let values = [
                ("throughput", outcome.throughput),
                ("of_best", outcome.throughput / greatest),
                ("core_targets", analysis.core.targets as f64),
                ("core_share", analysis.core.bytes as f64 / memory),
                ("local_share", 1.0 - outcome.forwarded_share),
                ("overhead_s", analysis.overheads.ward_us / 1e6),
            ];
            Sample::new(line, *x, values)
        };
        Ok(runs.iter().map(sample).collect())
    }
}
