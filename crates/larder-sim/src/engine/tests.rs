use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::{Bytes, TargetId, Time};

use super::*;
use crate::cost::{Lard98, Ward01};
use crate::scenario::{CacheChoice, SimNode};
use crate::source::Arrivals;
use crate::workload::Item;

const KIB: u64 = 1 << 10;

fn workload(bytes: &[u64], requests: &[u32]) -> Workload {
    let items = (0..).zip(bytes).map(|(id, bytes)| Item::file(TargetId(id), *bytes)).collect();
    Workload { items, requests: requests.to_vec(), times: Vec::new() }
}

fn settings(policy: PolicyKind) -> Settings {
    Settings { policy, ..Settings::default() }
}

#[test]
fn one_client_takes_the_sum_of_the_model_times() {
    let workload = workload(&[8 * KIB, 100 * KIB], &[0, 0, 1, 0, 1]);
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Closed { clients: 1 };
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    // Three requests of 8 KB and two of 100 KB from memory, and one read of each: 3 * 930 + 2 * 8,290 +
    // 28,820 + 66,250 us.
    assert_eq!(outcome.seconds, 0.114_440);
    assert_eq!((outcome.requests, outcome.hits, outcome.shared), (5, 3, 0));
    assert_eq!((outcome.bytes_sent, outcome.bytes_read), (224 * KIB, 108 * KIB));
    let node = outcome.nodes[0];
    assert!((node.cpu_busy * 114_440.0 - 19_370.0).abs() < 1e-6);
    assert!((node.disk_busy * 114_440.0 - 95_070.0).abs() < 1e-6);
    assert!((outcome.delay.mean_s - 0.022_888).abs() < 1e-9);
}

#[test]
fn requests_for_one_file_share_its_read() {
    let workload = workload(&[8 * KIB], &[0, 0, 0]);
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Closed { clients: 3 };
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    assert_eq!((outcome.hits, outcome.shared, outcome.bytes_read), (0, 2, 8 * KIB));
    // The three are set up at 145, 290 and 435 us. The read begins at 145 us and takes 28,820 us. Then each
    // reply is sent in 640 us and taken down in 145 us.
    assert_eq!(outcome.seconds, (145.0 + 28_820.0 + 3.0 * 785.0) / 1e6);
}

#[test]
fn disks_work_in_parallel_and_share_items_by_rank() {
    let sizes = [8 * KIB; 4];
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Closed { clients: 4 };
    scenario.nodes[0].disks = 4;
    let outcome = simulate(&workload(&sizes, &[0, 1, 2, 3]), &scenario).expect("the scenario is valid");
    // The first is read after 145 + 28,820 us, the others 145 us apart. Each is sent and taken down in 785
    // us.
    assert_eq!(outcome.seconds, (28_965.0 + 4.0 * 785.0) / 1e6);
    assert!((outcome.nodes[0].disk_busy - 28_820.0 / 32_105.0).abs() < 1e-9, "each disk reads once");
}

#[test]
fn faster_nodes_take_less_time() {
    let workload = workload(&[8 * KIB], &[0, 0]);
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Closed { clients: 1 };
    scenario.nodes[0] = SimNode { cpu_speed: 2.0, disk_speed: 4.0, ..scenario.nodes[0] };
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    // The first request's processor time has two parts, 145 + 785 us.
    assert_eq!(outcome.seconds, (2.0 * 465.0 + 7_205.0) / 1e6);
}

#[test]
fn open_arrivals_keep_their_times_and_queue_above_the_limit() {
    let mut workload = workload(&[8 * KIB], &[0, 0, 0, 0]);
    workload.times = [0, 100, 100, 100].map(Time::from_millis).to_vec();
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.settings.admission = Admission::Fixed(1);
    scenario.settings.queue_max = 1;
    scenario.arrivals = Arrivals::Open { speed: 2.0 };
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    // At 50 ms one request starts, one waits, and one is refused.
    assert_eq!((outcome.requests, outcome.refused), (3, 1));
    assert_eq!(outcome.seconds, (50_000.0 + 2.0 * 930.0) / 1e6);
    assert_eq!(outcome.delay.max_s, 0.029_750, "the first, which missed");
}

#[test]
fn requests_past_their_deadline_are_refused() {
    let workload = workload(&[500 * KIB], &[0, 0]);
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.settings.admission = Admission::Fixed(1);
    scenario.settings.queue_timeout = core::time::Duration::from_millis(100);
    scenario.arrivals = Arrivals::Closed { clients: 2 };
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    assert_eq!((outcome.requests, outcome.refused), (1, 1));
}

#[test]
fn each_node_pays_for_the_requests_it_forwards() {
    // 29,696 bytes take 2 ms from memory and 20 ms from disk; `hash` sends the one item to one of two nodes.
    let workload = workload(&[29_696], &[0, 0, 0, 0]);
    let mut scenario = Scenario::lard98(2, settings(PolicyKind::Hash));
    scenario.costs = Costs::Ward01(Ward01::default());
    scenario.arrivals = Arrivals::Subtraces { window: 1 };
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    assert_eq!((outcome.requests, outcome.forwarded_share), (4, 0.5));
    let home = outcome.nodes.iter().position(|node| node.requests == 4).expect("all are served at one node");
    let (home, other) = (outcome.nodes[home], outcome.nodes[1 - home]);
    assert!((home.cpu_busy * outcome.seconds - 0.026).abs() < 1e-9, "one read and three from memory");
    assert!((other.cpu_busy * outcome.seconds - 2.0 * 276e-6).abs() < 1e-9);
}

