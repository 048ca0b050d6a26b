//! Tests of the pool, of the hot-cold rule, and of latencies.

use super::pool::{POOL_MAX, RIFS, uses};
use super::*;
use crate::dispatch::{Admission, Dispatcher, Settings};
use crate::id::TargetId;
use crate::nodes::NodeSpec;
use crate::policy::policy_tests::started;
use crate::policy::{PolicyKind, PolicySettings};
use proptest::prelude::*;

const REQUEST: Request = Request::new(TargetId(7));

fn dispatcher(nodes: usize, rif_quantile_permille: u16) -> Dispatcher {
    let settings = Settings {
        policy: PolicyKind::Prequal,
        admission: Admission::Unlimited,
        policies: PolicySettings {
            prequal: PrequalSettings { rif_quantile_permille },
            ..PolicySettings::default()
        },
        ..Settings::default()
    };
    let specs: Vec<NodeSpec> = (0..nodes).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    Dispatcher::new(settings, &specs).expect("the settings are in range")
}

fn took(dispatcher: &Dispatcher, node: u16, ms: u64) {
    let served = ReplyFeedback {
        elapsed: Duration::from_secs(9),
        first_byte: Some(Duration::from_millis(ms)),
        found: None,
    };
    dispatcher.observe_reply(Time::ZERO, &REQUEST, NodeId(node), &served);
}

/// Sends a request that ends at once.
fn serve(dispatcher: &Dispatcher, now: Time) -> u16 {
    let node = started(dispatcher.arrive(now, REQUEST));
    dispatcher.finish(now, node, &mut Vec::new());
    node.0
}

#[test]
fn cold_nodes_are_chosen_by_latency() {
    let dispatcher = dispatcher(4, 841);
    for (node, ms) in [(0, 30), (1, 10), (2, 20), (3, 40)] {
        took(&dispatcher, node, ms);
    }
    (0..40).for_each(|_| _ = serve(&dispatcher, Time::ZERO));
    let served: Vec<u16> = (0..400).map(|_| serve(&dispatcher, Time::ZERO)).collect();
    let quick = served.iter().filter(|node| **node == 1).count();
    // Three of four nodes are probed for each request, and probes are used once more or twice.
    assert!(quick > 280, "{quick}");
    assert!(!served.contains(&3), "the slowest is never the best of two");
}

#[test]
fn hot_nodes_are_chosen_by_requests_in_flight() {
    // With Q_RIF = 0 all nodes above the least RIF are hot, and latencies do not count.
    let dispatcher = dispatcher(4, 0);
    (0..4).for_each(|node| took(&dispatcher, node, 10 * u64::from(node + 1)));
    let mut loads = [0; 4];
    for _ in 0..4_000 {
        loads[started(dispatcher.arrive(Time::ZERO, REQUEST)).index()] += 1;
    }
    assert!(loads.iter().all(|load| (990..=1_010).contains(load)), "{loads:?}");
}

#[test]
fn an_overloaded_quick_node_is_hot() {
    let dispatcher = dispatcher(4, 841);
    (0..4).for_each(|node| took(&dispatcher, node, if node == 0 { 1 } else { 50 }));
    let mut loads = [0; 4];
    for _ in 0..2_000 {
        loads[started(dispatcher.arrive(Time::ZERO, REQUEST)).index()] += 1;
    }
    // Without the limit node 0 would serve nearly all.
    assert!(loads[0] < 1_000 && loads[1..].iter().all(|load| *load > 250), "{loads:?}");
}

