//! Runs of a grid point, and the estimates from several runs.

use core::time::Duration;
use std::sync::Arc;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Request, Settings};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, Dispatcher, NodeId, NodeSpec, PolicyKind, TargetId, Time};

use super::REPORT_EVERY;
use super::policies::scale_times;
use super::result::{Cell, Estimate, LoadDelays};
use super::sample::Sample;
use crate::cost::Costs;
use crate::source::{ClientRequest, RequestSource};
use crate::tables::{compute_initial_table, needs_table};
use crate::ward_costs::measure_ward_costs;
use crate::{Outcome, Scenario, SimError, SimNode, Workload, simulate, simulate_with};

/// A point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GridPoint {
    pub(super) policy: PolicyKind,
    pub(super) nodes: u16,
    pub(super) memory: Bytes,
}

/// The parameters that all runs share.
#[derive(Clone, Debug)]
pub(super) struct RunSetup {
    pub(super) settings: Settings,
    pub(super) costs: Costs,
    pub(super) cache: CacheKind,
    pub(super) seed: u64,
}

/// The values of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunResult {
    throughput: f64,
    hit_ratio: f64,
    origin_bytes: f64,
    imbalance: f64,
    cpu_busy: f64,
    front_busy: f64,
    p50_s: f64,
    p99_s: f64,
    node_shares: Vec<f64>,
    refused_share: f64,
    pub(super) requests_all: u64,
}

impl RunResult {
    fn new(outcome: &Outcome) -> Self {
        let nodes = outcome.nodes.len() as f64;
        let requests = outcome.requests.max(1) as f64;
        Self {
            // The drain at the end takes the same time in a sample as in the log, so it would weigh more in a
            // sample.
            throughput: outcome.steady_throughput,
            // A request that waits for another request's read causes no read. In a sample this is more
            // frequent, because the same number of requests in flight meets fewer targets. It must not count
            // as a miss.
            hit_ratio: (outcome.hits + outcome.shared) as f64 / requests,
            origin_bytes: outcome.bytes_read as f64 / requests,
            imbalance: outcome.imbalance,
            cpu_busy: outcome.nodes.iter().map(|node| node.cpu_busy).sum::<f64>() / nodes,
            front_busy: outcome.front_busy,
            p50_s: outcome.delay.p50_s,
            p99_s: outcome.delay.p99_s,
            node_shares: outcome.nodes.iter().map(|node| node.requests as f64 * nodes / requests).collect(),
            refused_share: outcome.refused as f64 / (outcome.refused as f64 + requests),
            requests_all: outcome.requests_all,
        }
    }

    pub(super) const fn throughput(&self) -> f64 {
        self.throughput
    }

    pub(super) const fn hit_ratio(&self) -> f64 {
        self.hit_ratio
    }
}

/// Returns S of the LARD paper (section 2.4): the largest number of requests in flight.
pub(super) fn outstanding(settings: &Settings, nodes: u16) -> u64 {
    let (low, high) = (u64::from(settings.t_low), u64::from(settings.t_high));
    (u64::from(nodes).saturating_sub(1) * high + low).saturating_sub(1)
}

impl RunSetup {
    fn scenario(&self, sample: &Sample<'_>, warmup: usize, point: GridPoint) -> Result<Scenario, SimError> {
        let memory = Bytes((point.memory.get() / u64::from(sample.q)).max(1));
        let nodes = vec![SimNode::with_cache(memory); point.nodes as usize];
        let table = if needs_table(point.policy) { Some(self.table(sample, &nodes)?) } else { None };
        let settings = Settings {
            policy: point.policy,
            // All targets are remembered. The generated config states this if the default is too small.
            targets_max: sample.workload.items.len().max(1_024),
            table,
            ..scale_times(&self.settings, sample.q)
        };
        Ok(Scenario {
            nodes,
            cache: crate::CacheChoice::Kind(self.cache),
            costs: self.costs,
            warmup,
            report_every: Some((REPORT_EVERY / sample.q).max(Duration::from_millis(1))),
            ..Scenario::lard98(point.nodes as usize, settings)
        })
    }

