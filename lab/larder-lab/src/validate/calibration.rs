//! CPU time of a request on this machine, measured on a live switch, node and clients on loopback.
//!
//! The cluster has one switch and one node with all contents in memory; a few clients run a closed loop for some seconds for
//! each reply size. CPU time is the kernel's account of each process (`/proc/PID/task/*/schedstat`, in ns) divided by the
//! number of finished requests; for the clients, the clocks of their threads. A line is fitted over the sizes for each.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_load::Arrivals;
use larder_sim::Costs;
use larder_sim::cost::{ModelledNode, Modern, NodeCosts, RequestCost, SwitchCosts};
use serde::Serialize;

use super::linear_fit::LinearFit;
use larder::demo::cluster::{Cluster, ClusterSpec};
use larder::demo::cpu::CpuTime;

/// Reply sizes. Bytes.
const SIZES: [u64; 7] = [512, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
/// Number of clients. It is small, because a saturated cluster does its work in larger batches.
const CLIENTS: u32 = 4;
/// Maximum utilisation of the cores by other programs. Above it, the figures are in doubt.
const OTHERS_MAX: f64 = 0.1;
/// Maximum relative error of a fit. Above it, the figures are in doubt.
const RESIDUAL_MAX: f64 = 0.25;
/// Number of waits for the measurement of timer delays.
const WAITS: u32 = 400;

/// Costs for one reply size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SizeCost {
    /// Size of the reply.
    pub(crate) bytes: u64,
    /// Requests measured.
    pub(crate) requests: u64,
    /// CPU time of the node for a request, in us.
    pub(crate) node_us: f64,
    /// CPU time of the switch for a request, in us.
    pub(crate) switch_us: f64,
    /// CPU time of the client for a request, in us.
    pub(crate) client_us: f64,
}

/// A fitted cost and its error.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FittedCost {
    /// The cost.
    pub(crate) cost: RequestCost,
    /// Largest relative error over the sizes, 0 to 1.
    pub(crate) residual_max: f64,
}

/// The result of a calibration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Calibration {
    /// Cores of the machine.
    pub(crate) cores: u32,
    /// Costs by size.
    pub(crate) points: Vec<SizeCost>,
    /// Cost of the node.
    pub(crate) node: FittedCost,
    /// Cost of the switch.
    pub(crate) switch: FittedCost,
    /// Cost of the clients.
    pub(crate) client: FittedCost,
    /// Mean delay of timers, in us.
    pub(crate) timer_late_us: f64,
    /// Utilisation of the cores by other programs, 0 to 1.
    pub(crate) others: Option<f64>,
    /// Reasons to doubt the figures.
    pub(crate) warnings: Vec<String>,
}

/// Runs the calibration in about `seconds`. `show` is called with the current step.
pub(crate) async fn measure(larder: &Path, seconds: f64, show: &dyn Fn(&str)) -> anyhow::Result<Calibration> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let manifest = folder.path().join("manifest.tsv");
    let lines: String = SIZES.iter().map(|bytes| format!("{bytes}\t/{bytes}\n")).collect();
    std::fs::write(&manifest, lines).context("cannot write the list of targets")?;
    show("timers");
    let timer_late_us = timer_delay_us().await;
    let cluster = Cluster::start(&spec(larder, &manifest), "rr").await?;
    let members = cluster.process_ids();
    let before = CpuTime::now(&members);
    let each = Duration::from_secs_f64(seconds / SIZES.len() as f64);
    let mut points = Vec::new();
    for bytes in SIZES {
        show(&format!("replies of {}", larder_core::Bytes(bytes)));
        points.push(measure_size(&cluster, &members, bytes, each).await?);
    }
    let busy = CpuTime::now(&members).zip(before).and_then(|(now, before)| now.busy_since(before));
    cluster.stop().await;
    let others = busy.map(|busy| (busy.all - busy.own).max(0.0));
    Ok(Calibration::new(points, timer_late_us, others))
}

