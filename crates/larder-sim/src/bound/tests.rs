//! Tests of the bound: against all ways to keep items, all placements of small traces, and all policies.

use super::*;
use crate::source::{ClientConnection, ClientRequest, RequestSource};
use crate::workload::Item;
use crate::{SimNode, simulate_with};
use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_core::{Bytes, NodeId, PolicyKind, TargetId, Time};
use larder_trace::synth::{Recipe, generate};
use proptest::prelude::*;

fn workload(sizes: &[u64], requests: &[u32]) -> Workload {
    let items = sizes.iter().enumerate().map(|(id, bytes)| Item::file(TargetId(id as u64), *bytes)).collect();
    Workload { items, requests: requests.to_vec(), times: Vec::new() }
}

fn room(memory: u64, in_progress: f64) -> Room {
    Room { memory: memory as f64, item_max: memory, item_min: 1, in_progress }
}

#[test]
fn the_cheapest_intervals_are_kept() {
    let workload = workload(&[10, 10, 10], &[0, 1, 2, 0, 1, 0, 1, 2]);
    let reuse = Reuse::new(&workload, 0, u64::MAX);
    let uncovered = |bytes, others| reuse.least_uncovered(&room(bytes, others), |_| 1.0);
    let near = |value: f64, wanted: f64| (value - wanted).abs() < 1e-3;
    // Ten bytes have room for 80 byte-requests. The intervals take 20, 20, 30, 30 and 50: three fit, and a third of
    // the fourth.
    assert!(near(uncovered(10, 0.0), 5.0 - 3.0 - 1.0 / 3.0), "{}", uncovered(10, 0.0));
    assert!(near(uncovered(20, 0.0), 0.0));
    assert!(near(uncovered(5, 0.0), 5.0), "nothing fits");
    // One request in progress carries intervals of 8 requests, whatever their items' sizes.
    assert!(near(uncovered(5, 1.0), 5.0 - 3.0 - 1.0 / 3.0));
    assert!(near(uncovered(10, 1.0), 0.0), "15 requests in 16 places");
    // After a warm-up of three requests, parts of 1, 2, 2, 2 and 5 requests remain.
    let reuse = Reuse::new(&workload, 3, u64::MAX);
    let uncovered = |bytes, others| reuse.least_uncovered(&room(bytes, others), |_| 1.0);
    assert!(near(uncovered(5, 0.0), 5.0));
    assert!(near(uncovered(10, 0.0), 2.0), "50 byte-requests hold the first three: {}", uncovered(10, 0.0));
}

/// Returns the least cost of all ways to keep items in a memory of `bytes` or carry them by `carried` requests.
fn exhaustive(workload: &Workload, bytes: u64, carried: usize) -> f64 {
    let sizes: Vec<u64> = workload.items.iter().map(|item| item.memory).collect();
    let sets = 1_usize << sizes.len();
    let fits = |set: usize| {
        let mut kept: Vec<u64> =
            (0..sizes.len()).filter(|item| set >> item & 1 == 1).map(|item| sizes[item]).collect();
        kept.sort_unstable();
        // The largest are carried, and the items that no memory holds.
        kept.truncate(kept.len().saturating_sub(carried));
        kept.iter().sum::<u64>() <= bytes
    };
    let possible: Vec<bool> = (0..sets).map(fits).collect();
    let mut costs = vec![f64::INFINITY; sets];
    costs[0] = 0.0;
    for item in &workload.requests {
        let mut next = vec![f64::INFINITY; sets];
        for (before, cost) in costs.iter().enumerate().filter(|(_, cost)| cost.is_finite()) {
            let mut set = before;
            loop {
                if possible[set] {
                    let read = if set >> item & 1 == 1 { 0.0 } else { 1.0 + sizes[*item as usize] as f64 };
                    let after = set | 1 << item;
                    next[after] = next[after].min(cost + read);
                }
                if set == 0 {
                    break;
                }
                set = (set - 1) & before;
            }
        }
        costs = next;
    }
    costs.into_iter().fold(f64::INFINITY, f64::min)
}

/// Clients that have each request served by a given node.
struct Placed<'w> {
    requests: &'w [u32],
    nodes: Vec<u16>,
    next: usize,
    clients: usize,
}

