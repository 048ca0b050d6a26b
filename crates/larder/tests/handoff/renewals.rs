//! Reloads and upgrades of a switch with handoff under load.

use larder_testkit::take_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{self, ClientSettings};
use crate::cluster::{Cluster, Server, Spec};
use crate::kills::{SETUP, content, downloads, run_during, small};

const DELIVERIES: &str = "larder_switch_deliveries_total";

/// Reloads the switch with another size of the connection table, and then upgrades it, during downloads of 10
/// MB and new connections. No byte is lost, no connection is reset or stalls, handovers continue, and no load
/// remains. The table keeps its size, and the log says so. `syncookies` is the sysctl of the switch's host. With
/// 2, its stack answers every SYN with its own cookies.
fn check_renewal(server: Server, handoff: &str, mechanism: &str, syncookies: &str) {
    let spec = Spec { server, handoff, switch: "timeouts.drain = \"10s\"", ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    cluster.topology.front().namespace.sysctl("net.ipv4.tcp_syncookies", syncookies).unwrap();
    let plans = downloads(&cluster, 12);
    let (tally, others) = run_during(&mut cluster, &plans, |cluster| {
        // A relayed connection may be closed after a reply, so each connection has a single request.
        let plans =
            small(cluster, 41, 400).into_iter().filter(|plan| plan.targets.len() == 1).collect::<Vec<_>>();
        let go = Arc::new(AtomicBool::new(true));
        let (still, setup) = (Arc::clone(&go), ClientSettings { first_port: 22_000, ..SETUP });
        let others = cluster
            .topology
            .client()
            .namespace
            .thread(move || client::run_while(&plans, setup, &still))
            .unwrap();
        let config = cluster.path("switch0.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let sized = text.replace("[switch.handoff]", "[switch.handoff]\nflows_max = 100_000");
        assert_ne!(text, sized);
        std::fs::write(&config, sized).unwrap();
        for (signal, generation) in [(Signal::HUP, 2), (Signal::USR2, 3)] {
            cluster.switch.as_ref().unwrap().signal(signal);
            let reached = cluster.await_metric("larder_switch_generation", &[], generation);
            assert_eq!(reached, generation, "{}", cluster.logs());
            take_time(Duration::from_millis(700));
        }
        go.store(false, Ordering::Relaxed);
        others.join()
    });
    println!("others: {others}");
    if !others.faults.is_empty() {
        println!("{}", cluster.logs());
    }
    tally.assert_faultless();
    others.assert_faultless();
    let label = format!("mechanism=\"{mechanism}\"");
    let before = cluster.metric(DELIVERIES, &[&label]);
    let plans = small(&cluster, 42, 200);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    tally.assert_faultless();
    let more = cluster.await_metric(DELIVERIES, &[&label], before + 51) - before;
    assert!(more > 50, "{more} by {mechanism}\n{}\n{}", cluster.admin("/metrics"), cluster.logs());
    cluster.await_idle();
    let log = cluster.switch.as_ref().unwrap().log();
    assert!(log.contains("tables keep their size until the programs are removed"), "{log}");
}

#[test]
fn by_cookie() {
    let settings = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
    check_renewal(Server::Nginx, settings, "cookie", "1");
}

/// As under a flood of SYNs.
#[test]
fn by_cookie_where_the_stack_makes_cookies_too() {
    let settings = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
    check_renewal(Server::Larder, settings, "cookie", "2");
}

#[test]
fn by_repair_where_the_plane_answers_clients() {
    let settings = "mechanism = \"repair\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0";
    check_renewal(Server::Larder, settings, "repair", "1");
}

#[test]
fn by_repair_where_the_stack_answers_clients() {
    let settings =
        "mechanism = \"repair\"\nhandshake = \"stack\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0";
    check_renewal(Server::Larder, settings, "repair", "1");
}