fn spec(larder: &Path, manifest: &Path) -> ClusterSpec {
    ClusterSpec {
        larder: larder.to_owned(),
        nodes: 1,
        cache_bytes: 64 << 20,
        cache_kind: "lru".to_owned(),
        manifest: manifest.to_owned(),
        speed: 1e6,
        disk_only: true,
        seed: 1,
        t_low: 25,
        t_high: 65,
        replication_decay: Duration::from_secs(20),
        config: None,
    }
}

/// Measures one size for `span`. The first requests, which fill the memory, are negligible.
async fn measure_size(
    cluster: &Cluster,
    members: &[u32],
    bytes: u64,
    span: Duration,
) -> anyhow::Result<SizeCost> {
    let [node, switch, _] = members else { bail!("the cluster is not one node and a switch") };
    let index = SIZES.iter().position(|size| *size == bytes).unwrap_or(0) as u32;
    let targets: Arc<[String]> = SIZES.iter().map(|bytes| format!("/{bytes}")).collect();
    let plan = larder_load::Plan {
        arrivals: Arrivals::Closed { clients: CLIENTS },
        duration: Some(span),
        warmup_requests: 0,
        expected_sizes: Some(SIZES.to_vec().into()),
        ..larder_load::Plan::new(cluster.address, "calibrate", targets, vec![index].into())
    };
    let cpu_times =
        || process_ns(*node).zip(process_ns(*switch)).context("cannot read CPU times of the processes");
    let before = cpu_times()?;
    let report = larder_load::run(plan, &|_| {}).await.context("the load generator failed")?;
    let after = cpu_times()?;
    if report.failed > 0 || report.ok < 100 {
        bail!("too few good requests for {bytes} bytes: {} good, {} failed", report.ok, report.failed);
    }
    let per_request = |before: u64, after: u64| (after - before) as f64 / 1e3 / report.finished as f64;
    Ok(SizeCost {
        bytes,
        requests: report.finished,
        node_us: per_request(before.0, after.0),
        switch_us: per_request(before.1, after.1),
        client_us: report.generator.cpu_us_per_request,
    })
}

/// CPU time of all threads of a process, in ns.
fn process_ns(id: u32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).ok()?;
    let each = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    Some(each.sum())
}

/// Mean delay of timers, in us, over waits that are not whole milliseconds.
async fn timer_delay_us() -> f64 {
    let mut late = Duration::ZERO;
    for wait in 0..WAITS {
        let due = Instant::now() + Duration::from_micros(300 + u64::from(wait * 7_919 % 4_000));
        tokio::time::sleep_until(due.into()).await;
        late += due.elapsed();
    }
    late.as_secs_f64() * 1e6 / f64::from(WAITS)
}

