//! The cost of every policy's decision: `cargo bench -p larder-core --bench decisions`.
//!
//! There is one row per policy and cluster size: nanoseconds of one decision (`arrive`, the load counted) and of a
//! request's end (`observe_reply` and `finish`). A table goes to stderr, the same as JSON to stdout.
//!
//! The run is that of a busy cluster. A million known targets are requested by a Zipf-like law (exponent 0.8), with all
//! service classes in turn, half of the requests with an origin, ten requests in flight per node. Time passes at 100,000
//! requests per second. Every node reports every 200 ms, one after the other, each time different values, so that derived
//! values are recomputed as often as live. Caches are full: a node stores a target that it did not have, and evicts
//! another one. One request in eight is reported as a miss and takes ten times as long as a hit. So the values calibrated
//! by either are realistic. WARD's table contains three targets of four, of which a hundredth is core. Reports and cache
//! events are outside the measured spans; the work that they cause in a decision is inside. Every number is the median of
//! several rounds.
//!
//! If a decision reads the loads of its route's nodes, it is measured a second time on a route with its own group
//! that contains all nodes, beside 62 groups without nodes, because the cost of a group depends on its members
//! (`group` in the table).
//!
//! `LARDER_BENCH_TARGETS` sets the number of targets (1,000,000), `LARDER_BENCH_ROUNDS` the rounds (5),
//! `LARDER_BENCH_POLICY` selects one policy, `LARDER_BENCH_NODES` one cluster size. With `LARDER_BENCH_LIMIT_NS` the
//! exit code is 1 if a decision takes longer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock, prints, and may stop on its own mistakes"
)]

use larder_core::dispatch::{Admission, CacheResult, RouteSpec};
use larder_core::id::RouteId;
use larder_core::nodes::{GroupId, Groups, mix};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{
    Arrival, CacheEvent, Dispatcher, LoadReport, NodeId, NodeSpec, PolicyKind, Reason, ReplyFeedback,
    Request, ServiceClass, Settings, TargetId, Time,
};
use std::collections::VecDeque;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The policies whose decisions read the loads of all nodes of a route's group.
const BY_GROUP: [PolicyKind; 8] = [
    PolicyKind::Wrr,
    PolicyKind::LeastConn,
    PolicyKind::Lard,
    PolicyKind::LardR,
    PolicyKind::Bounded,
    PolicyKind::BoundedJump,
    PolicyKind::Lmetric,
    PolicyKind::CapLoad,
];

const IN_FLIGHT_PER_NODE: usize = 10;
const REQUESTS: usize = 400_000;
const REQUESTS_PER_S: u64 = 100_000;
const REPORTS_PER_NODE_S: u64 = 5;

/// One line of the table.
struct BenchRow {
    policy: PolicyKind,
    nodes: usize,
    grouped: bool,
    decide_ns: f64,
    end_ns: f64,
}