    /// Returns the cluster of a grid point for a bound, which no policy changes.
    pub(super) fn cluster(&self, nodes: u16, memory: Bytes) -> Scenario {
        let settings = Settings { policy: PolicyKind::Rr, table: None, ..self.settings.clone() };
        Scenario {
            nodes: vec![SimNode::with_cache(memory); nodes as usize],
            cache: crate::CacheChoice::Kind(self.cache),
            costs: self.costs,
            ..Scenario::lard98(nodes as usize, settings)
        }
    }

    /// Computes the routing table from the warm-up, or from a third of the requests if there is no warm-up.
    fn table(&self, sample: &Sample<'_>, nodes: &[SimNode]) -> Result<Arc<RouteTable>, SimError> {
        let first = if sample.warmup == 0 { sample.workload.requests.len() / 3 } else { sample.warmup };
        let mean = sample.workload.bytes() / sample.workload.items.len().max(1) as u64;
        let table =
            compute_initial_table(&sample.workload, first, nodes, &measure_ward_costs(&self.costs, mean)?)?;
        Ok(Arc::new(table))
    }

    /// Runs a sample at saturation: S requests are outstanding.
    pub(super) fn run_saturated(&self, sample: &Sample<'_>, point: GridPoint) -> Result<RunResult, SimError> {
        let (workload, warmup) = sample.with_hot_warmup(point);
        simulate(&workload, &self.scenario(sample, warmup, point)?).map(|outcome| RunResult::new(&outcome))
    }

    /// Runs a sample with Poisson arrivals of `load` requests per second.
    pub(super) fn run_at_load(
        &self,
        sample: &Sample<'_>,
        point: GridPoint,
        load: f64,
    ) -> Result<RunResult, SimError> {
        let clients = outstanding(&self.settings, point.nodes) as usize;
        let (workload, warmup) = sample.with_hot_warmup(point);
        let source = PoissonArrivals::new(&workload.requests, (warmup, clients), load, self.seed);
        let scenario = self.scenario(sample, warmup, point)?;
        simulate_with(&workload, &scenario, Box::new(source)).map(|outcome| RunResult::new(&outcome))
    }

    /// Checks the settings by creating a dispatcher.
    pub(super) fn check_settings(&self, point: GridPoint) -> Result<(), SimError> {
        let specs: Vec<NodeSpec> =
            (0..point.nodes).map(|index| NodeSpec::named(format!("n{index}"))).collect();
        let settings = Settings { nodes_max: point.nodes, policy: point.policy, ..self.settings.clone() };
        let dispatcher = Dispatcher::new(settings, &specs)?;
        let _ = dispatcher.explain_request(Time::ZERO, &Request::new(TargetId(0)));
        Ok(())
    }
}

/// A Poisson arrival process after a closed-loop warm-up. During the warm-up, a saturating number of clients
/// each wait for their reply. Cold memories at the full load would fill the queue, and the resulting refusals
/// would say nothing of the warm cluster.
struct PoissonArrivals<'w> {
    requests: &'w [u32],
    warmup: usize,
    clients: usize,
    next: usize,
    at: Time,
    load: f64,
    seed: u64,
}

impl<'w> PoissonArrivals<'w> {
    fn new(requests: &'w [u32], (warmup, clients): (usize, usize), load: f64, seed: u64) -> Self {
        Self { requests, warmup, clients: clients.max(1), next: 0, at: Time::ZERO, load, seed }
    }

    /// Returns the exponentially distributed gap before request `n`, in seconds.
    fn gap_s(&self, n: usize) -> f64 {
        let hash =
            TargetId::of_parts(&[&self.seed.to_le_bytes(), b"plan arrivals", &(n as u64).to_le_bytes()]).0;
        let unit = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -libm::log(unit) / self.load
    }
}

impl RequestSource for PoissonArrivals<'_> {
    fn next_time(&self) -> Option<Time> {
        if self.next >= self.warmup {
            return (self.next < self.requests.len()).then_some(self.at);
        }
        (self.next < self.clients).then_some(Time::ZERO)
    }

    fn next_request(&mut self, now: Time) -> Option<ClientRequest> {
        let item = *self.requests.get(self.next)?;
        self.next += 1;
        if self.next >= self.warmup {
            let gap_ns = (self.gap_s(self.next) * 1e9) as u64;
            self.at = Time::from_nanos(now.as_nanos().saturating_add(gap_ns));
        }
        Some(ClientRequest::new(item, 0))
    }

    fn handle_end(
        &mut self,
        now: Time,
        _tag: u32,
        _served: Option<NodeId>,
        requests: &mut Vec<ClientRequest>,
    ) {
        if self.next < self.warmup {
            requests.extend(self.next_request(now));
        }
    }
}

