//! Cookie handoff to nodes behind a router. Packets to the nodes are encapsulated, and answers are not.

use std::time::Duration;

use larder_kernel::netns::TopologySpec;

use crate::client::{self, ClientSettings};
use crate::cluster::{Cluster, Spec};
use crate::content::Content;
use crate::plans::mixed;

const SIZES: [u64; 5] = [1, 100, 10_000, 65_536, 300_000];
const SETUP: ClientSettings =
    ClientSettings { threads: 16, first_port: 20_000, stall: Duration::from_secs(5) };

/// Tunnels IPv4 and IPv6 clients in IPv4.
fn check_tunnel(forward: &str) {
    let topology = TopologySpec {
        routed: true,
        // The longest outer header has 50 bytes: IPv4, UDP, VXLAN and Ethernet.
        backbone_mtu: 1600,
        port_range: (30_000, 60_999),
        ..TopologySpec::default()
    };
    let handoff = format!("mechanism = \"cookie\"\nlocality_lost_max = 1.0\n{forward}");
    let spec = Spec { topology, handoff: &handoff, ..Spec::default() };
    let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 2)) else { return };
    let plans = mixed(7, 400, &cluster.service(), &cluster.content.targets);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{forward}: {tally}");
    tally.assert_faultless();
    let handed = cluster.await_metric("larder_switch_deliveries_total", &["cookie"], 251);
    assert!(handed > 250, "{handed} handed over\n{}", cluster.logs());
}

#[test]
fn packets_go_in_ip() {
    check_tunnel("forward = \"ipip\"");
}

#[test]
fn packets_go_in_generic_udp() {
    check_tunnel("forward = \"gue\"\nforward_port = 6080");
}

#[test]
fn packets_go_in_vxlan() {
    check_tunnel("forward = \"vxlan\"\nvni = 7");
}