fn main() -> ExitCode {
    let (targets, rounds) = (env("LARDER_BENCH_TARGETS", 1_000_000), env("LARDER_BENCH_ROUNDS", 5));
    let limit = env("LARDER_BENCH_LIMIT_NS", usize::MAX);
    let picked = std::env::var("LARDER_BENCH_POLICY").unwrap_or_default();
    let sizes = match env("LARDER_BENCH_NODES", 0) {
        0 => vec![16, 1_000],
        size => vec![size],
    };
    eprintln!("{targets} targets, median of {rounds} rounds of {REQUESTS} requests");
    eprintln!("{:<18} {:>6} {:>10} {:>10} {:>10}", "policy", "nodes", "decide ns", "end ns", "both ns");
    let mut rows = Vec::new();
    for policy in PolicyKind::ALL.into_iter().filter(|kind| picked.is_empty() || kind.name() == picked) {
        for &nodes in &sizes {
            for grouped in [false, true].into_iter().filter(|grouped| !grouped || BY_GROUP.contains(&policy))
            {
                let row = measure(policy, nodes, grouped, targets, rounds);
                let (decide, end) = (row.decide_ns, row.end_ns);
                let name = format!("{policy}{}", if grouped { " group" } else { "" });
                eprintln!("{name:<18} {nodes:>6} {decide:>10.1} {end:>10.1} {:>10.1}", decide + end);
                rows.push(row);
            }
        }
    }
    println!("{}", json(&rows));
    // In a group the number of requests in flight is a sum over its members, as documented; the limit does not
    // apply.
    let slow = rows.iter().filter(|row| !row.grouped && row.decide_ns > limit as f64);
    if slow.count() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn json(rows: &[BenchRow]) -> String {
    let line = |row: &BenchRow| {
        let BenchRow { policy, nodes, grouped, decide_ns, end_ns } = row;
        format!(
            r#"  {{"policy": "{policy}", "nodes": {nodes}, "group": {grouped}, "decide_ns": {decide_ns:.1}, "end_ns": {end_ns:.1}}}"#
        )
    };
    format!("[\n{}\n]", rows.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

fn measure(policy: PolicyKind, nodes: usize, grouped: bool, targets: usize, rounds: usize) -> BenchRow {
    let mut run = BenchRun::new(policy, nodes, grouped, targets);
    let results: Vec<_> = (0..rounds as u64).map(|round| run.round(round)).collect();
    let per = |time: Duration| time.as_nanos() as f64 / REQUESTS as f64;
    let median_of = |part: fn(&(Duration, Duration)) -> Duration| {
        median(results.iter().map(|result| per(part(result))).collect())
    };
    BenchRow {
        policy,
        nodes,
        grouped,
        decide_ns: median_of(|result| result.0),
        end_ns: median_of(|result| result.1),
    }
}

/// A cluster in operation.
struct BenchRun {
    dispatcher: Dispatcher,
    route: RouteId,
    nodes: u64,
    targets: usize,
    mirrors: bool,
    /// The number of requests so far.
    requests: u64,
    /// The number of reports so far.
    reports: u64,
    held: VecDeque<(Request, NodeId)>,
    /// The targets that nodes have stored, the oldest first, for evictions.
    stored: VecDeque<(TargetId, NodeId)>,
}

impl BenchRun {
    /// Creates a run in which every target is known.
    fn new(policy: PolicyKind, nodes: usize, grouped: bool, targets: usize) -> Self {
        let settings = Settings {
            policy,
            targets_max: targets.next_power_of_two() * 2,
            admission: Admission::Unlimited,
            table: Some(Arc::new(table(targets as u64, nodes as u16))),
            ..Settings::default()
        };
        let groups = Groups::NONE.with(GroupId::new(1).unwrap());
        let node = |i| NodeSpec { groups, ..NodeSpec::named(format!("n{i}")) };
        let specs: Vec<NodeSpec> = (0..nodes).map(node).collect();
        let dispatcher = if grouped {
            let others = Settings { policy: PolicyKind::Random, table: None, ..settings.clone() };
            let own = |number| {
                let settings = if number == 1 { &settings } else { &others };
                RouteSpec { group: GroupId::new(number).unwrap(), settings: settings.clone() }
            };
            let routes = (1..=GroupId::MAX).map(own).collect();
            Dispatcher::with_routes(others.clone(), routes, &specs).unwrap()
        } else {
            Dispatcher::new(settings, &specs).unwrap()
        };
        let route = RouteId(u16::from(grouped));
        let mirrors = policy.mirrors_caches();
        let mut run = Self {
            dispatcher,
            route,
            nodes: nodes as u64,
            targets,
            mirrors,
            requests: 0,
            reports: 0,
            held: VecDeque::new(),
            stored: VecDeque::new(),
        };
        (0..nodes).for_each(|_| run.report());
        for number in 0..targets as u64 {
            let (request, choice) = run.start(TargetId(mix(number)));
            run.follow(&request, choice);
            run.end();
        }
        run.fill_caches();
        run
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.requests * (1_000_000_000 / REQUESTS_PER_S))
    }

    /// Sends the next node's load report.
    fn report(&mut self) {
        let lot = mix(self.reports);
        let report = LoadReport {
            cpu_permille: Some((lot % 700) as u16),
            disk_permille: Some((lot >> 16) as u16 % 700),
            processes: Some((lot >> 32) as u32 % 20),
            service_us: Some(500 + (lot >> 40) as u32 % 5_000),
            disk_bytes_per_s: Some(lot >> 44),
            ..LoadReport::default()
        };
        self.dispatcher.report(self.now(), NodeId((self.reports % self.nodes) as u16), report);
        self.reports += 1;
    }

    /// Sends the reports that are due.
    fn catch_up(&mut self) {
        while self.reports < self.nodes + self.requests * REPORTS_PER_NODE_S * self.nodes / REQUESTS_PER_S {
            self.report();
        }
    }

    #[inline]
    fn start(&mut self, target: TargetId) -> (Request, BenchDecision) {
        self.requests += 1;
        let lot = self.requests;
        let request = Request::new(target)
            .with_route(self.route)
            .with_class(ServiceClass::ALL[lot as usize % ServiceClass::COUNT]);
        let request = match lot % 2 {
            0 => request,
            _ => request.with_origin(NodeId((lot / 2 % self.nodes) as u16)),
        };
        match self.dispatcher.arrive(self.now(), request) {
            Arrival::Start(choice) => {
                self.held.push_back((request, choice.node));
                (request, BenchDecision { node: choice.node, missed: choice.reason != Reason::Local })
            }
            other => panic!("nothing limits the benchmark, yet {other:?}"),
        }
    }

    /// Ends the longest held request.
    #[inline]
    fn end(&mut self) {
        let (request, node) = self.held.pop_front().unwrap();
        let lot = mix(self.requests);
        let (found, times) = if lot >> 61 == 0 { (CacheResult::Miss, 10) } else { (CacheResult::Hit, 1) };
        let elapsed = Duration::from_micros((300 + lot % 3_000) * times);
        let served = ReplyFeedback { elapsed, first_byte: None, found: Some(found) };
        self.dispatcher.observe_reply(self.now(), &request, node, &served);
        self.dispatcher.finish_on(self.now(), self.route, black_box(node), &mut Vec::new());
    }

    /// Stores the target in the node's cache if it was a miss, and evicts another one if the cache is full.
    fn follow(&mut self, request: &Request, decided: BenchDecision) {
        if !self.mirrors || !decided.missed {
            return;
        }
        let now = self.now();
        self.dispatcher.cache_event(now, decided.node, request.target, CacheEvent::Stored);
        self.stored.push_back((request.target, decided.node));
        if self.stored.len() > self.targets * 3 / 4 {
            let (target, node) = self.stored.pop_front().unwrap();
            self.dispatcher.cache_event(now, node, target, CacheEvent::Evicted);
        }
    }

    /// Evicts one target from every cache, which is then full.
    fn fill_caches(&mut self) {
        let now = self.now();
        for node in (0..self.nodes as u16).map(NodeId).filter(|_| self.mirrors) {
            self.dispatcher.cache_event(now, node, TargetId(u64::MAX), CacheEvent::Evicted);
        }
    }

    fn round(&mut self, seed: u64) -> (Duration, Duration) {
        let in_flight = self.nodes as usize * IN_FLIGHT_PER_NODE;
        let stream = zipf(self.targets, 7 + seed);
        let between = (REQUESTS_PER_S / (REPORTS_PER_NODE_S * self.nodes)).clamp(1, in_flight as u64 / 2);
        let (mut decide, mut end) = (Duration::ZERO, Duration::ZERO);
        let mut done = Vec::new();
        for chunk in stream.chunks(between as usize) {
            self.catch_up();
            done.clear();
            let t0 = Instant::now();
            done.extend(chunk.iter().map(|target| self.start(*target)));
            let t1 = Instant::now();
            for _ in 0..self.held.len().saturating_sub(in_flight) {
                self.end();
            }
            decide += t1 - t0;
            end += t1.elapsed();
            done.iter().for_each(|(request, decided)| self.follow(request, *decided));
        }
        (decide, end)
    }
}

/// The decision about a request.
#[derive(Clone, Copy)]
struct BenchDecision {
    node: NodeId,
    missed: bool,
}

/// Returns a table in which three targets of four have a place, one of a hundred of them in the core.
fn table(targets: u64, nodes: u16) -> RouteTable {
    let place = |number: u64| match number % 100 {
        0 => Place::Core,
        _ => Place::Node((mix(number) % u64::from(nodes)) as u16),
    };
    let known = (0..targets).filter(|number| number % 4 != 3);
    RouteTable::new(nodes, known.map(|number| (TargetId(mix(number)), place(number)))).unwrap()
}

/// Returns targets by the inverse of the continuous law's cumulative share (rank / n)^(1 - 0.8).
fn zipf(targets: usize, seed: u64) -> Vec<TargetId> {
    let mut state = seed;
    let mut next = move || {
        state = mix(state);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..REQUESTS).map(|_| TargetId(mix((targets as f64 * next().powf(5.0)) as u64))).collect()
}

fn env(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
