//! Speed of the simulator, and the growth of its cost: `cargo bench -p larder-sim --bench speed`.
//!
//! Simulates a rice-like trace (LARD section 3.2) with `lard-r` and Greedy-Dual-Size on one core. Prints the
//! simulated requests per second (median of the rounds) and the peak of the resident memory.
//! `LARDER_BENCH_SCALE` (0 to 1) shortens the trace, `LARDER_BENCH_ROUNDS` sets the number of rounds, and
//! `LARDER_BENCH_PART` selects `nodes` or `length`.

use std::time::Instant;

use larder_core::dispatch::Settings;
use larder_sim::{Scenario, Workload, simulate};
use larder_trace::synth::{Recipe, generate};

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn rate(workload: &Workload, nodes: usize, rounds: usize) -> (f64, f64) {
    let scenario = Scenario::lard98(nodes, Settings::default());
    let mut rates = Vec::new();
    let mut throughput = 0.0;
    for _ in 0..rounds {
        let start = Instant::now();
        let outcome = simulate(workload, &scenario).expect("the scenario is valid");
        rates.push(outcome.requests_all as f64 / start.elapsed().as_secs_f64());
        throughput = outcome.throughput;
    }
    rates.sort_by(f64::total_cmp);
    (rates[rates.len() / 2], throughput)
}

/// Returns the peak resident memory in MB, from the kernel.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) * 1_024.0 / 1e6
}

fn main() {
    let (scale, rounds) = (variable("LARDER_BENCH_SCALE", 1.0), variable("LARDER_BENCH_ROUNDS", 3));
    let part: String = variable("LARDER_BENCH_PART", String::new());
    let recipe = Recipe::by_name("rice-like").expect("the recipe exists");
    let workload = Workload::from_trace(&generate(&recipe, 1, scale).expect("the scale is large enough"));
    println!(
        "rice-like, {} requests, {} targets, lard-r, gds, one core",
        workload.requests.len(),
        workload.items.len()
    );
    if part != "length" {
        for nodes in [4, 16, 64, 256, 1_024] {
            let (rate, throughput) = rate(&workload, nodes, rounds);
            println!(
                "{nodes:>5} nodes: {:>6.2} M requests/s, {:>4.0} ns each; simulated {throughput:>8.0} requests/s; peak {:.0} MB",
                rate / 1e6,
                1e9 / rate,
                peak_mb()
            );
        }
    }
    if part != "nodes" {
        for part in [8, 4, 2, 1] {
            let requests = workload.requests[..workload.requests.len() / part].to_vec();
            let shorter = Workload { requests, times: Vec::new(), ..workload.clone() };
            let (rate, _) = rate(&shorter, 16, rounds);
            println!("{:>9} requests, 16 nodes: {:>4.0} ns each", shorter.requests.len(), 1e9 / rate);
        }
    }
}
