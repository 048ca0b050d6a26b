//! The values of one run of a sweep.

use std::collections::BTreeMap;

use super::PaperError;
use super::cluster::{RunKind, RunSpec};
use super::traces::Traces;
use larder_sim::outcome::Outcome;
use larder_sim::{Arrivals, Scenario, simulate};

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
/// | `bound_share` | throughput over the upper bound of all policies, 0 to 1; for closed arrivals |
pub(super) const METRICS: [&str; 18] = [
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
    "bound_share",
];

/// Runs a point and returns its values.
pub(super) fn measure(run: &RunSpec, traces: &Traces) -> Result<BTreeMap<String, f64>, PaperError> {
    let workload = traces.workload(&run.workload)?;
    let warmup = (run.warmup * workload.requests.len() as f64) as usize;
    let values = match &run.what {
        RunKind::Bound(scenario) => {
            let bound = traces.bounds(&run.workload, warmup, &scenario.costs)?.of(scenario)?;
            vec![
                ("throughput", bound.throughput),
                ("throughput_node", bound.throughput / scenario.nodes.len() as f64),
                ("miss_ratio", 1.0 - bound.hit_ratio),
                ("hit_ratio", bound.hit_ratio),
            ]
        }
        RunKind::Simulate(scenario) => {
            let outcome = simulate(&workload, &Scenario { warmup, ..(**scenario).clone() })?;
            let mut values = values(&outcome);
            if matches!(scenario.arrivals, Arrivals::Closed { .. }) {
                let bound = traces.bounds(&run.workload, warmup, &scenario.costs)?.of(scenario)?;
                values.push(("bound_share", outcome.throughput / bound.throughput));
            }
            values
        }
    };
    Ok(values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
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

    /// Measures a small workload that exceeds the memories, with these settings.
    fn point(text: &str, traces: &Traces) -> BTreeMap<String, f64> {
        let base = "recipe = 'rice-like'\nscale = 0.02\nmemory_mib = 1\nnodes = 4\n";
        let settings: RunSettings = toml::from_str(&format!("{base}{text}")).unwrap();
        measure(&settings.run().unwrap(), traces).unwrap()
    }

    #[test]
    fn points_state_their_share_of_the_bound() {
        let traces = Traces::new(Path::new("nowhere"));
        for hardware in [
            "",
            "cpu_speed = 4",
            "disk_speed = 3",
            "disks = 4",
            "warmup = 0.4",
            "memory = 'global'",
            "memory = 'global'\nobject_max_kib = 8",
        ] {
            let bound = point(&format!("bound = true\n{hardware}"), &traces);
            for policy in ["wrr", "lard-r"] {
                let ours = point(&format!("policy = '{policy}'\n{hardware}"), &traces);
                let share = ours["throughput"] / bound["throughput"];
                assert!((share - ours["bound_share"]).abs() < 1e-12 && share <= 1.0, "{policy} {hardware}");
                assert!(ours["miss_ratio"] >= bound["miss_ratio"], "{policy} {hardware}");
            }
        }
        let open = point("policy = 'wrr'\narrivals = 'subtraces'", &traces);
        assert!(!open.contains_key("bound_share"));
    }
}