impl Calibration {
    fn new(points: Vec<SizeCost>, timer_late_us: f64, others: Option<f64>) -> Self {
        let fit = |of: fn(&SizeCost) -> f64| fit_cost(&points, of);
        let (node, switch, client) = (fit(|p| p.node_us), fit(|p| p.switch_us), fit(|p| p.client_us));
        let mut warnings = Vec::new();
        if let Some(others) = others.filter(|others| *others > OTHERS_MAX) {
            warnings.push(format!("other programs used {:.0} % of the processors meanwhile", others * 100.0));
        }
        for (name, fitted) in [("node", node), ("switch", switch), ("client", client)] {
            if fitted.residual_max > RESIDUAL_MAX {
                let off = fitted.residual_max * 100.0;
                warnings
                    .push(format!("the {name}'s times are not linear in the size: {off:.0} % off at worst"));
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Self { cores, points, node, switch, client, timer_late_us, others, warnings }
    }

    /// The cost model of switch and nodes on other hardware.
    pub(crate) fn modern(&self) -> Modern {
        let (node, switch, base) = (self.node.cost, self.switch.cost, Modern::default());
        Modern {
            node: NodeCosts { request_us: node.request_us, kib_us: node.kib_us, ..base.node },
            switch: SwitchCosts { request_us: switch.request_us, kib_us: switch.kib_us, ..base.switch },
            ..base
        }
    }

    /// The cost model of the demo's cluster on this machine.
    pub(crate) fn modelled(&self) -> ModelledNode {
        let sum = |of: fn(&RequestCost) -> f64| {
            [self.node, self.switch, self.client].iter().map(|fitted| of(&fitted.cost)).sum()
        };
        let base = ModelledNode::default();
        ModelledNode {
            cores: self.cores,
            machine: RequestCost { request_us: sum(|cost| cost.request_us), kib_us: sum(|cost| cost.kib_us) },
            // Rounding up to whole ticks adds half a tick on average; the model's `late_us` is the rest.
            late_us: (self.timer_late_us - base.timer_us / 2.0).max(0.0).round(),
            ..base
        }
    }

    /// Formats a cost model file for `--costs`.
    ///
    /// # Errors
    /// If the model cannot be written as TOML.
    pub(crate) fn to_toml(&self, costs: &Costs) -> anyhow::Result<String> {
        let mut text = format!(
            "# Measured by `larder-lab calibrate` on {} cores; largest error of the fitted lines: node {:.0} %, switch \
             {:.0} %.\n# What is not processor time of switch and node is the model's default.\n",
            self.cores,
            self.node.residual_max * 100.0,
            self.switch.residual_max * 100.0
        );
        for warning in &self.warnings {
            text.push_str(&format!("# In doubt: {warning}.\n"));
        }
        text.push_str(&toml::to_string(costs)?);
        Ok(text)
    }
}

/// Fits a cost over the sizes.
fn fit_cost(points: &[SizeCost], of: fn(&SizeCost) -> f64) -> FittedCost {
    let kib = |point: &SizeCost| point.bytes as f64 / 1_024.0;
    let all: Vec<(f64, f64)> = points.iter().map(|point| (kib(point), of(point).max(1e-3))).collect();
    let line = LinearFit::through(&all);
    let off = all.iter().map(|(x, y)| (line.at(*x) / y - 1.0).abs());
    let round = |value: f64| (value * 1e3).round() / 1e3;
    FittedCost {
        cost: RequestCost { request_us: round(line.base), kib_us: round(line.slope) },
        residual_max: off.fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node 20 us and 0.25 us per KiB, switch twice that, client half.
    fn measured(others: Option<f64>) -> Calibration {
        let point = |bytes: u64| {
            let us = 20.0 + 0.25 * bytes as f64 / 1_024.0;
            SizeCost { bytes, requests: 1_000, node_us: us, switch_us: 2.0 * us, client_us: us / 2.0 }
        };
        Calibration::new(SIZES.map(point).to_vec(), 1_200.0, others)
    }

    #[test]
    fn cost_models_survive_a_round_trip() {
        let calibration = measured(Some(0.02));
        assert_eq!(calibration.warnings, Vec::<String>::new());
        let modern = calibration.modern();
        assert_eq!((modern.node.request_us, modern.node.kib_us), (20.0, 0.25));
        assert_eq!((modern.switch.request_us, modern.switch.kib_us), (40.0, 0.5));
        let modelled = calibration.modelled();
        assert_eq!(modelled.machine, RequestCost { request_us: 70.0, kib_us: 0.875 });
        assert_eq!(modelled.late_us, 700.0);
        for costs in [Costs::Modern(modern), Costs::Modelled(modelled)] {
            let text = calibration.to_toml(&costs).unwrap();
            assert_eq!(Costs::from_toml(&text), Ok(costs), "{text}");
        }
    }

    #[test]
    fn a_busy_machine_and_a_bad_fit_are_warned_of() {
        assert!(measured(Some(0.3)).warnings[0].contains("30 %"));
        let mut points = measured(None).points;
        points[3].node_us *= 3.0;
        let doubtful = Calibration::new(points, 1_000.0, None);
        assert!(doubtful.warnings[0].contains("the node's times are not linear"), "{doubtful:?}");
        assert!(doubtful.to_toml(&Costs::Modern(doubtful.modern())).unwrap().contains("# In doubt"));
    }

    #[test]
    fn the_cpu_time_of_this_process_is_positive() {
        assert!(process_ns(std::process::id()).is_some_and(|ns| ns > 0));
        assert_eq!(process_ns(u32::MAX), None);
    }
}
