//! Tests of `hacc` against the paper and its own documentation.

use super::*;
use crate::dispatch::{Admission, Arrival, Dispatcher, Settings};
use crate::nodes::{GroupId, LoadReport, NodeSpec, Signal, Weight, mix};
use crate::policy::{PolicyKind, PolicySettings};
use core::time::Duration;

fn with(hacc: HaccSettings) -> Settings {
    let policies = PolicySettings { hacc, ..PolicySettings::default() };
    Settings { policies, ..Settings::default() }
}

fn dispatcher(hacc: HaccSettings, nodes: usize) -> Dispatcher {
    let settings = Settings { policy: PolicyKind::Hacc, admission: Admission::Unlimited, ..with(hacc) };
    let specs: Vec<NodeSpec> = (0..nodes).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    Dispatcher::new(settings, &specs).expect("the settings are in range")
}

fn send(dispatcher: &Dispatcher, now: Time, document: u64) -> (u16, Reason) {
    match dispatcher.arrive(now, Request::new(TargetId(mix(document)))) {
        Arrival::Start(choice) => {
            dispatcher.finish(now, choice.node, &mut Vec::new());
            (choice.node.0, choice.reason)
        }
        other => panic!("expected a start, got {other:?}"),
    }
}

/// Reports the disk utilisation of all nodes.
fn disks(dispatcher: &Dispatcher, now: Time, busy: &[u16]) {
    for (node, &disk_permille) in busy.iter().enumerate() {
        let report = LoadReport { disk_permille: Some(disk_permille), ..LoadReport::default() };
        assert!(dispatcher.report(now, NodeId(node as u16), report));
    }
}

fn weighs(signals: &[(Signal, u16, u64)]) -> HaccSettings {
    let signals: Vec<_> =
        signals.iter().map(|&(signal, permille, full)| SignalWeight { signal, permille, full }).collect();
    let weights = HaccSettings::weigh(&signals).expect("they fit");
    HaccSettings { weights, ..HaccSettings::STATIC_FILES }
}

#[test]
fn load_is_weighted_as_in_the_paper() {
    let report = LoadReport {
        cpu_permille: Some(800),
        disk_permille: Some(300),
        disk_bytes_per_s: Some(250_000),
        queue: Some(6),
        ..LoadReport::default()
    };
    let load = |hacc: HaccSettings| hacc.load(&report, Weight::ONE);
    assert_eq!(load(HaccSettings::STATIC_FILES), Some(300));
    assert_eq!(load(HaccSettings::DOMINO), Some((800 + 300) / 2));
    let by_bytes = weighs(&[(Signal::Cpu, 500, 1000), (Signal::DiskBytes, 500, 1_000_000)]);
    assert_eq!(load(by_bytes), Some((800 + 250) / 2));
    let full = LoadReport { cpu_permille: Some(9_999), disk_bytes_per_s: Some(u64::MAX), ..report };
    assert_eq!(by_bytes.load(&full, Weight::ONE), Some(1000), "no device is more than busy");
    let paging = weighs(&[(Signal::Disk, 500, 1000), (Signal::Paging, 500, 100)]);
    assert_eq!(load(paging), None, "paging is missing, which is not none");
}

#[test]
fn counts_and_rates_are_relative_to_the_nodes_weight() {
    let hacc = weighs(&[(Signal::Disk, 400, 1000), (Signal::Queue, 600, 10)]);
    let report = LoadReport { disk_permille: Some(500), queue: Some(8), ..LoadReport::default() };
    let load = |weight| hacc.load(&report, Weight::from_f64(weight).expect("in range"));
    assert_eq!([load(1.0), load(2.0), load(0.5)], [Some(200 + 480), Some(200 + 240), Some(200 + 600)]);
}

