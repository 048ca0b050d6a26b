//! Deaths of equal nodes during handovers.

use larder_testkit::take_time;
use std::time::{Duration, Instant};

use crate::client::{self, Behaviour, ClientSettings, Fault, Plan, Tally};
use crate::content::Content;
use crate::handover_lab::{HandoverCluster, SETUP};

const LARGE: u64 = 10_000_000;
const LINES: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"";
/// With this rest a reply of 10 MB takes some seconds.
const REST: Duration = Duration::from_millis(20);
const DOWNLOADS: usize = 6;

/// Node 1 has all targets. Node 0 knows that, and the sizes.
fn cluster() -> Option<HandoverCluster> {
    let cluster = HandoverCluster::new(2, Content::new(&[20_000, LARGE], 2), LINES)?;
    let targets = &cluster.content.targets;
    for (node, known) in [(1, true), (0, false)] {
        let [server, _] = cluster.service(node);
        let each: Vec<Plan> = targets.iter().map(|target| plan(Behaviour::Plain, server, target)).collect();
        cluster.run(&each).assert_faultless();
        if known {
            cluster.await_known(0, targets.len() as u64);
        }
    }
    Some(cluster)
}

fn plan(behaviour: Behaviour, server: std::net::SocketAddr, target: &crate::content::Target) -> Plan {
    Plan { behaviour, server, same_port: false, targets: vec![target.clone()] }
}

/// Runs slow downloads by node 0 from node 1, and an action meanwhile.
fn run_during(
    cluster: &mut HandoverCluster,
    happens: impl FnOnce(&mut HandoverCluster),
) -> (Tally, Duration) {
    let target = cluster.content.targets.iter().find(|target| target.bytes == LARGE).unwrap().clone();
    let servers = cluster.service(0).into_iter().cycle().take(DOWNLOADS);
    let plans: Vec<Plan> =
        servers.map(|server| plan(Behaviour::Slow { rest: REST }, server, &target)).collect();
    let before = cluster.handoff(0, "moved");
    let setup = ClientSettings { threads: DOWNLOADS, ..SETUP };
    let load = cluster.topology.client().namespace.thread(move || client::run(&plans, setup)).unwrap();
    cluster.until("all are handed over", |cluster| cluster.handoff(0, "moved") == before + DOWNLOADS as u64);
    take_time(Duration::from_millis(200));
    let began = Instant::now();
    happens(cluster);
    let tally = load.join();
    println!("{tally}");
    (tally, began.elapsed())
}

/// Checks that a node serves short `Plain` connections.
fn check_service(cluster: &HandoverCluster, node: usize) {
    let target = cluster.content.targets.iter().find(|target| target.bytes < LARGE).unwrap();
    let plans: Vec<Plan> = cluster
        .service(node)
        .into_iter()
        .cycle()
        .take(20)
        .map(|to| plan(Behaviour::Plain, to, target))
        .collect();
    cluster.run(&plans).assert_faultless();
}

/// The initial node's process is not needed: its programs forward, and its next start takes over the
/// connections.
#[test]
fn a_killed_initial_node_is_not_missed() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, _) = run_during(&mut cluster, |cluster| {
        cluster.nodes[0].as_mut().unwrap().kill();
        take_time(Duration::from_millis(300));
        cluster.start(0);
        assert_eq!(cluster.handoff(0, "connections"), DOWNLOADS as u64, "{}", cluster.logs());
    });
    tally.assert_faultless();
    cluster.await_ready(&[0, 1]);
    cluster.until("what has ended is not counted", |cluster| cluster.handoff(0, "connections") == 0);
    check_service(&cluster, 0);
}

/// A terminated initial node keeps the connections too.
#[test]
fn an_initial_node_that_ends_is_not_missed() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, _) = run_during(&mut cluster, |cluster| {
        assert!(cluster.nodes[0].as_mut().unwrap().stop(), "{}", cluster.logs());
    });
    tally.assert_faultless();
}

/// The service node's process dies. Its clients are reset at once, and other clients are served.
#[test]
fn clients_of_a_killed_service_node_are_reset() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, took) = run_during(&mut cluster, |cluster| cluster.nodes[1].as_mut().unwrap().kill());
    assert_all_notified(&tally);
    assert!(took < Duration::from_secs(3), "{took:?}");
    check_service(&cluster, 0);
    cluster.until("nothing is its any more", |cluster| cluster.handoff(0, "connections") == 0);
    cluster.start(1);
    cluster.await_ready(&[0, 1]);
    check_service(&cluster, 0);
}

/// The service node's host vanishes. Its clients are reset once the cluster has detected it.
#[test]
fn clients_of_a_vanished_service_node_are_reset() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, took) = run_during(&mut cluster, |cluster| {
        let port = cluster.topology.nodes[1].port.clone();
        cluster.topology.hub.ip(&format!("link set {port} down")).unwrap();
    });
    assert_all_notified(&tally);
    // A client without a notification gives up after SETUP's 10 s.
    assert!(took < Duration::from_secs(8), "{took:?}");
    check_service(&cluster, 0);
}

/// A terminated service node completes its connections.
#[test]
fn a_service_node_that_ends_finishes() {
    let Some(mut cluster) = cluster() else { return };
    let (tally, _) = run_during(&mut cluster, |cluster| {
        assert!(cluster.nodes[1].as_mut().unwrap().stop(), "{}", cluster.logs());
        cluster.nodes[1] = None;
    });
    tally.assert_faultless();
    check_service(&cluster, 0);
}

fn assert_all_notified(tally: &Tally) {
    // The kernel resets the connections of a killed process.
    let told = |fault: &Fault| matches!(fault, Fault::Reset | Fault::Short { .. });
    let told = tally.faults.iter().filter(|(_, fault)| told(fault)).count();
    assert_eq!((told, tally.faults.len()), (DOWNLOADS, DOWNLOADS), "{:?}", tally.faults);
}
