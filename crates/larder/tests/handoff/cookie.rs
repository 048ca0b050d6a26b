//! Cookie handoff with servers that do not support it themselves.

use std::fs;
use std::time::Duration;

use crate::client::{self, ClientSettings, Tally};
use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;
use crate::plans::mixed;

const SIZES: [u64; 7] = [1, 100, 1_000, 10_000, 65_536, 300_000, 2_000_000];
const SETUP: ClientSettings =
    ClientSettings { threads: 16, first_port: 20_000, stall: Duration::from_secs(5) };

fn load(cluster: &Cluster, seed: u64, count: usize) -> Tally {
    let plans = mixed(seed, count, &cluster.service(), &cluster.content.targets);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}");
    tally
}

/// Clients of every behaviour connect through the switch to nginx. There is no fault, nodes see client
/// addresses, most connections are handed over, and the load returns to zero.
#[test]
fn nginx_answers_clients_directly() {
    let spec = Spec { handoff: "mechanism = \"cookie\"\nlocality_lost_max = 1.0", ..Spec::default() };
    let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 3)) else { return };
    let tally = load(&cluster, 1, 3_000);
    println!(
        "{}",
        cluster
            .admin("/metrics")
            .lines()
            .filter(|l| l.contains("deliver") || l.contains("plane_total"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    tally.assert_faultless();
    let handed = cluster.await_metric("larder_switch_deliveries_total", &["cookie"], 2_001);
    assert!(handed > 2_000, "{handed} handed over\n{}", cluster.logs());
    let own = cluster.client_addresses().map(|ip| ip.to_string());
    for origin in &cluster.origins {
        let log = fs::read_to_string(origin.access_log()).unwrap();
        let direct =
            log.lines().filter(|line| own.iter().any(|ip| line.starts_with(&format!("{ip} ")))).count();
        assert!(direct > 100, "{direct} of {} requests came by the client's address", log.lines().count());
    }
    cluster.await_idle();
}

#[test]
fn apache_and_larder_answer_clients_directly() {
    for server in [Server::Apache, Server::Larder] {
        let spec =
            Spec { server, handoff: "mechanism = \"cookie\"\nlocality_lost_max = 1.0", ..Spec::default() };
        let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 2)) else { return };
        load(&cluster, 2, 600).assert_faultless();
        let handed = cluster.await_metric("larder_switch_deliveries_total", &["cookie"], 301);
        assert!(handed > 300, "{server:?}: {handed} handed over\n{}", cluster.logs());
    }
}