#[test]
fn invalid_settings_are_refused() {
    use Signal::{Cpu, Disk, Queue};
    for (hacc, message) in [
        (weighs(&[]), "hacc.weights = 0 is out of range: it must be at least one signal, without gaps"),
        (weighs(&[(Cpu, 600, 1000), (Disk, 600, 1000)]), "hacc.weights = 1200"),
        (weighs(&[(Cpu, 0, 1000)]), "hacc.weights.permille = 0"),
        (weighs(&[(Cpu, 500, 1001)]), "hacc.weights.full = 1001"),
        (weighs(&[(Queue, 500, 0)]), "hacc.weights.full = 0"),
        (
            weighs(&[(Queue, 500, 9), (Queue, 500, 9)]),
            "hacc.weights = 1 is out of range: it must be one weight",
        ),
        (HaccSettings { hot_share_permille: 4, ..HaccSettings::DOMINO }, "hacc.hot_share_permille = 4"),
        (HaccSettings { hot_nodes: 1, ..HaccSettings::DOMINO }, "hacc.hot_nodes = 1"),
        (HaccSettings { level: Level::Subtree(0), ..HaccSettings::DOMINO }, "hacc.level = 0"),
    ] {
        let error = Dispatcher::new(with(hacc), &[]).expect_err(message);
        assert!(error.to_string().starts_with(message), "{error}");
    }
    assert_eq!(HaccSettings::weigh(&[SignalWeight { signal: Cpu, permille: 1, full: 1 }; 9]), None);
}

#[test]
fn level_gives_its_key_template() {
    use crate::rules::KeyTemplate;
    assert_eq!(Level::Document.key(), None);
    for depth in 1..=Level::DEPTH_MAX {
        let key = Level::Subtree(depth).key().expect("subtrees have one");
        assert!(key.parse::<KeyTemplate>().is_ok(), "{key}");
    }
}

#[test]
fn document_stays_and_new_document_goes_to_the_least_loaded() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 3);
    disks(&dispatcher, Time::ZERO, &[300, 200, 250]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::First));
    disks(&dispatcher, Time::ZERO, &[100, 290, 250]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Local), "190 is within the margin");
    assert_eq!(send(&dispatcher, Time::ZERO, 2), (0, Reason::First));
}

#[test]
fn probed_node_without_report_counts_as_the_mean() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 3);
    disks(&dispatcher, Time::ZERO, &[300, 200]);
    assert_eq!(send(&dispatcher, Time::ZERO, 0).0, 2, "it is asked");
    assert_eq!(send(&dispatcher, Time::ZERO, 1).0, 1, "200 is below the mean of 250");
    disks(&dispatcher, Time::from_secs(61), &[300]);
    let now = Time::from_secs(61);
    // Node 1 has only an old report: it and node 2 both count as 300, like node 0.
    let nodes: Vec<u16> = (10..40).map(|document| send(&dispatcher, now, document).0).collect();
    assert!((0..3).all(|node| nodes.contains(&node)), "{nodes:?}");
}

/// Sends a new document every 50 ms for ten seconds to nodes that report with their replies. `busy` is their
/// utilisation; with `by_time` the service time is known once they have replied. Returns the number of documents
/// that each node got.
fn reporting_by_replies(dispatcher: &Dispatcher, from: Time, by_time: bool, busy: &[u16]) -> Vec<usize> {
    let mut counts = vec![0; busy.len()];
    for i in 0..200 {
        let now = from + Duration::from_millis(i * 50);
        let node = send(dispatcher, now, from.as_nanos() + i).0;
        counts[node as usize] += 1;
        let busy = busy[node as usize];
        let report = if by_time {
            LoadReport { service_us: Some(busy.into()), ..LoadReport::default() }
        } else {
            LoadReport { disk_permille: Some(busy), ..LoadReport::default() }
        };
        assert!(dispatcher.report(now, NodeId(node), report));
    }
    counts
}

