//! `ward-days-cluster`: the value of yesterday's table for today's requests, by the real protocol
//! (HPL-2001-2, section 3.4, figure 10).
//!
//! In each pair of consecutive whole days, the first is the warm-up and is counted, and the second is
//! measured. Lines:
//!
//! * `WARD, yesterday`: the table that the nodes compute from their own counts of the first day;
//! * `WARD, today`: the table of the second day's log. It is installed at a node at the time when the nodes
//!   of `WARD, yesterday` compute theirs, and this node spreads it;
//! * `WARD, refreshed`: as `WARD, yesterday`, with further tables every `refresh_s` during the day;
//! * `PART, today`: as `WARD, today`, without a core.
//!
//! `[params]`: the fields of [`Point`], of which `requests`, `warmup`, `memory_mb` and `table_after` are
//! ignored, and `over_nodes`. A node's memory is `memory_share` of the mean day's working set. Metrics:
//! `throughput`, `hit_rate`, `local` (means over the days), `loss`, `loss_most` (of `WARD, yesterday` and
//! `WARD, refreshed` against `WARD, today`: mean and worst day), `tables` (per day).

use std::sync::Arc;

use larder_core::Bytes;
use larder_core::peers::WardSettings;
use larder_core::policy::table::RouteTable;
use larder_trace::ward::{CoreChoice, Frequencies, Frequency, WardCluster, ward_analysis};
use serde::Deserialize;

use super::point::Point;
use super::{WARD, merge_defaults};
use crate::PaperError;
use crate::builtin::{Builtin, Plan, params};
use crate::report::Sample;
use crate::traces::Traces;
use larder_sim::Workload;
use larder_sim::cooperation::{
    CooperationOutcome, CooperativeCluster, PresetTable, ServerKind, WardSetup, cooperate,
};

/// The builtin `ward-days-cluster`.
#[derive(Debug)]
pub(crate) struct WardDays;

#[derive(Deserialize)]
struct NodeCounts {
    over_nodes: Vec<u16>,
}

#[derive(Debug)]
struct DaysPlan {
    point: Point,
    over_nodes: Vec<u16>,
}

/// The smallest number of requests of a day. A day with fewer requests has no usable pattern.
const DAY_REQUESTS_MIN: usize = 500;
const LINES: [&str; 4] = ["WARD, today", "WARD, yesterday", "WARD, refreshed", "PART, today"];

impl Builtin for WardDays {
    fn name(&self) -> &'static str {
        "ward-days-cluster"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let mut rest = merge_defaults(WARD, table);
        let own = rest.remove("over_nodes").map(|value| ("over_nodes".to_owned(), value));
        let NodeCounts { over_nodes } = params(&own.into_iter().collect())?;
        if over_nodes.is_empty() || over_nodes.len() > 32 || over_nodes.contains(&0) {
            return Err("over_nodes: must be 1 to 32 numbers from 1".to_owned());
        }
        let point: Point = params(&rest)?;
        point.check()?;
        if point.refresh_s == 0.0 || point.memory_share == 0.0 {
            return Err("refresh_s and memory_share: must be above 0".to_owned());
        }
        Ok(Box::new(DaysPlan { point, over_nodes }))
    }
}

/// Two consecutive days.
struct DayPair {
    workload: Workload,
    yesterday: usize,
    memory: Bytes,
}

impl DayPair {
    /// Computes the table of the second day's log.
    fn compute_today_table(
        &self,
        cluster: &CooperativeCluster,
        core: CoreChoice,
    ) -> Result<Arc<RouteTable>, PaperError> {
        let wrong = |error: String| PaperError::Builtin(error);
        let mut counts = vec![0_u64; self.workload.items.len()];
        for item in &self.workload.requests[self.yesterday..] {
            counts[*item as usize] += 1;
        }
        let rows = (0_u32..).zip(&self.workload.items).zip(counts).filter(|(_, requests)| *requests > 0);
        let log = Frequencies::from_rows(rows.map(|((target, item), requests)| Frequency {
            target,
            requests,
            bytes: item.bytes,
        }));
        let mean_bytes = self.workload.bytes() / self.workload.items.len().max(1) as u64;
        let on = WardCluster {
            nodes: cluster.nodes,
            memory_per_node: self.memory,
            costs: cluster.costs.ward_costs(mean_bytes, cluster.forwarding),
        };
        let analysis = ward_analysis(&log, &on, core).map_err(|error| wrong(error.to_string()))?;
        let table = analysis.route_table(|item| self.workload.items[item as usize].id);
        Ok(Arc::new(table.map_err(|error| wrong(error.to_string()))?))
    }

