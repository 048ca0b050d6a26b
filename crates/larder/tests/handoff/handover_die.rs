//! Equal nodes that die while connections are handed over.

use larder_testkit::take_time;
use std::time::{Duration, Instant};

use crate::client::{self, Fault, Manner, Plan, Setup, Tally};
use crate::content::Content;
use crate::handover_lab::{Equals, SETUP};

const LARGE: u64 = 10_000_000;
const LINES: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"";
/// Replies of 10 MB take some seconds with it.
const REST: Duration = Duration::from_millis(20);
const DOWNLOADS: usize = 6;

/// Node 1 has all targets, node 0 knows it and how large they are.
fn cluster() -> Option<Equals> {
    let cluster = Equals::new(2, Content::new(&[20_000, LARGE], 2), LINES)?;
    let targets = &cluster.content.targets;
    for (node, known) in [(1, true), (0, false)] {
        let [server, _] = cluster.service(node);
        let each: Vec<Plan> = targets.iter().map(|target| plan(Manner::Plain, server, target)).collect();
        cluster.run(&each).assert_faultless();
        if known {
            cluster.await_known(0, targets.len() as u64);
        }
    }
    Some(cluster)
}

fn plan(manner: Manner, server: std::net::SocketAddr, target: &crate::content::Target) -> Plan {
    Plan { manner, server, same_port: false, targets: vec![target.clone()] }
}

/// Slow downloads by node 0 from node 1, during which something happens.
fn during(cluster: &mut Equals, happens: impl FnOnce(&mut Equals)) -> (Tally, Duration) {
    let target = cluster.content.targets.iter().find(|target| target.bytes == LARGE).unwrap().clone();
    let servers = cluster.service(0).into_iter().cycle().take(DOWNLOADS);
    let plans: Vec<Plan> = servers.map(|server| plan(Manner::Slow { rest: REST }, server, &target)).collect();
    let before = cluster.handoff(0, "moved");
    let setup = Setup { threads: DOWNLOADS, ..SETUP };
    let load = cluster.topology.client().namespace.thread(move || client::run(&plans, setup)).unwrap();
    cluster.until("all are handed over", |cluster| cluster.handoff(0, "moved") == before + DOWNLOADS as u64);
    take_time(Duration::from_millis(200));
    let began = Instant::now();
    happens(cluster);
    let tally = load.join();
    println!("{tally}");
    (tally, began.elapsed())
}

/// What is small enough to be over at once, at a node: `Plain` connections.
fn works(cluster: &Equals, node: usize) {
    let target = cluster.content.targets.iter().find(|target| target.bytes < LARGE).unwrap();
    let plans: Vec<Plan> = cluster
        .service(node)
        .into_iter()
        .cycle()
        .take(20)
        .map(|to| plan(Manner::Plain, to, target))
        .collect();
    cluster.run(&plans).assert_faultless();
}

/// The process that took the connections is not missed: the programs forward, and its next start takes them over.
#[test]
fn a_killed_initial_node_is_not_missed() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, _) = during(&mut cluster, |cluster| {
        cluster.nodes[0].as_mut().unwrap().kill();
        take_time(Duration::from_millis(300));
        cluster.start(0);
        assert_eq!(cluster.handoff(0, "connections"), DOWNLOADS as u64, "{}", cluster.logs());
    });
    tally.assert_faultless();
    cluster.await_ready(&[0, 1]);
    cluster.until("what has ended is not counted", |cluster| cluster.handoff(0, "connections") == 0);
    works(&cluster, 0);
}

/// One that is told to end leaves them going too.
#[test]
fn an_initial_node_that_ends_is_not_missed() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, _) = during(&mut cluster, |cluster| {
        assert!(cluster.nodes[0].as_mut().unwrap().stop(), "{}", cluster.logs());
    });
    tally.assert_faultless();
}

/// The service node's process dies: its clients are told at once, others are served.
#[test]
fn clients_of_a_killed_service_node_are_told() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, took) = during(&mut cluster, |cluster| cluster.nodes[1].as_mut().unwrap().kill());
    all_are_told(&tally);
    assert!(took < Duration::from_secs(3), "{took:?}");
    works(&cluster, 0);
    cluster.until("nothing is its any more", |cluster| cluster.handoff(0, "connections") == 0);
    cluster.start(1);
    cluster.await_ready(&[0, 1]);
    works(&cluster, 0);
}

/// The service node's host vanishes: its clients are told once the cluster knows.
#[test]
fn clients_of_a_vanished_service_node_are_told() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, took) = during(&mut cluster, |cluster| {
        let port = cluster.topology.nodes[1].port.clone();
        cluster.topology.hub.ip(&format!("link set {port} down")).unwrap();
    });
    all_are_told(&tally);
    // A client that is not told gives up after SETUP's 10 s.
    assert!(took < Duration::from_secs(8), "{took:?}");
    works(&cluster, 0);
}

/// A service node that is told to end finishes what it has.
#[test]
fn a_service_node_that_ends_finishes() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, _) = during(&mut cluster, |cluster| {
        assert!(cluster.nodes[1].as_mut().unwrap().stop(), "{}", cluster.logs());
        cluster.nodes[1] = None;
    });
    tally.assert_faultless();
    works(&cluster, 0);
}

fn all_are_told(tally: &Tally) {
    // The kernel ends a killed process's connections by itself.
    let told = |fault: &Fault| matches!(fault, Fault::Reset | Fault::Short { .. });
    let told = tally.faults.iter().filter(|(_, fault)| told(fault)).count();
    assert_eq!((told, tally.faults.len()), (DOWNLOADS, DOWNLOADS), "{:?}", tally.faults);
}
