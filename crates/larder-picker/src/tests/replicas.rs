//! Several replicas of a picker place targets alike.

use super::services::{Running, until};
use super::*;
use larder_core::rules::Head;
use larder_core::switches::SwitchesSettings;
use larder_peer_switches::{ClusterSecret, GossipConfig, PeersConfig, SwitchesConfig};
use std::net::SocketAddr;
use std::time::Duration;

const ENDPOINTS: u8 = 8;
const TARGETS: usize = 40;

/// Starts a replica that knows these others.
async fn replica(name: &str, seeds: &[SocketAddr]) -> Running {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let network = PeersConfig {
        seeds: seeds.iter().map(|seed| seed.to_string().parse().expect("a seed")).collect(),
        gossip: GossipConfig {
            seek_alone: Duration::from_millis(50),
            seek: Duration::from_millis(200),
            ..GossipConfig::default()
        },
        ..PeersConfig::new(name.parse().expect("a name"), listen, ClusterSecret::new([7; 32]))
    };
    let peers = SwitchesConfig { network, settings: SwitchesSettings::default() };
    Running::start(PickerConfig { peers: Some(peers), ..config() }, ENDPOINTS).await
}

/// Waits for the address at which a replica listens to the others.
async fn listen(replica: &Running) -> SocketAddr {
    let listen = || replica.picker.peers_status().and_then(|status| status.listen);
    larder_testkit::eventually_async("the replica listens", listen).await
}

/// Waits until messages pass between a replica and exactly these others.
async fn until_peers(replica: &Running, expected: &[&str]) {
    let known = || {
        let status = replica.picker.peers_status().expect("peers");
        let up = status.others.into_iter().filter(|peer| peer.up).map(|peer| peer.name);
        up.collect::<Vec<String>>() == expected
    };
    until(&format!("peers {expected:?}"), known).await;
}

/// Returns the path of a target.
fn path(target: usize) -> String {
    format!("/{target}")
}

/// Returns the endpoint at which a replica would place a target, if it knows the target.
fn known_place(replica: &Running, target: usize) -> Option<String> {
    let explained =
        replica.picker.explain(&Head::get(b"www.example.org", path(target).as_bytes())).expect("explained");
    if explained["reason"] == "first" {
        return None;
    }
    explained["endpoint"].as_str().map(str::to_owned)
}

/// Sends a request for a target through a replica, and returns its endpoint.
fn place(replica: &Running, target: usize) -> String {
    let mut exchange = Exchange::new(Arc::clone(&replica.picker));
    let place = endpoints(&answer(&mut exchange, 0, request(&path(target)))).swap_remove(0);
    answer(&mut exchange, 1, response("200", true));
    place
}

#[tokio::test]
async fn replicas_send_a_target_to_the_same_endpoint() {
    let a = replica("a", &[]).await;
    let seeds = [listen(&a).await];
    let mut replicas = [a, replica("b", &seeds).await, replica("c", &seeds).await];
    until_peers(&replicas[0], &["b", "c"]).await;
    until_peers(&replicas[1], &["a", "c"]).await;
    until_peers(&replicas[2], &["a", "b"]).await;

    let places: Vec<String> = (0..TARGETS).map(|target| place(&replicas[target % 3], target)).collect();
    let different: std::collections::BTreeSet<&String> = places.iter().collect();
    assert!(different.len() > usize::from(ENDPOINTS) / 2, "the targets are spread: {different:?}");
    for replica in &replicas {
        let agrees =
            || (0..TARGETS).all(|target| known_place(replica, target).as_ref() == Some(&places[target]));
        until("the replica knows the endpoints of all targets", agrees).await;
    }

    // The others keep what a stopped replica has placed.
    replicas[2].begin_stop();
    until_peers(&replicas[0], &["b"]).await;
    for target in 0..TARGETS {
        assert_eq!(place(&replicas[target % 2], target), places[target], "target {target}");
    }

    // The requests of a replica count as load at the others.
    let mut exchange = Exchange::new(Arc::clone(&replicas[0].picker));
    let held = endpoints(&answer(&mut exchange, 0, request("/held"))).swap_remove(0);
    let name = format!("n{}", &held[7..8]);
    let elsewhere = || replicas[1].picker.peers_status().expect("peers").elsewhere;
    until("the load is known", || elsewhere() == [(name.clone(), 1)].into()).await;
    drop(exchange);
    until("the end of the load is known", || elsewhere().is_empty()).await;
}
