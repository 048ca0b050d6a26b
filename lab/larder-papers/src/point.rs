//! The values of one run of a sweep.

use std::collections::BTreeMap;

use super::PaperError;
use super::cluster::{CeilingKind, RunKind, RunSpec};
use super::traces::Traces;
use larder_sim::cost::{Costs, Lard98};
use larder_sim::outcome::Outcome;
use larder_sim::{Scenario, Workload, ceiling, simulate};

/// The metrics of a sweep, measured at each point.
///
/// | metric | meaning |
/// |---|---|
/// | `throughput` | requests served per simulated second, whole cluster |
/// | `throughput_node` | requests served per simulated second and node |
/// | `miss_ratio`, `hit_ratio` | share of requests not found, found in the memory of the node that served, 0 to 1 |
/// | `idle_share` | share of the time that a node is underutilised, mean over nodes, 0 to 1 |
/// | `delay_mean_s`, `delay_p50_s`, `delay_p90_s`, `delay_p99_s`, `delay_max_s` | delay of requests in seconds |
/// | `delay_apart_s` | mean delay at the slowest node less that at the fastest, mean over windows of 20 s, in seconds |
/// | `imbalance` | requests of the busiest node over the mean |
/// | `cpu_busy`, `disk_busy` | utilisation of processors and disks, mean over nodes, 0 to 1 |
/// | `forwarded_share` | share of requests served by another node than the one the client reached, 0 to 1 |
/// | `read_bytes_share` | bytes read from disk over bytes sent |
/// | `refused_share` | share of requests refused |
pub(super) const METRICS: [&str; 17] = [
    "throughput",
    "throughput_node",
    "miss_ratio",
    "hit_ratio",
    "idle_share",
    "delay_mean_s",
    "delay_p50_s",
    "delay_p90_s",
    "delay_p99_s",
    "delay_max_s",
    "delay_apart_s",
    "imbalance",
    "cpu_busy",
    "disk_busy",
    "forwarded_share",
    "read_bytes_share",
    "refused_share",
];

