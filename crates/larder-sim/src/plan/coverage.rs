//! Tests how often the stated errors of sampled values cover the result of a whole replay.

use std::path::Path;

use larder_trace::synth::{Recipe, generate};
use larder_trace::{LoadOptions, Trace};

use super::*;

/// The number of estimates that miss the true value, and the widths of their errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorCoverage {
    pub(super) cells: usize,
    pub(super) throughput: usize,
    pub(super) hits: usize,
    pub(super) origin: usize,
    /// Mean error of the throughput, relative to its value.
    pub(super) width: f64,
    /// Mean error of the hit ratios.
    pub(super) hit_width: f64,
    /// The largest deviation of the throughput, relative to its error; at most 1 if the errors are honest.
    pub(super) worst: f64,
}

/// Compares sampled cells with the same cells replayed whole.
pub(super) fn measure_coverage(sampled: &Plan, exact: &Plan) -> ErrorCoverage {
    let mut of = ErrorCoverage::default();
    for (sample, truth) in sampled.cells.iter().zip(&exact.cells).filter(|(sample, _)| !sample.exact) {
        of.cells += 1;
        of.throughput += usize::from(!sample.throughput.covers(truth.throughput.value));
        of.hits += usize::from(!sample.hit_ratio.covers(truth.hit_ratio.value));
        of.origin += usize::from(!sample.origin_bytes.covers(truth.origin_bytes.value));
        of.width += sample.throughput.error / sample.throughput.value;
        of.hit_width += sample.hit_ratio.error;
        let off = (sample.throughput.value - truth.throughput.value).abs() / sample.throughput.error;
        of.worst = of.worst.max(off);
    }
    of.width /= of.cells.max(1) as f64;
    of.hit_width /= of.cells.max(1) as f64;
    of
}

fn load_shared(name: &str) -> Option<Trace> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces").join(name);
    let (trace, _) = Trace::load(&path, &LoadOptions::default()).ok()?;
    Some(trace)
}

/// Prints the values of docs/reference/plan-accuracy.md:
/// `cargo test --release -p larder-sim --lib plan::coverage -- --ignored --nocapture`.
#[test]
#[ignore = "minutes; prints the coverage that docs/reference/plan-accuracy.md states"]
fn stated_errors_cover_the_exact_values() {
    let only = std::env::var("LARDER_COVERAGE").unwrap_or_default();
    let zipf = |targets, requests| generate(&Recipe::zipf(targets, requests, 0.8), 1, 1.0).ok();
    let three = vec![PolicyKind::Rr, PolicyKind::Hash, PolicyKind::LardR];
    let logs: [(&str, Option<Trace>, &[u16], f64); 4] = [
        ("epa 1-16 nodes", load_shared("epa-1995.clf.zst"), &[1, 2, 4, 8, 16], 0.1),
        ("epa 2, 4 nodes", load_shared("epa-1995.clf.zst"), &[2, 4], 0.1),
        ("zipf 1 M 10 %", zipf(100_000, 1_000_000), &[4, 16], 0.1),
        ("zipf 1 M 5 %", zipf(100_000, 1_000_000), &[4, 16], 0.05),
    ];
    for (name, trace, nodes, rate) in logs {
        let Some(trace) = trace.filter(|_| name.contains(&only)) else {
            println!("{name}: left out");
            continue;
        };
        let workload = merge(&[trace]);
        for costs in ["lard98", "modern"] {
            let grid = Options {
                policies: three.clone(),
                nodes: nodes.to_vec(),
                ..Options::new(Costs::by_name(costs).expect("known"))
            };
            let run_plan = |sampling, seed| {
                let options = Options { sampling, seeds: vec![seed], ..grid.clone() };
                plan(&workload, &options, &|_| ()).expect("a plan")
            };
            let exact = run_plan(Sampling::Exact, 1);
            for seed in 1..=3 {
                let sampled = run_plan(Sampling::Rate(rate), seed);
                let of = measure_coverage(&sampled, &exact);
                println!("{name} {costs} seed {seed} rate {:.3}: {of:?}", sampled.method.rate);
                if std::env::var_os("LARDER_CELLS").is_some() {
                    for (s, e) in sampled.cells.iter().zip(&exact.cells).filter(|(s, _)| !s.exact) {
                        println!(
                            "  {:<7}{:>3} {:>10} {:>7.0} +- {:>5.0} of {:>7.0}  {:.4} +- {:.4} of {:.4}  {:.0} +- {:.0} of {:.0}",
                            s.policy,
                            s.nodes,
                            s.memory_bytes,
                            s.throughput.value,
                            s.throughput.error,
                            e.throughput.value,
                            s.hit_ratio.value,
                            s.hit_ratio.error,
                            e.hit_ratio.value,
                            s.origin_bytes.value,
                            s.origin_bytes.error,
                            e.origin_bytes.value
                        );
                    }
                }
            }
        }
    }
}