    fn run(&self, point: &Point, line: &str) -> Result<CooperationOutcome, PaperError> {
        let server = if line.starts_with("PART") { ServerKind::Part } else { ServerKind::Ward };
        let cluster = point.cluster(server, &self.workload, self.yesterday);
        let usual = WardSetup::default().settings;
        let setup = match line {
            "WARD, refreshed" => {
                // Each table is computed from the requests since the last one, even if they are few.
                let settings = WardSettings { first_requests: 1_000, ..cluster.ward.settings };
                WardSetup { settings, ..cluster.ward.clone() }
            }
            "WARD, yesterday" => {
                let settings = WardSettings { refresh: usual.refresh, ..cluster.ward.settings };
                WardSetup { settings, ..cluster.ward.clone() }
            }
            _ => {
                let core = if server == ServerKind::Part { CoreChoice::Targets(0) } else { CoreChoice::Best };
                let settings = WardSettings { refresh: None, ..cluster.ward.settings };
                // The table is installed when the nodes of the other line compute theirs. Both lines'
                // memories then have the same history.
                let after = (self.yesterday as f64 * point.table_after) as usize;
                let preset = Some(PresetTable { after, table: self.compute_today_table(&cluster, core)? });
                WardSetup { settings, preset, ..cluster.ward.clone() }
            }
        };
        let cluster = CooperativeCluster { memory: self.memory, ward: setup, ..cluster };
        Ok(cooperate(&self.workload, &cluster)?)
    }
}

impl Plan for DaysPlan {
    fn lines(&self) -> Vec<String> {
        LINES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "hit_rate", "local", "tables", "loss", "loss_most"]
    }

    fn jobs(&self) -> usize {
        self.over_nodes.len()
    }

    fn key(&self, job: usize) -> String {
        format!("ward-days-cluster {:?} {}", self.point, self.over_nodes[job])
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let nodes = self.over_nodes[job];
        let point = Point { nodes: u32::from(nodes), table_after: 0.9, ..self.point.clone() };
        let trace = traces.trace(&point.workload()?)?;
        let whole = |day: &larder_trace::Day| day.is_whole && day.requests.len() >= DAY_REQUESTS_MIN;
        let days: Vec<_> = trace.days().into_iter().filter(whole).collect();
        let set = |day: &larder_trace::Day| Workload::from_trace(&trace.part(day.requests.clone())).bytes();
        let sets: u64 = days.iter().map(set).sum();
        let memory = (sets as f64 / days.len().max(1) as f64 * point.memory_share) as u64;
        // The outcomes of each line, by pair of days.
        let mut outcomes: [Vec<CooperationOutcome>; LINES.len()] = Default::default();
        for two in days.windows(2).filter(|two| two[0].number + 1 == two[1].number) {
            let part = trace.part(two[0].requests.start..two[1].requests.end);
            let yesterday = two[0].requests.len();
            let pair = DayPair { workload: Workload::from_trace(&part), yesterday, memory: Bytes(memory) };
            for (line, of) in LINES.iter().zip(&mut outcomes) {
                of.push(pair.run(&point, line)?);
            }
        }
        if outcomes[0].is_empty() {
            return Err(PaperError::Builtin(
                "the workload has no two whole days after each other".to_owned(),
            ));
        }
        let sample = |(line, of): (&str, &Vec<CooperationOutcome>)| sample(line, nodes, of, &outcomes[0]);
        Ok(LINES.into_iter().zip(&outcomes).map(sample).collect())
    }
}

fn sample(line: &str, nodes: u16, of: &[CooperationOutcome], today: &[CooperationOutcome]) -> Sample {
    let mean =
        |values: &dyn Fn(&CooperationOutcome) -> f64| of.iter().map(values).sum::<f64>() / of.len() as f64;
    let mut values = vec![
        ("throughput", mean(&|outcome| outcome.throughput)),
        ("hit_rate", mean(&|outcome| outcome.hit_rate)),
        ("local", mean(&|outcome| 1.0 - outcome.forwarded_share)),
        ("tables", mean(&|outcome| outcome.tables.made as f64)),
    ];
    if line == LINES[1] || line == LINES[2] {
        let loss = of.iter().zip(today).map(|(of, today)| 1.0 - of.throughput / today.throughput);
        let losses: Vec<f64> = loss.collect();
        let most = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        values.extend([("loss", losses.iter().sum::<f64>() / losses.len() as f64), ("loss_most", most)]);
    }
    Sample::new(line, f64::from(nodes), values)
}