impl RequestSource for Placed<'_> {
    fn next_time(&self) -> Option<Time> {
        (self.next < self.clients.min(self.requests.len())).then_some(Time::ZERO)
    }

    fn next_request(&mut self, _now: Time) -> Option<ClientRequest> {
        let item = *self.requests.get(self.next)?;
        let bound = Some(NodeId(self.nodes[self.next]));
        self.next += 1;
        let connection = ClientConnection { bound, ..ClientConnection::default() };
        Some(ClientRequest { connection, ..ClientRequest::new(item, 0) })
    }

    fn handle_end(
        &mut self,
        now: Time,
        _tag: u32,
        _served: Option<NodeId>,
        requests: &mut Vec<ClientRequest>,
    ) {
        requests.extend(self.next_request(now));
    }
}

const COSTS: [&str; 6] = ["lard98", "ward01", "cap01", "hacc99", "modelled", "modern-object-store"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_way_to_keep_items_is_cheaper(
        sizes in prop::collection::vec(1_u64..60, 1..6),
        requests in prop::collection::vec(0_u32..6, 1..24),
        bytes in 0_u64..120,
        carried in 0_usize..3,
    ) {
        let requests: Vec<u32> = requests.iter().map(|item| item % sizes.len() as u32).collect();
        let workload = workload(&sizes, &requests);
        let best = exhaustive(&workload, bytes, carried);
        let mut reuse = Reuse::new(&workload, 0, u64::MAX);
        let mut cold = 0.0;
        for (item, bytes) in sizes.iter().enumerate() {
            reuse.note_demand(item, &[1.0 + *bytes as f64; KINDS]);
            cold += if reuse.cold[item] { 1.0 + *bytes as f64 } else { 0.0 };
        }
        let bound = cold + reuse.least_uncovered(&room(bytes, carried as f64), |group| group.read[0]);
        prop_assert!(bound <= best * (1.0 + 1e-9), "{bound} {best}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Runs every placement of a small trace on two nodes.
    #[test]
    fn no_placement_exceeds_the_bound(
        sizes in prop::collection::vec(1_u64..200_000, 1..5),
        requests in prop::collection::vec(0_u32..5, 1..8),
        memory in (1_u64..300_000, 1_u64..300_000),
        (clients, warmup) in (1_u32..5, 0_usize..3),
        (costs, lru, speed) in (0_usize..COSTS.len(), any::<bool>(), 0_usize..3),
    ) {
        let requests: Vec<u32> = requests.iter().map(|item| item % sizes.len() as u32).collect();
        let workload = workload(&sizes, &requests);
        let costs = Costs::by_name(COSTS[costs]).expect("known");
        let kind = if lru { CacheKind::Lru } else { CacheKind::Gds };
        let speeds = [(1.0, 1.0), (2.5, 0.7), (0.3, 4.0)][speed];
        let node = |bytes| SimNode { cpu_speed: speeds.0, disk_speed: speeds.1, ..SimNode::with_cache(Bytes(bytes)) };
        let settings = Settings { policy: PolicyKind::Rr, ..Settings::default() };
        let scenario = Scenario {
            nodes: vec![node(memory.0), node(memory.1)],
            cache: CacheChoice::Kind(kind),
            arrivals: Arrivals::Closed { clients },
            costs,
            warmup: warmup.min(requests.len() - 1),
            ..Scenario::lard98(2, settings)
        };
        let bounds = Bounds::new(&workload, scenario.warmup, &costs).expect("valid");
        let bound = bounds.of(&scenario).expect("valid");
        for placement in 0..1_u32 << requests.len() {
            let nodes = (0..requests.len()).map(|at| (placement >> at & 1) as u16).collect();
            let source = Placed { requests: &requests, nodes, next: 0, clients: clients as usize };
            let outcome = simulate_with(&workload, &scenario, Box::new(source)).expect("valid");
            let hits = (outcome.hits + outcome.shared) as f64 / outcome.requests.max(1) as f64;
            // The model `modelled` dates jobs back by the resolution of its timer.
            let late = if COSTS[4] == costs.name() { 1.5e-3 } else { 0.0 };
            let most = 1.0 / (1.0 / bound.throughput - late / outcome.requests as f64).max(1e-12);
            prop_assert!(outcome.throughput <= most * (1.0 + 1e-9), "{placement:b} {outcome:?} {bound:?}");
            let steady = bounds.of_steady(&scenario).expect("valid").throughput * (1.0 + 1e-9);
            prop_assert!(late > 0.0 || outcome.steady_throughput <= steady, "{placement:b} {outcome:?} {steady}");
            prop_assert!(hits <= bound.hit_ratio + 1e-9, "{placement:b} {outcome:?} {bound:?}");
        }
    }
}

/// Runs every policy on a cluster and returns the largest share of the bound that one reaches.
fn best_share(workload: &Workload, scenario: &Scenario) -> f64 {
    let bounds = Bounds::new(workload, scenario.warmup, &scenario.costs).expect("valid");
    let bound = bounds.of(scenario).expect("valid");
    let shares = PolicyKind::ALL.into_iter().map(|policy| {
        let found = shares::run_policy(workload, scenario, policy, &bounds).expect("valid");
        assert!(found.share <= 1.0 + 1e-9, "{found:?} of {bound:?}");
        assert!(found.hit_ratio <= bound.hit_ratio + 1e-9, "{found:?} of {bound:?}");
        found.share
    });
    shares.fold(0.0, f64::max)
}

#[test]
fn no_policy_exceeds_the_bound_on_any_trace() {
    let recipes = [
        (Recipe::by_name("rice-like").expect("known"), 0.02),
        (Recipe::by_name("ibm-like").expect("known"), 0.02),
        (Recipe::zipf(3_000, 30_000, 0.9), 1.0),
    ];
    for (recipe, scale) in recipes {
        let workload = Workload::from_trace(&generate(&recipe, 3, scale).expect("possible"));
        let workload = Workload { times: Vec::new(), ..workload };
        for (parts, warmup, costs) in
            [(16, 0, "lard98"), (40, 3, "lard98"), (16, 3, "ward01"), (16, 3, "modern-object-store")]
        {
            let memory = Bytes(workload.bytes() / parts);
            let scenario = Scenario {
                nodes: vec![SimNode::with_cache(memory); 4],
                costs: Costs::by_name(costs).expect("known"),
                warmup: workload.requests.len() * warmup / 10,
                report_every: Some(core::time::Duration::from_millis(200)),
                ..Scenario::lard98(4, Settings::default())
            };
            let best = best_share(&workload, &scenario);
            // Small memories and few targets make shared reads cheap for the bound.
            assert!(best > 0.5 || parts > 16 || costs != "lard98", "the bound says nothing: {best}");
            if warmup == 0 {
                for cache in [CacheChoice::Global(CacheKind::Gds), CacheChoice::Unbounded] {
                    best_share(&workload, &Scenario { cache, ..scenario.clone() });
                }
            }
        }
    }
}

#[test]
fn the_limit_is_named_and_rises_with_the_hardware() {
    let trace = generate(&Recipe::by_name("rice-like").expect("known"), 1, 0.02).expect("possible");
    let workload = Workload::from_trace(&trace);
    let bounds = Bounds::new(&workload, 0, &Costs::Lard98(crate::cost::Lard98::default())).expect("valid");
    let of = |node: SimNode| {
        bounds
            .of(&Scenario { nodes: vec![node; 4], ..Scenario::lard98(4, Settings::default()) })
            .expect("valid")
    };
    let node = |disk_speed, cpu_speed, disks| SimNode {
        disk_speed,
        cpu_speed,
        disks,
        ..SimNode::with_cache(Bytes::mib(1))
    };
    let slow = of(node(0.01, 1.0, 1));
    assert_eq!(slow.limit, BoundLimit::Disk);
    assert!((of(node(0.01, 1.0, 2)).throughput / slow.throughput - 2.0).abs() < 0.01);
    assert!((of(node(0.01, 3.0, 1)).throughput / slow.throughput - 1.0).abs() < 0.01);
    let (one, three) = (of(node(1e3, 1.0, 1)), of(node(1e3, 3.0, 1)));
    assert_eq!((one.limit, three.limit), (BoundLimit::Processor, BoundLimit::Processor));
    assert!((three.throughput / one.throughput - 3.0).abs() < 0.01);
    let few =
        Scenario { arrivals: Arrivals::Closed { clients: 1 }, ..Scenario::lard98(4, Settings::default()) };
    assert_eq!(bounds.of(&few).expect("valid").limit, BoundLimit::Clients);
    let parts = Scenario { arrivals: Arrivals::Subtraces { window: 8 }, ..few };
    assert!(bounds.of(&parts).expect_err("no order").to_string().contains("arrivals"));
}
