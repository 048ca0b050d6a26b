//! Several switches before the same nodes. They place targets alike, exchange their sets, and take over sets
//! from each other. A switch that dies affects only its own connections.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::crowd::{Crowd, TARGETS, manifest};
use crate::http::{ask, get, metrics, post};
use crate::peers::free_port;
use crate::process::{LARDER, Process, until};
use crate::reload::{Switch, nodes_line};

const NODES: [&str; 4] = ["a", "b", "c", "d"];

/// Nodes, and the settings of several switches before them.
struct SwitchCluster {
    folder: tempfile::TempDir,
    nodes: Vec<Process>,
    ports: Vec<u16>,
    policy: &'static str,
}

impl SwitchCluster {
    fn new(policy: &'static str, switches: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = manifest(folder.path());
        let nodes = NODES.iter().map(|name| Process::model_node(name, "127.0.0.1:0", &manifest)).collect();
        let secret = secret(folder.path());
        assert!(Command::new(LARDER).args(["keys", "new"]).arg(&secret).status().unwrap().success());
        let ports = (0..switches).map(|_| free_port()).collect();
        Self { folder, nodes, ports, policy }
    }

    /// Returns the config lines of a switch. Each switch lists the nodes in another order.
    fn lines(&self, at: usize) -> String {
        let mut nodes: Vec<(&str, &Process)> = NODES.into_iter().zip(&self.nodes).collect();
        nodes.rotate_left(at);
        let seeds: Vec<String> = self.ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        format!(
            "listen = \"127.0.0.1:0\"\npolicy = \"{}\"\n{}\n\
             [switch.switches]\nname = \"s{at}\"\nlisten = \"127.0.0.1:{}\"\nsecret = {:?}\nseeds = [{}]",
            self.policy,
            nodes_line(&nodes),
            self.ports[at],
            secret(self.folder.path()),
            seeds.join(", ")
        )
    }

    fn start(&self, at: usize) -> Switch {
        Switch::start(&self.lines(at))
    }

    /// Starts a switch as a single process, which can be killed as a whole.
    fn start_one_process(&self, at: usize) -> Process {
        let config = self.folder.path().join(format!("s{at}.toml"));
        let more = "[switch.health]\ninterval = \"50ms\"\n[admin]\nlisten = \"127.0.0.1:0\"";
        fs::write(&config, format!("[switch]\n{}\n{more}\n", self.lines(at))).unwrap();
        Process::start(&["switch", "--one-process", "--config", config.to_str().unwrap()])
    }
}

fn secret(folder: &Path) -> PathBuf {
    folder.join("switches.key")
}

fn view(admin: SocketAddr) -> Value {
    get(admin, "/switches").json()
}

/// Returns the other switches with a link in both directions.
fn others(admin: SocketAddr) -> Vec<String> {
    let view = view(admin);
    let up = view["others"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|other| other["up"] == true && other["unknown"] == false);
    up.map(|other| other["name"].as_str().unwrap().to_owned()).collect()
}

fn until_others(admin: SocketAddr, names: &[&str]) {
    until(format!("the others are {names:?}"), || (others(admin) == names).then_some(()));
}

/// Returns the nodes of a target according to a switch's admin interface. Empty if the switch does not know
/// the target.
fn known(admin: SocketAddr, target: u64) -> Vec<String> {
    let explained = get(admin, &format!("/explain?target=localhost/t{target}")).json();
    let servers = explained["servers"].as_array().cloned().unwrap_or_default();
    servers.iter().map(|server| server.as_str().unwrap().to_owned()).collect()
}

#[test]
fn switches_that_never_met_place_alike() {
    let cluster = SwitchCluster::new("lard-r", 3);
    // A switch starts its network only before the others exist, so the seeds are unreachable.
    let first = cluster.start(0);
    let places: Vec<String> =
        (0..TARGETS).map(|i| get(first.address, &format!("/t{i}")).node_and_hit().0).collect();
    assert!(first.terminate().success());
    let second = cluster.start(1);
    for (i, place) in places.iter().enumerate() {
        let reply = ask(second.address, "GET", &format!("/t{i}"), "");
        assert_eq!(&reply.node_and_hit(), &(place.clone(), true), "/t{i}");
    }
}