#[test]
fn idle_time_is_time_with_few_requests() {
    let mut workload = workload(&[8 * KIB], &[0, 0]);
    workload.times = [0, 1_000].map(Time::from_millis).to_vec();
    let mut scenario = Scenario::lard98(2, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Open { speed: 1.0 };
    scenario.idle_below = 1;
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    let idle: Vec<f64> = outcome.nodes.iter().map(|node| node.idle * outcome.seconds).collect();
    // Each node is busy for one miss: 29,750 us of 1,029,750.
    assert!(idle.iter().all(|idle| (idle - 1.0).abs() < 1e-9), "{idle:?}");
}

#[test]
fn the_warm_up_is_not_measured() {
    let workload = workload(&[8 * KIB, 8 * KIB], &[0, 1, 0, 1, 0]);
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Closed { clients: 1 };
    scenario.warmup = 2;
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    assert_eq!((outcome.requests_all, outcome.requests, outcome.hits), (5, 3, 3));
    assert_eq!((outcome.seconds, outcome.miss_ratio), (3.0 * 930.0 / 1e6, 0.0));
    assert!((outcome.nodes[0].cpu_busy - 1.0).abs() < 1e-9);
}

#[test]
fn global_memory_helps_every_node() {
    let items = 60_u64;
    let sizes = vec![1 << 20; items as usize];
    let requests: Vec<u32> = (0..1_200).map(|i| (i * 7 % items) as u32).collect();
    let workload = workload(&sizes, &requests);
    let run = |policy, cache| {
        let mut scenario = Scenario::lard98(2, settings(policy));
        scenario.cache = cache;
        simulate(&workload, &scenario).expect("the scenario is valid")
    };
    let lru = CacheChoice::Kind(larder_core::cache::CacheKind::Lru);
    let alone = run(PolicyKind::Wrr, lru);
    let global = run(PolicyKind::Wrr, CacheChoice::Global(larder_core::cache::CacheKind::Lru));
    let unbounded = run(PolicyKind::Wrr, CacheChoice::Unbounded);
    let lard = run(PolicyKind::LardR, lru);
    assert!(alone.bytes_read > 5 * global.bytes_read, "{alone:?} {global:?}");
    assert_eq!(global.bytes_read, items << 20, "two memories of 32 hold all 60");
    assert!(unbounded.bytes_read <= (2 * items) << 20);
    assert_eq!(lard.bytes_read, items << 20);
}

#[test]
fn a_run_repeats_to_the_last_bit() {
    let sizes: Vec<u64> = (1..200).map(|i| i * 3_000).collect();
    let requests: Vec<u32> = (0..20_000_u32).map(|i| i.wrapping_mul(2_654_435_761) % 199).collect();
    let workload = workload(&sizes, &requests);
    for policy in PolicyKind::ALL {
        let mut scenario = Scenario::lard98(5, settings(policy));
        scenario.nodes.iter_mut().for_each(|node| node.cache = Bytes::mib(8));
        scenario.report_every = Some(core::time::Duration::from_millis(50));
        let outcomes = [simulate(&workload, &scenario), simulate(&workload, &scenario)];
        let outcome = outcomes[0].as_ref().expect("the scenario is valid");
        assert_eq!(outcomes[0], outcomes[1], "{policy}");
        assert_eq!(outcome.requests + outcome.refused, 20_000, "{policy}");
        let bound: u64 = requests.iter().map(|item| Lard98::default().hit_ns(sizes[*item as usize])).sum();
        assert!(outcome.seconds * 1e9 * 5.0 >= bound as f64, "{policy}: faster than its processors");
    }
}

#[test]
fn invalid_scenarios_are_refused() {
    let good = workload(&[1], &[0]);
    let bad = workload(&[1], &[1]);
    let scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    assert!(simulate(&bad, &scenario).is_err());
    let broken = [
        Scenario { nodes: Vec::new(), ..scenario.clone() },
        Scenario { arrivals: Arrivals::Open { speed: 1.0 }, ..scenario.clone() },
        Scenario { arrivals: Arrivals::Subtraces { window: 0 }, ..scenario.clone() },
        Scenario {
            costs: Costs::Lard98(Lard98 { teardown_us: -1.0, ..Lard98::default() }),
            ..scenario.clone()
        },
        Scenario { settings: Settings { t_low: 0, ..Settings::default() }, ..scenario.clone() },
    ];
    for scenario in broken {
        assert!(simulate(&good, &scenario).is_err(), "{scenario:?}");
    }
    assert_eq!(simulate(&good, &scenario).map(|outcome| outcome.nodes.len()), Ok(1));
}

#[test]
fn the_steady_throughput_excludes_the_drain() {
    // Two clients use one node. After the first reads, a request takes 930 us. The last request arrives when
    // two are left.
    let workload = workload(&[8 * KIB], &[0; 12]);
    let mut scenario = Scenario::lard98(1, settings(PolicyKind::Rr));
    scenario.arrivals = Arrivals::Closed { clients: 2 };
    scenario.warmup = 4;
    let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
    assert_eq!(outcome.requests, 8);
    assert!((outcome.steady_throughput - 1e6 / 930.0).abs() < 1.0, "{}", outcome.steady_throughput);
}