/// Student's t for a two-sided interval of 95 %, by degrees of freedom from 1.
const T95: [f64; 7] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36];

/// Returns the mean of disjoint samples with its confidence interval. `q` samples would cover the whole log.
pub(super) fn estimate(values: &[f64], q: u32) -> Estimate {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    if values.len() < 2 || q <= 1 {
        return Estimate::exact(mean);
    }
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (count - 1.0);
    let t = T95[(values.len() - 2).min(T95.len() - 1)];
    let left = (1.0 - count / f64::from(q)).max(0.0);
    Estimate { value: mean, error: t * (variance / count * left).sqrt() }
}

/// Combines the runs of the samples into a cell.
pub(super) fn summarise_cell(point: GridPoint, runs: &[RunResult], q: u32) -> Cell {
    let of = |part: fn(&RunResult) -> f64| estimate(&runs.iter().map(part).collect::<Vec<f64>>(), q);
    let mean = |part: fn(&RunResult) -> f64| of(part).value;
    let share = |node: usize| {
        runs.iter().map(|run| run.node_shares.get(node).copied().unwrap_or(0.0)).sum::<f64>()
            / runs.len() as f64
    };
    Cell {
        policy: point.policy.name().to_owned(),
        nodes: point.nodes,
        memory_bytes: point.memory.get(),
        exact: q == 1,
        throughput: of(|run| run.throughput),
        hit_ratio: of(|run| run.hit_ratio),
        origin_bytes: of(|run| run.origin_bytes),
        imbalance: of(|run| run.imbalance),
        cpu_busy: mean(|run| run.cpu_busy),
        front_busy: mean(|run| run.front_busy),
        p50_s: mean(|run| run.p50_s),
        p99_s: mean(|run| run.p99_s),
        node_shares: (0..point.nodes as usize).map(share).collect(),
        at_load: None,
    }
}

/// Combines the runs of the samples into the delays at a load.
pub(super) fn summarise_delays(load: f64, runs: &[RunResult], q: u32) -> LoadDelays {
    let of = |part: fn(&RunResult) -> f64| estimate(&runs.iter().map(part).collect::<Vec<f64>>(), q);
    LoadDelays {
        load,
        exact: q == 1,
        p50_s: of(|run| run.p50_s),
        p99_s: of(|run| run.p99_s),
        refused_share: of(|run| run.refused_share).value,
    }
}

/// Renames the targets of a workload, so that hash placement changes. Seed 0 keeps the names.
pub(super) fn rename_targets(workload: &Workload, seed: u64) -> Workload {
    let mut workload = workload.clone();
    if seed != 0 {
        for item in &mut workload.items {
            item.id = TargetId::of_parts(&[&seed.to_le_bytes(), b"plan names", &item.id.0.to_le_bytes()]);
        }
    }
    workload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_follow_the_t_distribution() {
        // The mean is 10 and the standard deviation 2 over three values: the error is 4.30 * 2 / sqrt(3), and
        // 0 once all samples are drawn.
        let part = estimate(&[8.0, 10.0, 12.0], u32::MAX);
        assert!((part.value - 10.0).abs() < 1e-12 && (part.error - 4.30 * 2.0 / 3_f64.sqrt()).abs() < 1e-6);
        assert!(estimate(&[8.0, 10.0, 12.0], 3).error < 1e-9);
        assert_eq!(estimate(&[7.0], 1), Estimate::exact(7.0));
    }

    #[test]
    fn arrivals_come_at_the_load() {
        let requests = vec![0; 20_000];
        let mut source = PoissonArrivals::new(&requests, (0, 1), 500.0, 1);
        let mut last = Time::ZERO;
        while let Some(at) = source.next_time() {
            assert!(at >= last);
            last = at;
            source.next_request(at);
        }
        // 20,000 gaps of 2 ms, within four standard deviations of the sum.
        assert!((last.as_nanos() as f64 / 1e9 - 40.0).abs() < 4.0 * 0.002 * 20_000_f64.sqrt());
    }
}