#[test]
fn what_one_learns_all_know_and_a_joiner_takes_over() {
    let cluster = SwitchCluster::new("lard-r", 3);
    let (first, second) = (cluster.start(0), cluster.start(1));
    until_others(first.admin, &["s1"]);
    until_others(second.admin, &["s0"]);
    // While node a is drained at the first switch, its targets are placed elsewhere. No other switch can
    // compute that.
    assert_eq!(post(first.admin, "/nodes/a/drain").status, 200);
    let placed: Vec<String> =
        (0..TARGETS).map(|i| get(first.address, &format!("/t{i}")).node_and_hit().0).collect();
    assert_eq!(post(first.admin, "/nodes/a/undrain").status, 200);
    assert!(placed.iter().all(|node| node != "a"));
    let all_known = |admin| {
        until("all targets are known", || {
            (0..TARGETS).all(|i| known(admin, i) == [placed[i as usize].as_str()]).then_some(())
        });
    };
    all_known(second.admin);
    let third = cluster.start(2);
    until_others(third.admin, &["s0", "s1"]);
    all_known(third.admin);
    assert_eq!(view(third.admin)["whole"], true);
    for i in 0..TARGETS {
        let (node, hit) = get(third.address, &format!("/t{i}")).node_and_hit();
        assert_eq!((node.as_str(), hit), (placed[i as usize].as_str(), true), "/t{i}");
    }
    let metrics = metrics(third.admin);
    assert!(metrics.contains("\nlarder_switch_others{state=\"known\"} 2\n"), "{metrics}");
    // A reload keeps the name, the sets and the other switches.
    let before = view(second.admin)["incarnation"].as_u64().unwrap();
    second.reload();
    until_others(second.admin, &["s0", "s2"]);
    until_others(first.admin, &["s1", "s2"]);
    let after = view(second.admin);
    assert!(after["incarnation"].as_u64().unwrap() > before, "{after}");
    assert!((0..TARGETS).all(|i| known(second.admin, i) == [placed[i as usize].as_str()]));
    // A switch that leaves in good order is removed at once.
    assert!(third.terminate().success());
    until_others(first.admin, &["s1"]);
    assert_eq!(view(first.admin)["others"].as_array().unwrap().len(), 1);
}

#[test]
fn a_killed_switch_affects_only_its_own_connections() {
    let cluster = SwitchCluster::new("lard-r", 2);
    let (first, mut second) = (cluster.start_one_process(0), cluster.start_one_process(1));
    let (admin, other) = (first.admin.unwrap(), second.admin.unwrap());
    until_others(admin, &["s1"]);
    until_others(other, &["s0"]);
    let crowd = Crowd::start(first.address);
    for i in 0..TARGETS {
        assert_eq!(get(second.address, &format!("/t{i}")).status, 200);
    }
    crowd.more(500);
    second.kill();
    crowd.more(500);
    until("the dead one is gone", || {
        let gone = view(admin)["others"].as_array().unwrap().is_empty();
        crowd.more(1);
        gone.then_some(())
    });
    crowd.more(500);
    // The load of its connections is removed.
    assert_eq!(view(admin)["elsewhere"], serde_json::json!({}));
    let back = cluster.start_one_process(1);
    until_others(admin, &["s1"]);
    let known_there = |i| known(back.admin.unwrap(), i);
    until("it has caught up", || (0..TARGETS).all(|i| known_there(i) == known(admin, i)).then_some(()));
    crowd.more(100);
    // No request of the other switch's clients failed.
    assert!(crowd.end().values().sum::<u64>() > 1_500);
}

#[test]
fn a_switch_without_others_reports_that() {
    let cluster = SwitchCluster::new("wrr", 1);
    let switch = Process::start(&[
        "switch",
        "--one-process",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--node",
        &cluster.nodes[0].address.to_string(),
    ]);
    let reply = get(switch.admin.unwrap(), "/switches");
    assert_eq!(reply.status, 404, "{}", reply.head);
}
