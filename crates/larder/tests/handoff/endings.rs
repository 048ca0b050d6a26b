//! Restarts of nodes under load.

use larder_testkit::take_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::{self, Behaviour, ClientSettings};
use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;
use crate::plans::mixed;

const SIZES: [u64; 5] = [1, 1_000, 10_000, 65_536, 300_000];
const SETUP: ClientSettings =
    ClientSettings { threads: 12, first_port: 20_000, stall: Duration::from_secs(5) };

/// One larder node after the other gets SIGTERM under load, without a drain, and starts again. No client
/// notices: the switch knows before the node refuses connections.
#[test]
fn nodes_end_under_load_and_no_client_notices() {
    let handoff = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
    // A node that has exited reports no ends of connections, and the switch must not wait for them.
    let switch = "timeouts.drain = \"200ms\"";
    let spec = Spec { server: Server::Larder, handoff, switch, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, Content::new(&SIZES, 3)) else { return };
    // HTTP itself tells a persistent client about a close during its request (RFC 9112 section 9.5).
    let plans: Vec<_> = mixed(41, 600, &cluster.service(), &cluster.content.targets)
        .into_iter()
        .filter(|plan| !matches!(plan.behaviour, Behaviour::KeptAlive))
        .collect();
    let go = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&go);
    let run = move || client::run_while(&plans, SETUP, &still);
    let load = cluster.topology.client().namespace.thread(run).unwrap();
    for number in 0..3 {
        take_time(Duration::from_millis(300));
        let mut node = cluster.agents[number].take().unwrap();
        let began = std::time::Instant::now();
        assert!(node.stop(), "node {number} does not end: {}", node.log());
        println!("node {number} ended within {:?}", began.elapsed());
        take_time(Duration::from_millis(300));
        cluster.start_agent(number, Server::Larder);
        cluster.await_channels(0);
    }
    go.store(false, Ordering::Relaxed);
    let tally = load.join();
    println!("{tally}");
    tally.assert_faultless();
    let handed = cluster.await_metric("larder_switch_deliveries_total", &["cookie"], 301);
    assert!(handed > 300 && tally.right > 300, "{handed} handed over\n{}", cluster.logs());
    let states = cluster.admin("/nodes");
    assert_eq!(states.matches("\"state\": \"up\"").count(), 3, "{states}");
    cluster.await_idle();
}
