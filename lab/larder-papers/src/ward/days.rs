//! Day-to-day experiments: the value of yesterday's table for today's requests, and the changes of a log
//! (section 3.4, figures 9 and 10).

use larder_trace::ward::{CoreChoice, Stability};
use serde::Deserialize;

use super::{
    CommonParams, NodeCounts, WorkloadParams, analyse, check_list, check_nodes, frequencies, split, table,
    working_set,
};
use crate::PaperError;
use crate::builtin::{Builtin, Plan, params};
use crate::report::Sample;
use crate::traces::Traces;
use larder_sim::Workload;

/// `ward-days`: today's requests with today's table and with yesterday's, against the number of nodes.
///
/// `[params]`: as `ward-clusters`. A node's memory is a share of the mean day's working set. Incomplete days,
/// days with fewer than [`DAY_REQUESTS_MIN`] requests, and the days after them are left out. Lines: `WARD,
/// today`, `WARD, yesterday`, `PART, today`. Metrics: `throughput` (mean over the days), `loss` and
/// `loss_most` (loss of yesterday's table against today's: mean and worst day, 0 to 1).
#[derive(Debug)]
pub(crate) struct Days;

#[derive(Debug)]
struct DaysPlan {
    common: CommonParams,
    over_nodes: Vec<u16>,
}

/// The smallest number of requests of a day. A day with fewer requests has no usable pattern.
const DAY_REQUESTS_MIN: usize = 500;
const DAY_LINES: [&str; 3] = ["WARD, today", "WARD, yesterday", "PART, today"];

impl Builtin for Days {
    fn name(&self) -> &'static str {
        "ward-days"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (NodeCounts { over_nodes }, common) = split(table, "over_nodes")?;
        check_list("over_nodes", &over_nodes, check_nodes)?;
        Ok(Box::new(DaysPlan { common, over_nodes }))
    }
}

impl Plan for DaysPlan {
    fn lines(&self) -> Vec<String> {
        DAY_LINES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "loss", "loss_most"]
    }

    fn jobs(&self) -> usize {
        self.over_nodes.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-days {:?} {}", self.common, self.over_nodes[job])
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let nodes = self.over_nodes[job];
        let trace = traces.trace(&self.common.spec()?)?;
        let days =
            trace.days().into_iter().filter(|day| day.is_whole && day.requests.len() >= DAY_REQUESTS_MIN);
        let days: Vec<_> =
            days.map(|day| (day.number, Workload::from_trace(&trace.part(day.requests)))).collect();
        let sets: u64 = days.iter().map(|(_, day)| working_set(day)).sum();
        let cluster = self.common.cluster(nodes, sets / days.len().max(1) as u64);
        let mut sums = [0.0; 3];
        let (mut losses, mut loss_most, mut count) = (0.0, f64::NEG_INFINITY, 0.0);
        for pair in days.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0) {
            let (yesterday, today) = (&pair[0].1, &pair[1].1);
            let run = |of: &Workload, core| -> Result<f64, PaperError> {
                let analysis = analyse(&frequencies(of), &cluster, core)?;
                Ok(self.common.run(today, &cluster, Some(table(&analysis, of)?))?.throughput)
            };
            let of_day = [
                run(today, CoreChoice::Best)?,
                run(yesterday, CoreChoice::Best)?,
                run(today, CoreChoice::Targets(0))?,
            ];
            let loss = 1.0 - of_day[1] / of_day[0];
            losses += loss;
            loss_most = f64::max(loss_most, loss);
            sums.iter_mut().zip(of_day).for_each(|(sum, throughput)| *sum += throughput);
            count += 1.0;
        }
        if count == 0.0 {
            return Err(PaperError::Builtin(
                "the workload has no two whole days after each other".to_owned(),
            ));
        }
        let sample = |(line, sum): (&str, f64)| {
            let mut values = vec![("throughput", sum / count)];
            if line == DAY_LINES[1] {
                values.extend([("loss", losses / count), ("loss_most", loss_most)]);
            }
            Sample::new(line, f64::from(nodes), values)
        };
        Ok(DAY_LINES.into_iter().zip(sums).map(sample).collect())
    }
}

/// `ward-stability`: the changes of a log from day to day.
///
/// `[params]`: `workload`. Lines and metrics: `new files` with `files` (share of the day's files that were
/// not requested on an earlier day) and `requests` (share of the day's requests to them) and `of_even` (requests over files: 1 if a new file has as many requests as the
/// mean file of the day); `new core-90 %`
/// with `requests` (share of the day's requests to files of its core-90 % that were not in the previous
/// day's). Days with fewer than [`DAY_REQUESTS_MIN`] requests, and comparisons with them, are left out.
#[derive(Debug)]
pub(crate) struct Change;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangePlan {
    workload: WorkloadParams,
}

impl Builtin for Change {
    fn name(&self) -> &'static str {
        "ward-stability"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: ChangePlan = params(table)?;
        plan.workload.check()?;
        Ok(Box::new(plan))
    }
}

impl Plan for ChangePlan {
    fn lines(&self) -> Vec<String> {
        vec!["new files".to_owned(), "new core-90 %".to_owned()]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["files", "requests", "of_even"]
    }

    fn jobs(&self) -> usize {
        1
    }

    fn key(&self, _job: usize) -> String {
        format!("ward-stability {self:?}")
    }

    fn run(&self, _job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let spec = self.workload.spec().map_err(PaperError::Builtin)?;
        let stability = Stability::of(&*traces.trace(&spec)?);
        let has_pattern = |requests: u64| requests >= DAY_REQUESTS_MIN as u64;
        let new = stability.days.iter().filter(|day| has_pattern(day.requests)).map(|day| {
            let (files, requests) = (day.new_targets_share, day.new_requests_share);
            let of_even = if files > 0.0 { requests / files } else { 0.0 };
            let values = [("files", files), ("requests", requests), ("of_even", of_even)];
            Sample::new("new files", day.day as f64, values)
        });
        let is_thin =
            |number: u64| stability.days.iter().any(|day| day.day == number && !has_pattern(day.requests));
        let changes = stability.core90.iter().flat_map(|core| &core.days);
        let core = changes
            .filter(|day| has_pattern(day.requests) && !is_thin(day.day - 1))
            .map(|day| Sample::new("new core-90 %", day.day as f64, [("requests", day.new_share)]));
        Ok(new.chain(core).collect())
    }
}
