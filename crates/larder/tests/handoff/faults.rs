//! A faulty network on the cookie path: packets are lost, delayed, duplicated and reordered on every wire.

use std::time::Duration;

use larder_shaper::{Shape, Shaper};

use crate::client::{self, Behaviour, ClientSettings, Plan};
use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;
use crate::plans::{bad_network, mixed};

const SIZES: [u64; 6] = [1, 100, 1_000, 10_000, 65_536, 300_000];
/// A lost packet costs a retransmission time-out, and several in a row cost a multiple of it.
const SETUP: ClientSettings =
    ClientSettings { threads: 24, first_port: 20_000, stall: Duration::from_secs(20) };
const COOKIE: &str = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
const REPAIR: &str = "mechanism = \"repair\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0";

/// Returns the ports of the wires at which clients, front-end and nodes receive.
fn ports(cluster: &Cluster) -> Vec<&str> {
    cluster.topology.hosts().map(|host| host.port.as_str()).collect()
}

/// All faults at once on all wires, with every behaviour. Every byte arrives, no connection is reset, and
/// loads return to zero.
fn a_bad_network_makes_no_fault(server: Server, handoff: &str, mechanism: &str) {
    let Some(cluster) = Cluster::new(&Spec { server, handoff, ..Spec::default() }, Content::new(&SIZES, 3))
    else {
        return;
    };
    let shaper = Shaper::start(&cluster.topology.hub, &ports(&cluster)).unwrap();
    shaper.set_all(&bad_network(7)).unwrap();
    let plans = mixed(11, 600, &cluster.service(), &cluster.content.targets);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    let counts = shaper.counts();
    println!("{tally}; {counts:?}");
    tally.assert_faultless();
    assert!(counts.lost > 50 && counts.duplicated > 50 && counts.delayed > 1_000, "{counts:?}");
    let label = format!("mechanism=\"{mechanism}\"");
    let handed = cluster.await_metric("larder_switch_deliveries_total", &[&label], 301);
    assert!(handed > 300, "{handed} handed over\n{}", cluster.logs());
    shaper.set_all(&Shape::default()).unwrap();
    cluster.await_idle();
}

#[test]
fn a_bad_network_makes_no_fault_by_cookie() {
    a_bad_network_makes_no_fault(Server::Nginx, COOKIE, "cookie");
}

#[test]
#[ignore = "long: cargo xtask acceptance handoff-trouble"]
fn a_bad_network_makes_no_fault_by_repair() {
    a_bad_network_makes_no_fault(Server::Larder, REPAIR, "repair");
}

/// The k-th packet of each connection is lost, on the way to the front-end, the nodes and the clients in
/// turn. These are the SYN, the end of the handshake, the first segment, the SYN-ACK, and the first segment
/// of the reply.
#[test]
fn every_early_packet_may_be_lost() {
    let Some(cluster) = Cluster::new(&Spec { handoff: COOKIE, ..Spec::default() }, Content::new(&SIZES, 2))
    else {
        return;
    };
    let shaper = Shaper::start(&cluster.topology.hub, &ports(&cluster)).unwrap();
    let mut plans: Vec<Plan> = mixed(12, 48, &cluster.service(), &cluster.content.targets);
    plans.retain(|plan| !matches!(plan.behaviour, Behaviour::KeptAlive));
    for host in cluster.topology.hosts() {
        for nth in 1..=4 {
            shaper.set_all(&Shape::default()).unwrap();
            shaper.set(&host.port, &Shape { drop_nth: nth, ..Shape::default() }).unwrap();
            let setup = ClientSettings { threads: 48, ..SETUP };
            let tally = cluster.topology.client().namespace.run(|| client::run(&plans, setup)).unwrap();
            println!("packet {nth} to {}: {tally}", host.port);
            tally.assert_faultless();
        }
    }
    assert!(shaper.counts().nth_lost > 200, "{:?}", shaper.counts());
    shaper.set_all(&Shape::default()).unwrap();
    cluster.await_idle();
}