#[test]
fn node_that_reports_only_with_replies_is_probed_after_joining() {
    for by_time in [false, true] {
        let time = weighs(&[(Signal::ServiceTime, 1000, 1000)]);
        let dispatcher = dispatcher(if by_time { time } else { HaccSettings::STATIC_FILES }, 2);
        let counts = reporting_by_replies(&dispatcher, Time::ZERO, by_time, &[300, 500]);
        assert_eq!(counts, [199, 1], "each was asked, then the less loaded");
        dispatcher.fail(Time::from_secs(10), NodeId(0), &mut Vec::new());
        dispatcher.recover(Time::from_secs(11), NodeId(0), &mut Vec::new());
        if by_time {
            // No request has ended at a poll, so there is no service time.
            assert!(dispatcher.report(Time::from_secs(11), NodeId(0), LoadReport::default()));
        }
        let counts = reporting_by_replies(&dispatcher, Time::from_secs(12), by_time, &[300, 500]);
        assert_eq!(counts, [200, 0], "it is the least loaded again");
        let spec = NodeSpec::named("new");
        let node = dispatcher.join(Time::from_secs(22), spec, &mut Vec::new()).expect("there is room");
        let counts = reporting_by_replies(&dispatcher, Time::from_secs(23), by_time, &[300, 500, 100]);
        assert_eq!((node, &*counts), (NodeId(2), &[0, 0, 200][..]));
    }
}

#[test]
fn node_without_reports_is_probed_once_per_period() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 3);
    disks(&dispatcher, Time::ZERO, &[300, 200]);
    let nodes: Vec<u16> = (0..100).map(|i| send(&dispatcher, Time::from_millis(i * 10), i).0).collect();
    let probes: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at] == 2).collect();
    assert_eq!(probes, [0, 20, 40, 60, 80], "every 200 ms");
    let hold = |ms: u64, document: u64| match dispatcher
        .arrive(Time::from_millis(ms), Request::new(TargetId(mix(document))))
    {
        Arrival::Start(choice) => choice.node.0,
        other => panic!("expected a start, got {other:?}"),
    };
    assert_eq!([hold(2_000, 1_000), hold(2_500, 1_001), hold(3_000, 1_002)], [2, 1, 1]);
}

/// Places 1,000 documents at node 0 of two. Its load becomes `high` and that of the other node `low`. Returns the
/// number of documents at node 1 after all were requested once more.
fn move_destination(hacc: HaccSettings, low: u16, high: u16) -> usize {
    let dispatcher = dispatcher(hacc, 2);
    disks(&dispatcher, Time::ZERO, &[0, 50]);
    assert!((0..1_000).all(|document| send(&dispatcher, Time::ZERO, document) == (0, Reason::First)));
    let later = Time::from_secs(1);
    disks(&dispatcher, later, &[high, low]);
    let choices: Vec<_> = (0..1_000).map(|document| send(&dispatcher, later, document)).collect();
    let count = choices.iter().filter(|choice| **choice == (1, Reason::Migrate)).count();
    assert!(choices.iter().all(|choice| matches!(choice, (1, Reason::Migrate) | (0, Reason::Local))));
    let again: Vec<_> = (0..1_000).map(|document| send(&dispatcher, later, document).0).collect();
    assert_eq!(again, choices.iter().map(|choice| choice.0).collect::<Vec<_>>(), "nobody moves twice");
    count
}

#[test]
fn overloaded_node_sheds_until_loads_are_equal() {
    let hacc = HaccSettings::STATIC_FILES;
    assert_eq!(move_destination(hacc, 400, 600), 0, "the margin must be passed");
    // f = (800 - 400) / 2 / 800 = 1/4; five standard deviations of 1,000 draws are 68.
    assert!(move_destination(hacc, 400, 800).abs_diff(250) < 68);
    // f = 1/2 of all; with an amount of 1 all of it.
    assert!(move_destination(hacc, 0, 800).abs_diff(500) < 79);
    assert_eq!(move_destination(HaccSettings { amount_permille: 1000, ..hacc }, 0, 800), 1_000);
}

