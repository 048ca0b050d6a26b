//! The cost of a decision: `cargo bench -p larder-core --bench dispatch`.
//!
//! Per policy and cluster size it measures the nanoseconds of one decision (`arrive`, the load counted) and of the
//! end of a request (`finish`), with a million known targets. These are requested by a Zipf-like law (exponent 0.8,
//! the range of the traces in the literature) and uniformly, which is the worst case for the processor's caches. It
//! then compares two threads with one, and measures the bytes per known target. Every number is the median of
//! several interleaved rounds.
//!
//! `LARDER_BENCH_TARGETS` sets the number of targets (default 1,000,000), `LARDER_BENCH_ROUNDS` the rounds,
//! `LARDER_BENCH_PART` (`decisions`, `threads` or `memory`) selects one part.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock, prints, and may stop on its own mistakes"
)]

use larder_core::dispatch::Admission;
use larder_core::nodes::mix;
use larder_core::{Arrival, Dispatcher, NodeId, NodeSpec, PolicyKind, Request, Settings, TargetId, Time};
use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The number of requests kept in flight per node, so that loads are those of a busy cluster.
const IN_FLIGHT_PER_NODE: usize = 10;
const OPERATIONS: usize = 400_000;

fn main() {
    let targets = env("LARDER_BENCH_TARGETS", 1_000_000);
    let rounds = env("LARDER_BENCH_ROUNDS", 5);
    let part = std::env::var("LARDER_BENCH_PART").unwrap_or_default();
    let wanted = |name: &str| part.is_empty() || part == name;
    println!(
        "{targets} targets, median of {rounds} rounds of {OPERATIONS} requests, {IN_FLIGHT_PER_NODE} in flight per node"
    );
    if wanted("decisions") {
        decisions(targets, rounds);
    }
    if wanted("threads") {
        println!(
            "\n{:<12} {:>6} {:<8} {:>12} {:>12} {:>7}",
            "policy", "nodes", "targets", "1 thread/s", "2 threads/s", "ratio"
        );
        for law in [Law::Zipf, Law::Uniform] {
            let (one, two, ratio) = threads(PolicyKind::LardR, 16, targets, law, 4 * rounds);
            println!("{:<12} {:>6} {:<8} {one:>12.0} {two:>12.0} {ratio:>7.2}", "lard-r", 16, law.name());
        }
    }
    if wanted("memory") {
        memory(10_000_000);
    }
}