#[test]
fn latencies_count_at_a_similar_load() {
    let dispatcher = dispatcher(2, 841);
    let prequal = Prequal::new(&CommonSettings { nodes_max: 2, ..common() }, PrequalSettings::default());
    let nodes = ClusterView::live(dispatcher.nodes());
    let mut held = Vec::new();
    for step in 0..8 {
        prequal.learn(Time::ZERO, NodeId(0), Duration::from_millis(10 + step), nodes);
        prequal.learn(Time::ZERO, NodeId(1), Duration::from_millis(10 + step), nodes);
        held.push(started(dispatcher.arrive(Time::ZERO, REQUEST)));
    }
    let (idle, busy) = (
        prequal.latency_us(Time::ZERO, NodeId(0), 0, nodes),
        prequal.latency_us(Time::ZERO, NodeId(0), 9, nodes),
    );
    assert!(idle < busy && (10_000..=12_000).contains(&idle), "{idle} {busy}");
}

fn common() -> CommonSettings {
    CommonSettings {
        seed: 1,
        t_low: 1,
        t_high: 2,
        thresholds: crate::policy::thresholds::ThresholdSettings::default(),
        replication_decay: Duration::from_secs(1),
        targets_max: 1,
        nodes_max: 200,
        shards: 1,
        spread_key: 0,
        report_age_max: Duration::from_secs(1),
        t_gat: Duration::from_secs(1),
        table: None,
    }
}

#[test]
fn probes_are_reused_as_the_formula_says() {
    let mean = |nodes| {
        let all = (0..4_000_u64).map(|i| f64::from(uses(nodes, mix(i))));
        all.sum::<f64>() / 4_000.0
    };
    assert_eq!((uses(1, 0), uses(24, 0)), (u32::MAX, u32::MAX), "the pool never fills");
    assert!((mean(32) - 4.0).abs() < 0.01, "2 / (3 / 2 - 1)");
    assert!((mean(100) - 2.0 / 1.52).abs() < 0.05);
    assert!((mean(60_000) - 1.0).abs() < 0.01);
}

#[test]
fn old_probes_and_probes_of_lost_nodes_do_not_count() {
    let dispatcher = dispatcher(3, 841);
    (0..3).for_each(|node| took(&dispatcher, node, 10 * u64::from(node + 1)));
    (0..20).for_each(|_| _ = serve(&dispatcher, Time::ZERO));
    dispatcher.fail(Time::ZERO, NodeId(0), &mut Vec::new());
    assert!((0..50).all(|_| serve(&dispatcher, Time::ZERO) != 0));
    let later = Time::from_millis(1_100);
    let decision = dispatcher.explain_request(later, &REQUEST).decision.expect("two nodes are up");
    assert_eq!(decision.reason, Reason::Random);
}

proptest! {
    #[test]
    fn the_pool_stays_within_its_limits(
        nodes in 1_usize..40,
        steps in prop::collection::vec((0_u16..40, 1_u64..400, any::<bool>()), 1..200),
    ) {
        let common = CommonSettings { nodes_max: 64, ..common() };
        let prequal = Prequal::new(&common, PrequalSettings::default());
        let dispatcher = dispatcher(nodes, 841);
        let view = ClusterView::live(dispatcher.nodes());
        let (mut now, mut held) = (Time::ZERO, Vec::new());
        for (node, ms, ends) in steps {
            now += Duration::from_millis(ms);
            let told = prequal.peek(now, &REQUEST, view);
            let chosen = prequal.pick(now, &REQUEST, view);
            prop_assert_eq!(told, chosen);
            held.push(chosen.expect("a node is up").node);
            let node = held[usize::from(node) % held.len()];
            prequal.learn(now, node, Duration::from_millis(ms), view);
            if ends {
                held.retain(|other| *other != node);
            }
            let pool = &prequal.state.lock().pool;
            prop_assert!(pool.probes.len() <= POOL_MAX.min(nodes) && pool.rifs.len() <= RIFS);
            prop_assert!(pool.sorted.is_sorted() && pool.sorted.len() == pool.rifs.len());
            let mut of: Vec<NodeId> = pool.probes.iter().map(|probe| probe.node).collect();
            of.sort_unstable();
            of.dedup();
            prop_assert_eq!(of.len(), pool.probes.len(), "one probe of each node");
        }
    }
}