#[test]
fn offload_is_followed_by_a_cooldown() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 2);
    disks(&dispatcher, Time::ZERO, &[0, 50]);
    (0..200).for_each(|document| assert_eq!(send(&dispatcher, Time::ZERO, document).0, 0));
    let moves = |ms: u64| {
        disks(&dispatcher, Time::from_millis(ms), &[1000, 0]);
        let send = |document| send(&dispatcher, Time::from_millis(ms), document).1;
        (0..200).filter(|document| send(*document) == Reason::Migrate).count()
    };
    assert!(moves(1_000) > 60, "half of 200");
    assert_eq!([moves(1_200), moves(2_000), moves(2_999)], [0; 3], "those that were to move have moved");
    assert!(moves(3_200) > 20, "half of the rest, once a period has passed as well");
}

#[test]
fn most_loaded_sheds_to_least_loaded_in_order() {
    let dispatcher = dispatcher(HaccSettings { amount_permille: 1000, ..HaccSettings::STATIC_FILES }, 4);
    let mut homes = [0; 4];
    for home in 0..4_u16 {
        let mut busy = [500; 4];
        busy[home as usize] = 450;
        disks(&dispatcher, Time::ZERO, &busy);
        assert_eq!(send(&dispatcher, Time::ZERO, home.into()).0, home);
    }
    let later = Time::from_secs(1);
    disks(&dispatcher, later, &[100, 900, 0, 1000]);
    for home in 0..4_u16 {
        homes[home as usize] = send(&dispatcher, later, home.into()).0;
    }
    // f is 1 for 1000 to 0; for 900 to 100 it is 8/9.
    assert_eq!((homes[0], homes[2], homes[3]), (0, 2, 2));
    assert!(homes[1] == 0 || homes[1] == 1);
}

#[test]
fn documents_of_a_failed_node_are_placed_again() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 2);
    disks(&dispatcher, Time::ZERO, &[0, 50]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (0, Reason::First));
    dispatcher.fail(Time::ZERO, NodeId(0), &mut Vec::new());
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Lost));
    assert_eq!(dispatcher.targets_known(), 1);
}

#[test]
fn moved_load_is_scaled_by_the_other_nodes_weight() {
    // Half of x's load is too much for a node with a quarter of its weight: f = 2 amount (800 - 0) / 800 * 1 / (1 +
    // 4) = 1/5.
    let settings =
        Settings { policy: PolicyKind::Hacc, admission: Admission::Unlimited, ..Settings::default() };
    let weight = Weight::from_f64(0.25).expect("in range");
    let specs = [NodeSpec::named("x"), NodeSpec { weight, ..NodeSpec::named("y") }];
    let dispatcher = Dispatcher::new(settings, &specs).expect("in range");
    disks(&dispatcher, Time::ZERO, &[0, 50]);
    assert!((0..1_000).all(|document| send(&dispatcher, Time::ZERO, document).0 == 0));
    disks(&dispatcher, Time::from_secs(1), &[800, 0]);
    let moved = (0..1_000).filter(|document| send(&dispatcher, Time::from_secs(1), *document).0 == 1).count();
    // Five standard deviations of 1,000 draws of 1/5 are 63.
    assert!(moved.abs_diff(200) < 63, "{moved}");
}

