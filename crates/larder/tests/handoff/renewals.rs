//! A switch that is reloaded and upgraded while it hands over: nobody notices.

use larder_testkit::take_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{self, Setup};
use crate::cluster::{Cluster, Server, Spec};
use crate::kills::{SETUP, content, downloads, during, small};

const DELIVERIES: &str = "larder_switch_deliveries_total";

/// Clients fetch 10 MB, and others come all the time, while the switch gets another config, with another size of the table of
/// connections, and then, with the same config, the binary anew. No byte is missing, nobody is reset or waits in vain, all is
/// handed over as before, and nothing counts in the end.
/// `syncookies` is the sysctl of the switch's host: 2 has its stack answer all that it answers with cookies of its own.
fn a_renewed_switch_is_not_missed(server: Server, handoff: &str, mechanism: &str, syncookies: &str) {
    let spec = Spec { server, handoff, switch: "timeouts.drain = \"10s\"", ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, content()) else { return };
    cluster.topology.front().namespace.sysctl("net.ipv4.tcp_syncookies", syncookies).unwrap();
    let plans = downloads(&cluster, 12);
    let (tally, others) = during(&mut cluster, &plans, |cluster| {
        // What is relayed in between may be closed after a reply: none asks twice on a connection.
        let plans =
            small(cluster, 41, 400).into_iter().filter(|plan| plan.targets.len() == 1).collect::<Vec<_>>();
        let go = Arc::new(AtomicBool::new(true));
        let (still, setup) = (Arc::clone(&go), Setup { first_port: 22_000, ..SETUP });
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
    cluster.await_rest();
}

#[test]
fn by_cookie() {
    let settings = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
    a_renewed_switch_is_not_missed(Server::Nginx, settings, "cookie", "1");
}

/// As under a flood of SYNs.
#[test]
fn by_cookie_where_the_stack_makes_cookies_too() {
    let settings = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
    a_renewed_switch_is_not_missed(Server::Larder, settings, "cookie", "2");
}

#[test]
fn by_repair_where_the_plane_answers_clients() {
    let settings = "mechanism = \"repair\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0";
    a_renewed_switch_is_not_missed(Server::Larder, settings, "repair", "1");
}

#[test]
fn by_repair_where_the_stack_answers_clients() {
    let settings =
        "mechanism = \"repair\"\nhandshake = \"stack\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0";
    a_renewed_switch_is_not_missed(Server::Larder, settings, "repair", "1");
}
