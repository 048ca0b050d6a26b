//! Comparison of a live run with a simulated run of the same scenario.
//!
//! The live run is the demo: a switch and nodes as processes on loopback, with a modelled store. The simulator gets the same
//! requests in the same order, the same clients, cache, thresholds, seed and speed, and this machine's CPU costs. The decay
//! time K of `lard-r` is scaled with the speed of the store in both.
//!
//! Unless given, the speed of the store is chosen for each row: the run takes about the requested time, and the simulator
//! expects a CPU utilisation of at most [`CPU_PLANNED`], because a saturated machine would distort the live run.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use larder_core::cache::CacheKind;
use larder_core::{Bytes, PolicyKind, Settings};
use larder_sim::cost::ModelledNode;
use larder_sim::{Arrivals, CacheChoice, Costs, Item, Outcome, Scenario, SimNode, Workload, simulate};
use larder_switch::target_key;
use serde::Serialize;

use larder::demo::plan::Plan;
use larder::demo::result::Figures;
use larder::demo::{Demo, HOST, Setup};

/// Maximum difference of the hit ratios, in percentage points.
pub(crate) const HIT_POINTS_MAX: f64 = 1.5;
/// Maximum relative error of the throughput.
pub(crate) const RATE_ERROR_MAX: f64 = 0.15;
/// CPU utilisation from which a row is invalid.
pub(crate) const CPU_MAX: f64 = 0.70;
/// Planned CPU utilisation of a run.
const CPU_PLANNED: f64 = 0.35;
/// Maximum iterations of the search for a speed.
const ITERATIONS_MAX: u32 = 6;

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct ComparisonCase {
    pub(crate) nodes: u16,
    pub(crate) policy: PolicyKind,
    pub(crate) cache: Bytes,
    pub(crate) cache_kind: CacheKind,
    pub(crate) seed: u64,
    pub(crate) t_low: u32,
    pub(crate) t_high: u32,
    pub(crate) model: ModelledNode,
}

/// Figures of the live or the simulated run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RunFigures {
    /// Hit ratio, 0 to 1.
    pub(crate) hit_ratio: f64,
    /// Requests per second.
    pub(crate) requests_per_s: f64,
    /// Median latency.
    pub(crate) latency_ms_p50: f64,
    /// 99th percentile.
    pub(crate) latency_ms_p99: f64,
    /// CPU utilisation, 0 to 1; in the live run, including other programs.
    pub(crate) cpu_busy: Option<f64>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// The trace.
    pub(crate) trace: String,
    /// Number of nodes.
    pub(crate) nodes: u16,
    /// The policy.
    pub(crate) policy: String,
    /// Memory of each node.
    pub(crate) cache_bytes: u64,
    /// Clients, each with one request outstanding.
    pub(crate) clients: u32,
    /// Speed of the store relative to 1998.
    pub(crate) speed: f64,
    /// Measured requests.
    pub(crate) requests: u64,
    /// Length of the measured part of the live run, in seconds.
    pub(crate) seconds: f64,
    /// Figures of the live run.
    pub(crate) live: RunFigures,
    /// Figures of the simulated run.
    pub(crate) simulated: RunFigures,
    /// Mean utilisation of the simulated disks, 0 to 1.
    pub(crate) disk_busy: f64,
    /// Simulated minus live hit ratio, in percentage points.
    pub(crate) hit_points: f64,
    /// Simulated throughput divided by live throughput, minus one.
    pub(crate) rate_error: f64,
    /// Reasons why the row is invalid; empty if it is valid.
    pub(crate) invalid: Vec<String>,
    /// Whether both errors are within their limits.
    pub(crate) holds: bool,
}

impl ComparisonCase {
    /// The number of clients: just below the admission limit S, so that the cluster is full and no request queues at the switch.
    pub(crate) fn clients(&self) -> u32 {
        (u32::from(self.nodes - 1) * self.t_high + self.t_low).saturating_sub(1).max(1)
    }

    fn scenario(&self, warmup: usize, speed: f64) -> Scenario {
        let node = SimNode { cpu_speed: speed, disk_speed: speed, ..SimNode::with_cache(self.cache) };
        let settings = Settings {
            policy: self.policy,
            seed: self.seed,
            t_low: self.t_low,
            t_high: self.t_high,
            replication_decay: scaled_decay(speed),
            ..Settings::default()
        };
        Scenario {
            nodes: vec![node; usize::from(self.nodes)],
            cache: CacheChoice::Kind(self.cache_kind),
            object_min: Bytes(512),
            arrivals: Arrivals::Closed { clients: self.clients() },
            costs: Costs::Modelled(self.model),
            warmup,
            ..Scenario::lard98(usize::from(self.nodes), settings)
        }
    }

    /// Simulates the run at a speed.
    pub(crate) fn simulate(&self, workload: &Workload, warmup: usize, speed: f64) -> anyhow::Result<Outcome> {
        simulate(workload, &self.scenario(warmup, speed)).context("the simulator rejected the scenario")
    }