#[test]
fn loads_are_compared_at_the_end_of_a_round() {
    let dispatcher = dispatcher(HaccSettings { amount_permille: 1000, ..HaccSettings::STATIC_FILES }, 3);
    disks(&dispatcher, Time::ZERO, &[0, 50, 50]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (0, Reason::First));
    let tell = |ms: u64, node: u16, busy: u16| {
        let report = LoadReport { disk_permille: Some(busy), ..LoadReport::default() };
        assert!(dispatcher.report(Time::from_millis(ms), NodeId(node), report));
    };
    tell(1_000, 0, 1000);
    tell(1_001, 1, 500);
    assert_eq!(send(&dispatcher, Time::from_millis(1_002), 1), (0, Reason::Local), "node 2 has not spoken");
    tell(1_003, 2, 0);
    assert_eq!(
        send(&dispatcher, Time::from_millis(1_004), 1),
        (2, Reason::Migrate),
        "not to node 1, idle before"
    );
    // Node 2 stops reporting: the round is over when node 0 reports again, and that report belongs to the next
    // round.
    tell(4_000, 0, 0);
    tell(4_001, 1, 1000);
    tell(4_200, 0, 900);
    assert_eq!(
        send(&dispatcher, Time::from_millis(4_201), 2),
        (2, Reason::First),
        "0 is still what node 2 said"
    );
}

#[test]
fn hot_document_goes_to_several_nodes_and_returns() {
    let hacc = HaccSettings { hot_share_permille: 200, hot_nodes: 3, ..HaccSettings::STATIC_FILES };
    let dispatcher = dispatcher(hacc, 5);
    disks(&dispatcher, Time::ZERO, &[10, 20, 30, 40, 50]);
    let servers = |now| {
        let known = dispatcher.explain(now, TargetId(mix(0))).known.expect("it is known");
        known.servers.iter().map(|node| node.0).collect::<Vec<_>>()
    };
    let run = |from_ms: u64, every: u64| {
        for i in 0..4_000 {
            let document = if i % every == 0 { 0 } else { 1 + i };
            send(&dispatcher, Time::from_millis(from_ms + i), document);
        }
        servers(Time::from_millis(from_ms + 4_000))
    };
    // Half of all requests where a fifth makes it hot: 1 + floor(2.5), which is the largest number allowed.
    assert_eq!(run(0, 2), [0, 1, 2], "the least loaded, then the next");
    assert_eq!(run(10_000, 1_000).len(), 1);
}

#[test]
fn groups_separate_static_and_dynamic() {
    let group = |number| GroupId::new(number).expect("at most 63");
    let specs = [1, 2, 2].map(|number| {
        let groups = crate::nodes::Groups::NONE.with(group(number));
        NodeSpec { groups, ..NodeSpec::named(format!("n{}", mix(number.into()))) }
    });
    let specs: Vec<NodeSpec> =
        specs.into_iter().enumerate().map(|(i, spec)| NodeSpec { name: format!("n{i}"), ..spec }).collect();
    let hacc = Settings { policy: PolicyKind::Hacc, admission: Admission::Unlimited, ..Settings::default() };
    let route = |number| crate::dispatch::RouteSpec { group: group(number), settings: hacc.clone() };
    let dispatcher =
        Dispatcher::with_routes(hacc.clone(), vec![route(1), route(2)], &specs).expect("in range");
    disks(&dispatcher, Time::ZERO, &[1000, 900, 800]);
    let nodes = |route| {
        let request = |i| Request::new(TargetId(mix(i))).with_route(crate::id::RouteId(route));
        let mut nodes: Vec<u16> = (0..50)
            .map(|i| match dispatcher.arrive(Time::ZERO, request(i)) {
                Arrival::Start(choice) => choice.node.0,
                other => panic!("{other:?}"),
            })
            .collect();
        nodes.dedup();
        nodes
    };
    assert_eq!(
        (nodes(1), nodes(2)),
        (vec![0], vec![2]),
        "static to its node, dynamic to the less loaded of its two"
    );
    let later = Time::from_millis(100) + Duration::from_secs(1);
    disks(&dispatcher, later, &[0, 0, 1000]);
    let request = Request::new(TargetId(mix(7))).with_route(crate::id::RouteId(2));
    let moved = dispatcher.explain_request(later, &request).decision.map(|choice| choice.node.0);
    assert!(matches!(moved, Some(1 | 2)), "never to the static node, idle as it is");
}