fn decisions(targets: usize, rounds: usize) {
    println!("\n{:<12} {:>6} {:<8} {:>12} {:>12}", "policy", "nodes", "targets", "decide ns", "finish ns");
    for policy in PolicyKind::ALL {
        for nodes in [16, 1000] {
            for law in [Law::Zipf, Law::Uniform] {
                let (decide, finish) = one_thread(policy, nodes, targets, law, rounds);
                println!("{:<12} {nodes:>6} {:<8} {decide:>12.1} {finish:>12.1}", policy.name(), law.name());
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Law {
    Zipf,
    Uniform,
}

impl Law {
    const fn name(self) -> &'static str {
        match self {
            Self::Zipf => "zipf",
            Self::Uniform => "uniform",
        }
    }

    /// Returns a stream of target ids; the same for the same seed.
    fn stream(self, targets: usize, seed: u64, length: usize) -> Vec<TargetId> {
        let mut state = seed;
        let mut next = move || {
            state = mix(state);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let n = targets as f64;
        let rank = |u: f64| match self {
            Self::Uniform => u * n,
            // The inverse of the continuous law's cumulative share (rank / n)^(1 - 0.8).
            Self::Zipf => n * u.powf(1.0 / 0.2),
        };
        (0..length).map(|_| TargetId(mix(rank(next()) as u64))).collect()
    }
}

fn env(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn filled(policy: PolicyKind, nodes: usize, targets: usize) -> Dispatcher {
    let settings = Settings {
        policy,
        targets_max: targets.next_power_of_two() * 2,
        admission: Admission::Derived,
        ..Settings::default()
    };
    let specs: Vec<NodeSpec> = (0..nodes).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    let dispatcher = Dispatcher::new(settings, &specs).unwrap();
    for i in 0..targets as u64 {
        let node = start(&dispatcher, TargetId(mix(i)));
        dispatcher.finish(Time::ZERO, node, &mut Vec::new());
    }
    dispatcher
}

fn start(dispatcher: &Dispatcher, target: TargetId) -> NodeId {
    match dispatcher.arrive(Time::from_secs(1), Request::new(target)) {
        Arrival::Start(decision) => decision.node,
        other => panic!("the benchmark stays below the admission limit, yet {other:?}"),
    }
}

/// Runs requests in batches, so that the cost of the two clock readings around a batch is negligible.
fn run(dispatcher: &Dispatcher, stream: &[TargetId], in_flight: usize) -> (Duration, Duration) {
    let batch = in_flight / 2;
    let mut held: VecDeque<NodeId> =
        stream[..batch].iter().map(|target| start(dispatcher, *target)).collect();
    let mut started = Vec::new();
    let (mut decide, mut finish) = (Duration::ZERO, Duration::ZERO);
    for chunk in stream.chunks_exact(batch) {
        let t0 = Instant::now();
        held.extend(chunk.iter().map(|target| start(dispatcher, *target)));
        let t1 = Instant::now();
        for node in held.drain(..batch) {
            dispatcher.finish(Time::from_secs(1), black_box(node), &mut started);
        }
        decide += t1 - t0;
        finish += t1.elapsed();
    }
    held.drain(..).for_each(|node| dispatcher.finish(Time::from_secs(1), node, &mut started));
    (decide, finish)
}

fn one_thread(policy: PolicyKind, nodes: usize, targets: usize, law: Law, rounds: usize) -> (f64, f64) {
    let dispatcher = filled(policy, nodes, targets);
    let stream = law.stream(targets, 7, OPERATIONS);
    let results: Vec<_> =
        (0..rounds).map(|_| run(&dispatcher, &stream, nodes * IN_FLIGHT_PER_NODE)).collect();
    let per = |time: Duration| time.as_nanos() as f64 / OPERATIONS as f64;
    (
        median(results.iter().map(|result| per(result.0)).collect()),
        median(results.iter().map(|result| per(result.1)).collect()),
    )
}

/// Returns the requests (decision and end) per second of one thread, of two together, and the median of the rounds'
/// ratios.
fn threads(policy: PolicyKind, nodes: usize, targets: usize, law: Law, rounds: usize) -> (f64, f64, f64) {
    let dispatcher = filled(policy, nodes, targets);
    let streams = [law.stream(targets, 7, OPERATIONS), law.stream(targets, 8, OPERATIONS)];
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (decide, finish) = run(&dispatcher, &streams[0], nodes * IN_FLIGHT_PER_NODE);
        ones.push(OPERATIONS as f64 / (decide + finish).as_secs_f64());
        let each = std::thread::scope(|scope| {
            let dispatcher = &dispatcher;
            let spawn = |stream| {
                scope.spawn(move || run(dispatcher, Vec::as_slice(stream), nodes * IN_FLIGHT_PER_NODE))
            };
            let handles: Vec<_> = streams.iter().map(spawn).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).map(|(a, b)| a + b).collect::<Vec<_>>()
        });
        twos.push(each.iter().map(|time| OPERATIONS as f64 / time.as_secs_f64()).sum());
    }
    let ratios = ones.iter().zip(&twos).map(|(one, two): (&f64, &f64)| two / one).collect();
    (median(ones), median(twos), median(ratios))
}

fn memory(targets: usize) {
    let before = resident();
    let settings = Settings { targets_max: targets, ..Settings::default() };
    let dispatcher = Dispatcher::new(settings, &[NodeSpec::named("a"), NodeSpec::named("b")]).unwrap();
    let mut peak = 0;
    for i in 0..targets as u64 {
        let node = start(&dispatcher, TargetId(mix(i)));
        dispatcher.finish(Time::ZERO, node, &mut Vec::new());
        if i % 100_000 == 0 {
            peak = peak.max(resident());
        }
    }
    let known = dispatcher.targets_known();
    let used = resident() - before;
    let (each, peak) = (used as f64 / known as f64, (peak.max(resident()) - before) as f64 / 1e6);
    println!(
        "memory: {known} targets known, {:.0} MB resident, {each:.1} bytes each, peak {peak:.0} MB",
        used as f64 / 1e6
    );
}

/// Returns the resident bytes of this process, from /proc.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