    /// Finds a speed at which the run takes about `seconds` and does not saturate the CPUs.
    pub(crate) fn speed(&self, workload: &Workload, seconds: f64) -> anyhow::Result<f64> {
        let mut speed = 1.0;
        for _ in 0..ITERATIONS_MAX {
            let outcome = self.simulate(workload, 0, speed)?;
            let factor = (outcome.seconds / seconds).min(CPU_PLANNED / outcome.front_busy.max(1e-9));
            speed *= factor;
            if (factor - 1.0).abs() < 0.05 {
                break;
            }
        }
        Ok((speed.clamp(0.01, 1e4) * 100.0).round() / 100.0)
    }

    /// Runs the case live and simulated.
    pub(crate) async fn run(&self, larder: &Path, plan: &Plan, speed: f64) -> anyhow::Result<Comparison> {
        let workload = workload(plan);
        let outcome = self.simulate(&workload, plan.warmup, speed)?;
        let setup = Setup {
            larder: larder.to_owned(),
            nodes: usize::from(self.nodes),
            cache_bytes: self.cache.get(),
            cache_kind: self.cache_kind.to_string(),
            policies: vec![self.policy.to_string()],
            seed: self.seed,
            clients: self.clients(),
            t_low: self.t_low,
            t_high: self.t_high,
            speed,
            disk_only: self.model.reply_us == 0.0 && self.model.send_512_us == 0.0,
            runs: 1,
        };
        let report = Demo::new(setup, plan.clone()).run().await?;
        let figures = report.policies.first().context("the live run gave no figures")?.median;
        Ok(self.row(plan, speed, &figures, &outcome, &report.warnings))
    }

    fn row(
        &self,
        plan: &Plan,
        speed: f64,
        live: &Figures,
        outcome: &Outcome,
        warnings: &[String],
    ) -> Comparison {
        let count = outcome.nodes.len().max(1) as f64;
        let simulated = RunFigures {
            hit_ratio: 1.0 - outcome.miss_ratio,
            requests_per_s: outcome.throughput,
            latency_ms_p50: outcome.delay.p50_s * 1e3,
            latency_ms_p99: outcome.delay.p99_s * 1e3,
            cpu_busy: Some(outcome.front_busy),
        };
        let side = RunFigures {
            hit_ratio: live.hit_ratio,
            requests_per_s: live.requests_per_s,
            latency_ms_p50: live.latency_ms_p50,
            latency_ms_p99: live.latency_ms_p99,
            cpu_busy: live.cpu_busy,
        };
        let hit_points = (simulated.hit_ratio - side.hit_ratio) * 100.0;
        let rate_error = simulated.requests_per_s / side.requests_per_s.max(f64::MIN_POSITIVE) - 1.0;
        Comparison {
            trace: plan.info.source.clone(),
            nodes: self.nodes,
            policy: self.policy.to_string(),
            cache_bytes: self.cache.get(),
            clients: self.clients(),
            speed,
            requests: outcome.requests,
            seconds: live.seconds,
            live: side,
            simulated,
            disk_busy: outcome.nodes.iter().map(|node| node.disk_busy).sum::<f64>() / count,
            hit_points,
            rate_error,
            invalid: invalid_reasons(live, warnings),
            holds: hit_points.abs() <= HIT_POINTS_MAX && rate_error.abs() <= RATE_ERROR_MAX,
        }
    }
}

/// Lists the reasons why a live run cannot be compared.
fn invalid_reasons(live: &Figures, warnings: &[String]) -> Vec<String> {
    let mut reasons = Vec::new();
    match live.cpu_busy {
        Some(busy) if busy >= CPU_MAX => {
            reasons.push(format!("the processors were {:.0} % busy", busy * 100.0));
        }
        Some(_) => {}
        None => reasons.push("the CPU utilisation is unknown".to_owned()),
    }
    if live.errors > 0 {
        reasons.push(format!("{} requests failed", live.errors));
    }
    // The demo's warning about busy processors has a higher threshold than this function's.
    let others = warnings
        .iter()
        .filter(|warning| !warning.contains("processors were") && !warning.contains("samples"));
    reasons.extend(others.cloned());
    reasons
}

/// The decay time K, scaled with the speed of the store as the demo does.
fn scaled_decay(speed: f64) -> Duration {
    Duration::try_from_secs_f64(Settings::default().replication_decay.as_secs_f64() / speed)
        .unwrap_or(Duration::MAX)
        .min(Duration::from_secs(24 * 3_600))
}

/// Converts the plan's requests for the simulator, with the target ids of the live switch.
pub(crate) fn workload(plan: &Plan) -> Workload {
    let each = plan.targets.iter().zip(plan.sizes.iter());
    let item = |(target, bytes): (&String, &u64)| {
        Item::file(target_key(HOST.as_bytes(), target.as_bytes()).id(), *bytes)
    };
    Workload { items: each.map(item).collect(), requests: plan.order.to_vec(), times: Vec::new() }
}