/// Runs a point and returns its values.
pub(super) fn measure(run: &RunSpec, traces: &Traces) -> Result<BTreeMap<String, f64>, PaperError> {
    let workload = traces.workload(&run.workload)?;
    let warmup = (run.warmup * workload.requests.len() as f64) as usize;
    let values = match &run.what {
        RunKind::Ceiling(kind, scenario) => ceiling_values(*kind, scenario, warmup, &workload),
        RunKind::Simulate(scenario) => {
            let outcome = simulate(&workload, &Scenario { warmup, ..(**scenario).clone() })?;
            values(&outcome)
        }
    };
    Ok(values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Returns the values of a ceiling for the scenario's nodes, which are all alike. Faster processors and disks
/// divide all costs, and several disks share the reads.
fn ceiling_values(
    kind: CeilingKind,
    scenario: &Scenario,
    warmup: usize,
    workload: &Workload,
) -> Vec<(&'static str, f64)> {
    let usual = Lard98::default();
    let costs = if let Costs::Lard98(costs) = &scenario.costs { costs } else { &usual };
    let (cpu, disk) = scenario
        .nodes
        .first()
        .map_or((1.0, 1.0), |node| (node.cpu_speed, node.disk_speed * f64::from(node.disks)));
    let costs = Lard98 {
        establish_us: costs.establish_us / cpu,
        teardown_us: costs.teardown_us / cpu,
        send_512_us: costs.send_512_us / cpu,
        first_access_us: costs.first_access_us / disk,
        block_4k_us: costs.block_4k_us / disk,
        seek_us: costs.seek_us / disk,
        block_bytes: costs.block_bytes,
    };
    let nodes = scenario.nodes.len();
    let memory: u64 = scenario.nodes.iter().map(|node| node.cache.get()).sum();
    let ceiling = match kind {
        CeilingKind::Unbounded => ceiling::unbounded_after(workload, warmup, nodes, &costs),
        CeilingKind::Clairvoyant => ceiling::clairvoyant_after(workload, warmup, memory, nodes, &costs),
    };
    vec![
        ("throughput", ceiling.throughput),
        ("throughput_node", ceiling.throughput / nodes as f64),
        ("miss_ratio", ceiling.miss_ratio),
        ("hit_ratio", 1.0 - ceiling.miss_ratio),
    ]
}

fn values(outcome: &Outcome) -> Vec<(&'static str, f64)> {
    let nodes = outcome.nodes.len().max(1) as f64;
    let mean = |of: fn(&larder_sim::NodeOutcome) -> f64| outcome.nodes.iter().map(of).sum::<f64>() / nodes;
    let delay = &outcome.delay;
    let asked = (outcome.requests + outcome.refused).max(1) as f64;
    vec![
        ("throughput", outcome.throughput),
        ("throughput_node", outcome.throughput / nodes),
        ("miss_ratio", outcome.miss_ratio),
        ("hit_ratio", 1.0 - outcome.miss_ratio),
        ("idle_share", outcome.idle_share),
        ("delay_mean_s", delay.mean_s),
        ("delay_p50_s", delay.p50_s),
        ("delay_p90_s", delay.p90_s),
        ("delay_p99_s", delay.p99_s),
        ("delay_max_s", delay.max_s),
        ("delay_apart_s", outcome.delay_apart_s),
        ("imbalance", outcome.imbalance),
        ("cpu_busy", mean(|node| node.cpu_busy)),
        ("disk_busy", mean(|node| node.disk_busy)),
        ("forwarded_share", outcome.forwarded_share),
        ("read_bytes_share", outcome.bytes_read as f64 / outcome.bytes_sent.max(1) as f64),
        ("refused_share", outcome.refused as f64 / asked),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::RunSettings;
    use std::path::Path;

    /// Measures a small workload that exceeds the memories, with these settings. There are few clients,
    /// because a ceiling ignores shared reads, and many clients with so small memories share many reads.
    fn point(text: &str, traces: &Traces) -> BTreeMap<String, f64> {
        let base = "recipe = 'rice-like'\nscale = 0.02\nmemory_mib = 1\nnodes = 4\nclients = 16\n";
        let settings: RunSettings = toml::from_str(&format!("{base}{text}")).unwrap();
        measure(&settings.run().unwrap(), traces).unwrap()
    }

    #[test]
    fn no_simulated_point_exceeds_its_ceiling() {
        let traces = Traces::new(Path::new("nowhere"));
        let hardware =
            ["", "cpu_speed = 4", "disk_speed = 3", "disks = 4", "warmup = 0.4", "cpu_speed = 0.25"];
        for hardware in hardware {
            for kind in ["clairvoyant", "unbounded"] {
                let ceiling = point(&format!("ceiling = '{kind}'\n{hardware}"), &traces);
                for policy in ["wrr", "hash", "lard", "lard-r", "lb-gc"] {
                    let ours = point(&format!("policy = '{policy}'\n{hardware}"), &traces);
                    let reached = ours["throughput"] / ceiling["throughput"];
                    assert!(reached <= 1.02, "{policy} reaches {reached} of {kind} with '{hardware}'");
                    assert!(
                        ours["miss_ratio"] >= ceiling["miss_ratio"] - 0.001,
                        "{policy} {kind} {hardware}: {} {}",
                        ours["miss_ratio"],
                        ceiling["miss_ratio"]
                    );
                }
            }
        }
    }

    #[test]
    fn a_ceiling_rises_with_the_hardware() {
        let traces = Traces::new(Path::new("nowhere"));
        let ceiling = |text: &str| point(&format!("ceiling = 'clairvoyant'\n{text}"), &traces)["throughput"];
        let slow = ceiling("disk_speed = 0.1");
        assert!((ceiling("disk_speed = 0.1\ndisks = 2") / slow - 2.0).abs() < 0.01, "disks bind");
        assert!((ceiling("disk_speed = 0.1\ncpu_speed = 3") / slow - 1.0).abs() < 0.01);
        assert!(
            (ceiling("disk_speed = 1000\ncpu_speed = 3") / ceiling("disk_speed = 1000") - 3.0).abs() < 0.01
        );
        assert!(ceiling("disk_speed = 0.1\nwarmup = 0.5") > slow, "first uses are over");
    }
}
