//! The steps of a plan: grid, choice, check, delays, bounds and spreads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Bytes, PolicyKind};

use super::choose::{self, Requirement, USUAL_LOAD};
use super::goal::Goal;
use super::grid;
use super::result::{
    BoundRow, Cell, Check, LoadDelays, LogFacts, Method, Plan, Recommendation, SCHEMA, Spread,
};
use super::run::{self, GridPoint, RunResult, RunSetup};
use super::sample::{Sample, Strata};
use super::unmet_goal::describe_unmet_goal;
use super::{Options, PlanError, Progress, facts};
use crate::SimError;
use crate::bound::Bounds;
use crate::sweep::sweep;
use crate::workload::Workload;

/// The number of requests in all replays of recommended clusters: whole replays if they fit, otherwise the
/// largest sample that fits.
const CHECK_REQUESTS: u64 = 60_000_000;

/// The factor from an error's decrease when the sample size doubles to the error itself, if the error shrinks
/// with the root of the size: `1 / (sqrt(2) - 1)`.
const SMALLNESS: f64 = 2.42;

/// The largest number of checked clusters. A check may change the choice.
const CHECKS_MAX: usize = 2;

/// The state of a plan in progress.
pub(super) struct Study<'w> {
    options: &'w Options,
    progress: &'w (dyn Fn(Progress) + Sync),
    workload: &'w Workload,
    counts: Vec<u32>,
    warmup: usize,
    facts: LogFacts,
    memory: Vec<Bytes>,
    /// The upper bounds, from the whole log.
    bounds: Bounds,
    setup: RunSetup,
    q: u32,
    /// The requested divisor, which is larger than `q` if samples would have been too short.
    wanted: u32,
    /// The number of requests that a sample needs.
    floor: u64,
    hot: usize,
    samples: Arc<[Sample<'w>]>,
    /// Samples at half the rate, which show the influence of the rate.
    coarse: Arc<[Sample<'w>]>,
    load: Option<(f64, String)>,
    runs: usize,
    simulated: u64,
}

impl<'w> Study<'w> {
    pub(super) fn new(
        workload: &'w Workload,
        options: &'w Options,
        progress: &'w (dyn Fn(Progress) + Sync),
    ) -> Result<Self, PlanError> {
        let counts = workload.counts();
        let warmup = (options.warmup * workload.requests.len() as f64) as usize;
        let facts = facts::compute_facts(workload, &counts, warmup);
        let memory =
            if options.memory.is_empty() { grid::choose_memories(&facts) } else { options.memory.clone() };
        let load = load(options, &facts)?;
        let setup = RunSetup {
            settings: options.settings.clone(),
            costs: options.costs,
            cache: options.cache,
            seed: options.seeds.first().copied().unwrap_or(1),
        };
        for nodes in &options.nodes {
            setup.check_settings(GridPoint { policy: PolicyKind::Rr, nodes: *nodes, memory: Bytes(1) })?;
        }
        let smallest = memory.iter().copied().min().unwrap_or(Bytes(1));
        let runs = options.policies.len() * options.nodes.len() * memory.len();
        let most = options.nodes.iter().copied().max().unwrap_or(1);
        let size = grid::GridSize { runs, smallest, outstanding: run::outstanding(&options.settings, most) };
        let q = grid::divisor(workload, &counts, size, options.sampling);
        let wanted = grid::wanted_divisor(workload, &counts, size, options.sampling);
        let draw = |q: u32, most: u32| {
            let strata = Strata::new(workload, &counts, warmup, q, setup.seed);
            (sweep(most.min(q) as usize, |number| strata.sample(number as u32)), strata.hot())
        };
        let draw_all = || {
            if q == 1 {
                return (vec![Sample::whole(workload, warmup)], 0, Vec::new());
            }
            let (samples, hot) = draw(q, grid::SAMPLES);
            (samples, hot, draw(q.saturating_mul(2), grid::COARSE_SAMPLES).0)
        };
        let ((samples, hot, coarse), bounds) =
            rayon::join(draw_all, || Bounds::new(workload, warmup, &options.costs));
        let study = Self {
            options,
            progress,
            workload,
            counts,
            warmup,
            facts,
            memory,
            bounds: bounds?,
            setup,
            q,
            wanted,
            floor: size.floor(),
            hot,
            samples: samples.into(),
            coarse: coarse.into(),
            load,
            runs: 0,
            simulated: 0,
        };
        match study.samples.iter().map(|sample| sample.workload.requests.len()).min() {
            Some(3..) => Ok(study),
            least => Err(PlanError::Option(format!(
                "at this rate a sample has {} requests: sample more, or 'exact'",
                least.unwrap_or(0)
            ))),
        }
    }

    pub(super) fn plan(mut self) -> Result<Plan, PlanError> {
        let options = self.options;
        let points = grid::list_points(&options.policies, &options.nodes, &self.memory);
        let mut cells = self.compute_cells(&points)?;
        self.widen_for_large_objects(&mut cells);
        if matches!(options.goal, Some(Goal::P99(_))) {
            self.add_delays("delays", &mut cells)?;
        }
        let checks = self.check_choice(&mut cells)?;
        let chosen = self.choose(&cells).cloned();
        let mut spreads = Vec::new();
        if let Some(chosen) = &chosen {
            let cluster =
                |cell: &Cell| (cell.nodes, cell.memory_bytes) == (chosen.nodes, chosen.memory_bytes);
            self.load.get_or_insert_with(|| {
                let text = "70 % of the throughput of the recommended cluster at saturation".to_owned();
                (chosen.throughput.value * USUAL_LOAD, text)
            });
            if chosen.at_load.is_none() {
                let mut same: Vec<Cell> = cells.iter().filter(|cell| cluster(cell)).cloned().collect();
                self.add_delays("delays", &mut same)?;
                for cell in &mut cells {
                    if let Some(with) = same.iter().find(|with| cluster(cell) && with.policy == cell.policy) {
                        cell.at_load = with.at_load;
                    }
                }
            }
            spreads = self.measure_spreads(chosen)?;
        }
        let bounds = self.compute_bounds()?;
        Ok(self.into_plan(cells, checks, bounds, spreads))
    }

    fn choose<'c>(&self, cells: &'c [Cell]) -> Option<&'c Cell> {
        choose::choose(cells, self.requirement())
    }

    fn requirement(&self) -> Requirement {
        let options = self.options;
        let load = match options.goal {
            // The load at which delays are shown is not a requirement.
            Some(Goal::Cost) | None => options.load.unwrap_or(0.0),
            Some(_) => self.load.as_ref().map_or(0.0, |(load, _)| *load),
        };
        Requirement {
            goal: options.goal,
            load,
            peak: options.load.or(self.facts.rate_peak),
            prices: options.prices,
        }
    }

    /// Runs jobs on all cores, reports progress and counts the runs.
    fn run(
        &mut self,
        what: &'static str,
        jobs: usize,
        weight: impl Fn(usize) -> u64 + Sync + Send,
        run: impl Fn(usize) -> Result<RunResult, SimError> + Sync + Send,
    ) -> Result<Vec<RunResult>, SimError> {
        let total = (0..jobs).map(&weight).sum();
        let done = AtomicU64::new(0);
        let progress = self.progress;
        progress(Progress { what, done: 0, total });
        let results = sweep(jobs, |job| {
            let results = run(job);
            let done = done.fetch_add(weight(job), Ordering::Relaxed) + weight(job);
            progress(Progress { what, done, total });
            results
        });
        let results: Vec<RunResult> = results.into_iter().collect::<Result<_, _>>()?;
        self.runs += jobs;
        self.simulated += results.iter().map(|results| results.requests_all).sum::<u64>();
        Ok(results)
    }

    /// Runs every grid point on every sample. The change from samples at half the rate shows the bias of
    /// small samples, which has the same direction in all of them. [`SMALLNESS`] times that change is added
    /// to the error.
    fn compute_cells(&mut self, points: &[GridPoint]) -> Result<Vec<Cell>, SimError> {
        let (samples, coarse) = (Arc::clone(&self.samples), Arc::clone(&self.coarse));
        let mut cells = self.run_grid("grid", &samples, points)?;
        if !coarse.is_empty() {
            for (cell, small) in cells.iter_mut().zip(self.run_grid("grid, coarser", &coarse, points)?) {
                let pairs = [
                    (&mut cell.throughput, small.throughput),
                    (&mut cell.hit_ratio, small.hit_ratio),
                    (&mut cell.origin_bytes, small.origin_bytes),
                    (&mut cell.imbalance, small.imbalance),
                ];
                for (fine, small) in pairs {
                    fine.error += SMALLNESS * (fine.value - small.value).abs();
                }
            }
        }
        Ok(cells)
    }

    fn run_grid(
        &mut self,
        what: &'static str,
        samples: &[Sample<'_>],
        points: &[GridPoint],
    ) -> Result<Vec<Cell>, SimError> {
        let setup = self.setup.clone();
        let results = self.run(
            what,
            points.len() * samples.len(),
            |job| samples[job % samples.len()].workload.requests.len() as u64,
            |job| setup.run_saturated(&samples[job % samples.len()], points[job / samples.len()]),
        )?;
        let q = samples.first().map_or(1, |sample| sample.q);
        let runs = results.chunks(samples.len());
        Ok(points.iter().zip(runs).map(|(point, runs)| run::summarise_cell(*point, runs, q)).collect())
    }

    /// Adds the delays at the load to cells.
    fn add_delays(&mut self, what: &'static str, cells: &mut [Cell]) -> Result<(), SimError> {
        let Some((load, _)) = self.load else { return Ok(()) };
        let points: Vec<GridPoint> = cells.iter().filter_map(grid_point).collect();
        let (samples, coarse) = (Arc::clone(&self.samples), Arc::clone(&self.coarse));
        let mut fine = self.run_delays(what, &samples, &points, load)?;
        if !coarse.is_empty() {
            // As for the other values, the change from half the rate is added to the error.
            for (fine, small) in fine.iter_mut().zip(self.run_delays(what, &coarse, &points, load)?) {
                fine.p50_s.error += SMALLNESS * (fine.p50_s.value - small.p50_s.value).abs();
                fine.p99_s.error += SMALLNESS * (fine.p99_s.value - small.p99_s.value).abs();
            }
        }
        for (cell, at) in cells.iter_mut().zip(fine) {
            cell.at_load = Some(at);
        }
        Ok(())
    }

    fn run_delays(
        &mut self,
        what: &'static str,
        samples: &[Sample<'_>],
        points: &[GridPoint],
        load: f64,
    ) -> Result<Vec<LoadDelays>, SimError> {
        let setup = self.setup.clone();
        let results = self.run(
            what,
            points.len() * samples.len(),
            |job| samples[job % samples.len()].workload.requests.len() as u64,
            |job| setup.run_at_load(&samples[job % samples.len()], points[job / samples.len()], load),
        )?;
        let q = samples.first().map_or(1, |sample| sample.q);
        Ok(results.chunks(samples.len().max(1)).map(|runs| run::summarise_delays(load, runs, q)).collect())
    }

    /// Widens the errors for objects that fit a node's memory but not its part in a sample. Their requests
    /// may hit in the log.
    fn widen_for_large_objects(&self, cells: &mut [Cell]) {
        for memory in &self.memory {
            let share = self.share_too_large(*memory);
            for cell in cells.iter_mut().filter(|cell| cell.memory_bytes == memory.get()) {
                cell.hit_ratio.error += share;
                cell.throughput.error += cell.throughput.value * share;
                cell.origin_bytes.error += cell.origin_bytes.value * share;
            }
        }
    }

    fn share_too_large(&self, memory: Bytes) -> f64 {
        if self.q == 1 {
            0.0
        } else {
            grid::share_too_large(self.workload, &self.counts, self.q, memory.get())
        }
    }

    /// Replays the recommended cluster whole, or with a larger sample. Widens the errors of all other cells
    /// by the deviation of the samples. Repeats while this changes the choice.
    fn check_choice(&mut self, cells: &mut [Cell]) -> Result<Vec<Check>, SimError> {
        let mut checks: Vec<Check> = Vec::new();
        let mut left = CHECK_REQUESTS;
        for _ in 0..CHECKS_MAX {
            let Some(chosen) = self.choose(cells) else { break };
            let (nodes, memory) = (chosen.nodes, chosen.memory_bytes);
            if self.q == 1 || checks.iter().any(|check| (check.nodes, check.memory_bytes) == (nodes, memory))
            {
                break;
            }
            let mut at: Vec<usize> = (0..cells.len()).collect();
            at.retain(|at| (cells[*at].nodes, cells[*at].memory_bytes) == (nodes, memory));
            let sample = self.draw_larger_sample(at.len(), left);
            let points: Vec<GridPoint> = at.iter().filter_map(|at| grid_point(&cells[*at])).collect();
            let setup = self.setup.clone();
            let weight = sample.workload.requests.len() as u64;
            left = left.saturating_sub(weight * points.len() as u64).max(CHECK_REQUESTS / 4);
            let results =
                self.run("check", points.len(), |_| weight, |job| setup.run_saturated(&sample, points[job]))?;
            for (at, (point, results)) in at.into_iter().zip(points.iter().zip(&results)) {
                let known = Check::new(&cells[at], results, sample.q);
                widen(cells, &known);
                if sample.q == 1 {
                    let at_load = cells[at].at_load;
                    cells[at] =
                        Cell { at_load, ..run::summarise_cell(*point, core::slice::from_ref(results), 1) };
                }
                checks.push(known);
            }
        }
        Ok(checks)
    }

    /// Returns the whole log if `runs` runs of it are affordable. Otherwise returns the largest affordable
    /// sample, at least as large as the grid's.
    fn draw_larger_sample(&self, runs: usize, left: u64) -> Sample<'w> {
        let all = self.workload.requests.len() as u64 * runs as u64;
        let q = all.div_ceil(left).min(u64::from(self.q)) as u32;
        if q <= 1 {
            return Sample::whole(self.workload, self.warmup);
        }
        Strata::new(self.workload, &self.counts, self.warmup, q.max(2), self.setup.seed ^ 1).sample(0)
    }

    /// Computes the upper bound of every cluster.
    fn compute_bounds(&self) -> Result<Vec<BoundRow>, SimError> {
        let clusters: Vec<(u16, Bytes)> =
            self.options.nodes.iter().flat_map(|n| self.memory.iter().map(move |m| (*n, *m))).collect();
        let rows = sweep(clusters.len(), |at| {
            let (nodes, memory) = clusters[at];
            let bound = self.bounds.of_steady(&self.setup.cluster(nodes, memory))?;
            Ok(BoundRow { nodes, memory_bytes: memory.get(), bound })
        });
        rows.into_iter().collect()
    }

    /// Measures how the chosen cell's values change with the names of the targets and with the part of the
    /// log.
    fn measure_spreads(&mut self, chosen: &Cell) -> Result<Vec<Spread>, SimError> {
        let Some(point) = grid_point(chosen) else { return Ok(Vec::new()) };
        let samples = Arc::clone(&self.samples);
        let Some(sample) = samples.first() else { return Ok(Vec::new()) };
        let seeds = self.options.seeds.clone();
        let (base, warmup, q) = (sample.workload.clone(), sample.warmup, sample.q);
        let half = base.requests.len() / 2;
        let part = |requests: &[u32]| Workload {
            items: base.items.clone(),
            requests: requests.to_vec(),
            times: Vec::new(),
        };
        let halves = [part(&base.requests[..half]), part(&base.requests[half..])];
        let setup = self.setup.clone();
        let share = self.options.warmup;
        let of =
            |workload: &Workload, warmup: usize| setup.run_saturated(&sample.with(workload, warmup), point);
        let results = self.run(
            "spread",
            2 + seeds.len(),
            |job| if job < 2 { half as u64 } else { 2 * half as u64 },
            |job| match job {
                0 | 1 => of(&halves[job], (share * halves[job].requests.len() as f64) as usize),
                2 => of(&base, warmup),
                _ => of(&run::rename_targets(&base, seeds[job - 2]), warmup),
            },
        )?;
        let on = if q == 1 { "" } else { ", on one sample" };
        let mut spreads = Vec::new();
        if seeds.len() > 1 {
            spreads
                .push(find_range(format!("{} seeds (names of the targets){on}", seeds.len()), &results[2..]));
        }
        spreads
            .push(find_range(format!("the first and the second half of the log alone{on}"), &results[..2]));
        Ok(spreads)
    }

    fn into_plan(
        self,
        cells: Vec<Cell>,
        checked: Vec<Check>,
        bounds: Vec<BoundRow>,
        spreads: Vec<Spread>,
    ) -> Plan {
        let options = self.options;
        let requirement = self.requirement();
        let chosen = self.choose(&cells);
        let recommendation = chosen.map(|chosen| {
            let (why_policy, locality_pays) =
                choose::explain_policy(chosen, &cells, &self.facts, requirement.goal);
            Recommendation {
                policy: chosen.policy.clone(),
                nodes: chosen.nodes,
                memory_bytes: chosen.memory_bytes,
                why_cluster: choose::explain_cluster(chosen, &cells, requirement),
                why_policy,
                locality_pays,
                gains: choose::list_gains(chosen, &cells),
                price_per_million: options.prices.map(|prices| prices.per_million(chosen)),
            }
        });
        let unreached = match (chosen, options.goal) {
            (None, Some(goal)) => {
                Some(describe_unmet_goal(&cells, goal, requirement.load, self.facts.cold_share))
            }
            _ => None,
        };
        let method = self.method(checked);
        let mut warnings =
            super::warnings::collect_warnings(&self.facts, &self.memory, &options.nodes, chosen, &spreads);
        warnings.extend(super::warnings::warn_of_small_samples(&method));
        let no_gain = choose::find_low_gain(&cells, &self.facts);
        Plan {
            schema: SCHEMA,
            goal: options.goal.map(|goal| goal.to_string()),
            prices: options.prices,
            load: self.load.clone(),
            method,
            log: self.facts,
            recommendation,
            unreached,
            no_gain,
            spreads,
            warnings,
            cells,
            bounds,
        }
    }

    fn method(&self, checked: Vec<Check>) -> Method {
        let sizes = self.samples.iter().map(|sample| sample.workload.requests.len() as u64);
        Method {
            samples: if self.q == 1 { 0 } else { self.samples.len() },
            rate: 1.0 / f64::from(self.q),
            rate_wanted: 1.0 / f64::from(self.wanted),
            sample_floor: self.floor,
            sample_requests: sizes.sum::<u64>() / self.samples.len().max(1) as u64,
            hot_targets: self.hot as u64,
            too_large_share: self
                .memory
                .iter()
                .map(|memory| self.share_too_large(*memory))
                .fold(0.0, f64::max),
            checked,
            costs: self.options.costs.name().to_owned(),
            cache: self.options.cache.to_string(),
            thresholds: (self.options.settings.t_low, self.options.settings.t_high),
            runs: self.runs,
            requests_simulated: self.simulated,
            seed: self.setup.seed,
        }
    }
}

