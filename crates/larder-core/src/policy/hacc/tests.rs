//! `hacc` against the paper and its own statements.

use super::*;
use crate::dispatch::{Admission, Arrival, Dispatcher};
use crate::nodes::{LoadReport, NodeSpec, mix};
use crate::policy::PolicyKind;
use crate::unit::Bytes;

fn dispatcher(hacc: HaccSettings, nodes: usize) -> Dispatcher {
    let settings =
        Settings { policy: PolicyKind::Hacc, admission: Admission::Unlimited, hacc, ..Settings::default() };
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

/// All nodes say how busy their disks are.
fn disks(dispatcher: &Dispatcher, now: Time, busy: &[u16]) {
    for (node, &disk_permille) in busy.iter().enumerate() {
        let report = LoadReport { disk_permille: Some(disk_permille), ..LoadReport::default() };
        assert!(dispatcher.report(now, NodeId(node as u16), report));
    }
}

#[test]
fn load_is_weighed_as_in_the_paper() {
    let report = LoadReport {
        cpu_permille: Some(800),
        disk_permille: Some(300),
        disk_bytes_per_s: Some(250_000),
        ..LoadReport::default()
    };
    assert_eq!(HaccSettings::STATIC_FILES.load(&report), Some(300));
    assert_eq!(HaccSettings::DOMINO.load(&report), Some((800 + 300) / 2));
    let by_bytes = HaccSettings { disk_full: Bytes(1_000_000), ..HaccSettings::DOMINO };
    assert_eq!(by_bytes.load(&report), Some((800 + 250) / 2));
    let full = LoadReport { cpu_permille: Some(9_999), disk_bytes_per_s: Some(u64::MAX), ..report };
    assert_eq!(by_bytes.load(&full), Some(1000), "no device is more than busy");
}

#[test]
fn weights_that_say_nothing_are_refused() {
    let hacc = HaccSettings { w_cpu_permille: 0, w_disk_permille: 0, ..HaccSettings::DOMINO };
    let error = Dispatcher::new(Settings { hacc, ..Settings::default() }, &[]).expect_err("no load");
    assert_eq!(
        error.to_string(),
        "hacc.w_disk_permille = 0 is out of range: it must be above 0 where hacc.w_cpu_permille is 0"
    );
}

#[test]
fn a_document_stays_and_a_new_one_goes_to_the_least_loaded() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 3);
    disks(&dispatcher, Time::ZERO, &[300, 200, 250]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::First));
    disks(&dispatcher, Time::ZERO, &[100, 290, 250]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Local), "190 is within the margin");
    assert_eq!(send(&dispatcher, Time::ZERO, 2), (0, Reason::First));
}

#[test]
fn a_silent_node_counts_as_the_mean_for_new_documents() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 3);
    disks(&dispatcher, Time::ZERO, &[300, 200]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1).0, 1, "200 is below the mean of 250");
    disks(&dispatcher, Time::from_secs(61), &[300]);
    let now = Time::from_secs(61);
    // Of node 1 only an old report is left: it and node 2 both count as 300, like node 0.
    let nodes: Vec<u16> = (10..40).map(|document| send(&dispatcher, now, document).0).collect();
    assert!((0..3).all(|node| nodes.contains(&node)), "{nodes:?}");
}

/// Places 1,000 documents at node 0 of two and makes it `high` busy, the other `low`; gives how many of them are at
/// node 1 after all were asked for once more.
fn moved(hacc: HaccSettings, low: u16, high: u16) -> usize {
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
fn an_overloaded_node_sheds_what_makes_the_loads_meet() {
    let hacc = HaccSettings::STATIC_FILES;
    assert_eq!(moved(hacc, 400, 600), 0, "the margin must be passed");
    // f = (800 - 400) / 2 / 800 = 1/4; five standard deviations of 1,000 draws are 68.
    assert!(moved(hacc, 400, 800).abs_diff(250) < 68);
    // f = 1/2 of all; with an amount of 1 all of it.
    assert!(moved(hacc, 0, 800).abs_diff(500) < 79);
    assert_eq!(moved(HaccSettings { amount_permille: 1000, ..hacc }, 0, 800), 1_000);
}

#[test]
fn after_an_offload_its_nodes_rest() {
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
fn the_most_loaded_sheds_to_the_least_and_the_next_to_the_next() {
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
fn a_failed_nodes_documents_are_placed_anew() {
    let dispatcher = dispatcher(HaccSettings::STATIC_FILES, 2);
    disks(&dispatcher, Time::ZERO, &[0, 50]);
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (0, Reason::First));
    dispatcher.fail(Time::ZERO, NodeId(0), &mut Vec::new());
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Lost));
    assert_eq!(dispatcher.targets_known(), 1);
}
