//! The traces of the LARD paper: figures 5 and 6 (section 3.2). Its other figures are sweeps. The same figures
//! exist of WARD's log (figure 4).

use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::{Traces, WorkloadSpec};
use larder_sim::Workload;

/// `trace-coverage`: the share of the requests, and of the bytes, of the most requested targets.
///
/// Lines: `requests` and `size` (metric `share`, against the share of all targets); `memory for requests`
/// (metrics `mb`, and as shares of the trace `files`, `set` and `transferred` bytes, against requests in
/// thousandths); `whole trace` (metrics `targets`, `mb`, `hottest`, at 1).
/// MB are 10^6 bytes.
#[derive(Debug)]
pub(super) struct Coverage;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoveragePlan {
    /// The trace recipe.
    recipe: String,
    /// The seed of the trace.
    seed: u64,
    /// The shares of the requests whose memory is computed, in thousandths.
    permille: Vec<u32>,
}

impl Builtin for Coverage {
    fn name(&self) -> &'static str {
        "trace-coverage"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: CoveragePlan = params(table)?;
        larder_trace::synth::Recipe::by_name(&plan.recipe).map_err(|error| error.to_string())?;
        if plan.permille.len() > 1_000 {
            return Err("'permille' must hold at most 1000 numbers".to_owned());
        }
        if plan.permille.iter().any(|share| !(1..=1_000).contains(share)) {
            return Err("'permille' must hold numbers from 1 to 1000".to_owned());
        }
        Ok(Box::new(plan))
    }
}

impl CoveragePlan {
    fn spec(&self) -> WorkloadSpec {
        WorkloadSpec::recipe(&self.recipe, self.seed)
    }
}

impl Plan for CoveragePlan {
    fn lines(&self) -> Vec<String> {
        ["requests", "size", "memory for requests", "whole trace"].map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["share", "mb", "targets", "hottest", "files", "set", "transferred"]
    }

    fn jobs(&self) -> usize {
        1
    }

    fn key(&self, _job: usize) -> String {
        format!("{} {:?}", self.spec().describe(), self.permille)
    }

    fn run(&self, _job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        Ok(cover(&*traces.workload(&self.spec())?, &self.permille))
    }
}

/// The number of points of the curves.
const STEPS: usize = 100;

fn cover(workload: &Workload, permille: &[u32]) -> Vec<Sample> {
    let (counts, ranks) = (workload.counts(), workload.ranks());
    let mut order = vec![0_usize; ranks.len()];
    for (item, rank) in ranks.iter().enumerate() {
        order[*rank as usize] = item;
    }
    // Sums of requests, bytes and transferred bytes of the first 0, 1, 2.. targets.
    let mut sums = vec![(0_u64, 0_u64, 0_u64)];
    for item in order {
        let (requests, bytes, transferred) = sums.last().copied().unwrap_or_default();
        let (count, size) = (u64::from(counts[item]), workload.items[item].bytes);
        sums.push((requests + count, bytes + size, transferred + count * size));
    }
    let targets = sums.len() - 1;
    let (requests, bytes, transferred) = sums[targets];
    let mut samples = Vec::new();
    for step in 0..=STEPS {
        let (x, at) = (step as f64 / STEPS as f64, sums[targets * step / STEPS]);
        samples.push(Sample::new("requests", x, [("share", at.0 as f64 / requests.max(1) as f64)]));
        samples.push(Sample::new("size", x, [("share", at.1 as f64 / bytes.max(1) as f64)]));
    }
    for share in permille {
        let wanted = (requests * u64::from(*share)).div_ceil(1_000);
        let first = sums.partition_point(|sum| sum.0 < wanted).min(targets);
        let of = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let values = [
            ("mb", sums[first].1 as f64 / 1e6),
            ("files", of(first as u64, targets as u64)),
            ("set", of(sums[first].1, bytes)),
            ("transferred", of(sums[first].2, transferred)),
        ];
        samples.push(Sample::new("memory for requests", f64::from(*share), values));
    }
    let hottest = sums.get(1).map_or(0.0, |first| first.0 as f64 / requests.max(1) as f64);
    let whole = [("targets", targets as f64), ("mb", bytes as f64 / 1e6), ("hottest", hottest)];
    samples.push(Sample::new("whole trace", 1.0, whole));
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::TargetId;
    use larder_sim::Item;

    #[test]
    fn the_most_requested_come_first() {
        let items = [1_000_000, 2_000_000, 4_000_000]
            .iter()
            .zip(0..)
            .map(|(size, id)| Item::file(TargetId(id), *size));
        let requests = [vec![1; 7], vec![2; 2], vec![0; 1]].concat();
        let workload = Workload { items: items.collect(), requests, times: Vec::new() };
        let samples = cover(&workload, &[700, 701, 900]);
        let mb = |x: f64| {
            samples.iter().find(|s| s.line == "memory for requests" && s.x == x).unwrap().values["mb"]
        };
        assert_eq!((mb(700.0), mb(701.0), mb(900.0)), (2.0, 6.0, 6.0));
        let at = samples.iter().find(|s| s.line == "memory for requests" && s.x == 700.0).unwrap();
        // The hottest target has 2 of 7 MB, and 14 of 14 + 2 * 4 + 1 MB that are transferred.
        assert_eq!(at.values["transferred"], 14.0 / 23.0);
        assert_eq!((at.values["files"], at.values["set"]), (1.0 / 3.0, 2.0 / 7.0));
        let whole = &samples.last().unwrap().values;
        assert_eq!((whole["targets"], whole["mb"], whole["hottest"]), (3.0, 7.0, 0.7));
    }
}