impl Check {
    fn new(cell: &Cell, results: &RunResult, q: u32) -> Self {
        Self {
            policy: cell.policy.clone(),
            nodes: cell.nodes,
            memory_bytes: cell.memory_bytes,
            exact: q == 1,
            rate: 1.0 / f64::from(q),
            sampled_throughput: cell.throughput,
            throughput: results.throughput(),
            sampled_hit_ratio: cell.hit_ratio,
            hit_ratio: results.hit_ratio(),
        }
    }
}

/// Adds the measured deviation of a policy's samples to the errors of its sampled cells.
fn widen(cells: &mut [Cell], known: &Check) {
    let off = (known.sampled_throughput.value / known.throughput.max(f64::MIN_POSITIVE) - 1.0).abs();
    let hits_off = (known.sampled_hit_ratio.value - known.hit_ratio).abs();
    let misses = (1.0 - known.hit_ratio).max(f64::MIN_POSITIVE);
    for cell in cells.iter_mut().filter(|cell| !cell.exact && cell.policy == known.policy) {
        cell.throughput.error += cell.throughput.value * off;
        cell.hit_ratio.error += hits_off;
        cell.origin_bytes.error += cell.origin_bytes.value * (hits_off / misses).min(1.0);
    }
}

fn grid_point(cell: &Cell) -> Option<GridPoint> {
    let policy = cell.policy.parse().ok()?;
    Some(GridPoint { policy, nodes: cell.nodes, memory: Bytes(cell.memory_bytes) })
}

fn find_range(what: String, results: &[RunResult]) -> Spread {
    let range = |of: fn(&RunResult) -> f64| {
        let values = || results.iter().map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    };
    Spread { what, throughput: range(RunResult::throughput), hit_ratio: range(RunResult::hit_ratio) }
}

/// Returns the load that goals refer to, with its source.
fn load(options: &Options, facts: &LogFacts) -> Result<Option<(f64, String)>, PlanError> {
    if let Some(load) = options.load {
        return Ok(Some((load, "as stated".to_owned())));
    }
    if !options.goal.is_some_and(Goal::needs_load) {
        return Ok(None);
    }
    let goal = options.goal.map(|goal| goal.to_string()).unwrap_or_default();
    match facts.rate_peak {
        Some(peak) => Ok(Some((peak, "the log's busiest minute".to_owned()))),
        None => Err(PlanError::Option(format!(
            "the goal {goal} needs a load (--load): the log has no times, or one time only"
        ))),
    }
}
