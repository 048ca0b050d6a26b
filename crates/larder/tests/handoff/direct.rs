//! Tests of the harness itself. Clients talk to a server directly, so that faults elsewhere are not faults of
//! the harness.

use larder_testkit::{or_skip, take_time};
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use larder_kernel::netns::{Topology, TopologySpec};
use larder_shaper::Shaper;

use crate::client::{self, Behaviour, ClientSettings, Fault, Plan};
use crate::cluster::Server;
use crate::content::Content;
use crate::counters::counter;
use crate::flood;
use crate::origin::Origin;
use crate::plans::{bad_network, mixed};

const SIZES: [u64; 7] = [1, 100, 1_000, 10_000, 65_536, 300_000, 2_000_000];
const SETUP: ClientSettings =
    ClientSettings { threads: 16, first_port: 20_000, stall: Duration::from_secs(5) };

fn topology(server: Server) -> Option<Topology> {
    or_skip(server.installed())?;
    let spec = TopologySpec { nodes: 1, port_range: (30_000, 60_999), ..TopologySpec::default() };
    let topology = or_skip(Topology::new(&spec))?;
    topology.point_clients_at(&topology.nodes[0]).unwrap();
    Some(topology)
}

fn service(topology: &Topology) -> [SocketAddr; 2] {
    [(topology.vip4, 80).into(), (topology.vip6, 80).into()]
}

/// Two thousand connections of every behaviour to nginx, without a switch and without a fault.
#[test]
fn nginx_answers_clients_of_every_behaviour() {
    let Some(topology) = topology(Server::Nginx) else { return };
    let service = service(&topology);
    let content = Content::new(&SIZES, 3);
    let origin = Origin::nginx(&topology.nodes[0].namespace, &service, content.root());
    let plans = mixed(1, 2_000, &service, &content.targets);
    let tally = topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}");
    tally.assert_faultless();
    assert_eq!(tally.right, 2_000);
    // The wires lose nothing and keep the order. A probe after a pause is caused by a busy machine, not by a
    // wire.
    let node = &topology.nodes[0].namespace;
    for name in ["TcpExtTCPFastRetrans", "TcpExtTCPSACKReorder"] {
        assert_eq!(counter(node, name), 0, "{name}");
    }
    // The server saw the addresses of the clients.
    let log = fs::read_to_string(origin.access_log()).unwrap();
    let own = [topology.client().v4.to_string(), topology.client().v6.to_string()];
    let foreign =
        log.lines().filter(|line| !own.iter().any(|ip| line.starts_with(&format!("{ip} ")))).count();
    assert!(log.lines().count() >= 2_000);
    assert_eq!(foreign, 0);
}

#[test]
fn apache_answers_clients_of_every_behaviour() {
    let Some(topology) = topology(Server::Apache) else { return };
    let service = service(&topology);
    let content = Content::new(&SIZES, 2);
    let _origin = Origin::apache(&topology.nodes[0].namespace, &service, content.root());
    let plans = mixed(2, 400, &service, &content.targets);
    let tally = topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}");
    tally.assert_faultless();
}

/// Losses, delays, reordering and duplicates on the wire do not change the content.
#[test]
fn a_bad_wire_makes_no_fault() {
    let Some(topology) = topology(Server::Nginx) else { return };
    let service = service(&topology);
    let content = Content::new(&SIZES[..6], 2);
    let _origin = Origin::nginx(&topology.nodes[0].namespace, &service, content.root());
    let shaper = Shaper::start(&topology.hub, &[&topology.client().port, &topology.nodes[0].port]).unwrap();
    shaper.set_all(&bad_network(5)).unwrap();
    let plans = mixed(3, 500, &service, &content.targets);
    let tally = topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}; {:?}", shaper.counts());
    tally.assert_faultless();
    let counts = shaper.counts();
    assert!(counts.lost > 0 && counts.duplicated > 0 && counts.delayed > 0, "{counts:?}");
    assert_eq!(counts.ring_full, 0, "{counts:?}");
    // A busy kernel may drop frames, but no more than the wire loses anyway.
    assert!(counts.unsent <= counts.lost, "{counts:?}");
}

#[test]
fn a_hundred_megabytes_arrive() {
    let Some(topology) = topology(Server::Nginx) else { return };
    let service = service(&topology);
    let content = Content::new(&[100_000_000], 1);
    let _origin = Origin::nginx(&topology.nodes[0].namespace, &service, content.root());
    let plans = service.map(|server| Plan {
        behaviour: Behaviour::Plain,
        server,
        same_port: false,
        targets: content.targets.clone(),
    });
    let tally = topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}");
    tally.assert_faultless();
    assert_eq!(tally.bytes, 200_000_000);
}

/// A server that dies under load causes faults on its connections and on refused ones.
#[test]
fn a_killed_server_is_noticed() {
    let Some(topology) = topology(Server::Nginx) else { return };
    let service = service(&topology);
    let content = Content::new(&SIZES, 1);
    let origin = Origin::nginx(&topology.nodes[0].namespace, &service, content.root());
    let plans = mixed(4, 100, &service, &content.targets);
    let go = AtomicBool::new(true);
    let tally = thread::scope(|scope| {
        let namespace = &topology.client().namespace;
        let load = scope.spawn(|| namespace.run(|| client::run_while(&plans, SETUP, &go)).unwrap());
        take_time(Duration::from_millis(300));
        drop(origin);
        take_time(Duration::from_millis(100));
        go.store(false, Ordering::Relaxed);
        load.join().unwrap()
    });
    assert!(tally.right > 0, "{tally}");
    let refused = tally.faults.iter().any(|(_, fault)| matches!(fault, Fault::Connect(_)));
    assert!(refused, "{tally}");
}

/// The server's kernel receives the whole flood. It has no route to the senders, so it drops each entry at
/// once, and clients get through.
#[test]
fn a_flood_arrives_and_clients_get_through() {
    let Some(topology) = topology(Server::Nginx) else { return };
    let service = service(&topology);
    let content = Content::new(&SIZES[..4], 1);
    let node = &topology.nodes[0];
    let _origin = Origin::nginx(&node.namespace, &service, content.root());
    let plans = mixed(5, 100, &service, &content.targets);
    let (go, before) = (AtomicBool::new(true), counter(&node.namespace, "TcpInSegs"));
    let (sent, tally) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood::send_syns(topology.client(), (service[0], node.mac), 10_000, &go));
        let tally = topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
        take_time(Duration::from_millis(300));
        go.store(false, Ordering::Relaxed);
        (flood.join().unwrap(), tally)
    });
    println!("{sent} SYNs; {tally}");
    tally.assert_faultless();
    assert!(sent > 1_000, "{sent}");
    assert!(counter(&node.namespace, "TcpInSegs") - before >= sent);
}
