//! Backup nodes of a switch: they serve only while no ordinary node is up.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::crowd::{Crowd, manifest};
use crate::http::{ask, get, metric, post};
use crate::process::{LARDER, Process, until};
use crate::reload::Switch;

/// Returns the node lines of `[switch]`. The nodes named in `backups` are backups.
fn lines(nodes: &[(&str, SocketAddr)], backups: &[&str]) -> String {
    let entry = |(name, address): &(&str, SocketAddr)| {
        format!("{{ name = \"{name}\", address = \"{address}\", backup = {} }}", backups.contains(name))
    };
    let nodes: Vec<String> = nodes.iter().map(entry).collect();
    format!(
        "listen = \"127.0.0.1:0\"\npolicy = \"rr\"\nnodes = [{}]\n\
         [[switch.routes]]\nname = \"app\"\npath = \"/t0\"\nsticky = {{ cookie = \"srv\" }}",
        nodes.join(", ")
    )
}

/// Returns the node that answers, if there is an answer.
fn node_of(switch: &Switch, target: &str, fields: &str) -> Option<String> {
    let reply = ask(switch.address, "GET", target, fields);
    (reply.status == 200).then(|| reply.node_and_hit().0)
}

/// Returns the nodes that answer a round of requests. All requests must be answered.
fn served_by(switch: &Switch) -> BTreeSet<String> {
    (1..8).map(|i| node_of(switch, &format!("/t{i}"), "").expect("an answer")).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns a node's state from `/nodes`: its state, whether it is a backup, and whether it is on standby.
fn standing(switch: &Switch, name: &str) -> (String, bool, bool) {
    let nodes = get(switch.admin, "/nodes").json();
    let node = nodes.as_array().unwrap().iter().find(|node| node["name"] == name).unwrap();
    let flag = |key: &str| node[key].as_bool().unwrap();
    (node["state"].as_str().unwrap().to_owned(), flag("backup"), flag("standby"))
}

#[test]
fn backups_serve_while_no_ordinary_node_is_up() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let mut nodes = ["a", "b", "z"].map(|name| Process::model_node(name, "127.0.0.1:0", &manifest));
    let addresses = [("a", nodes[0].address), ("b", nodes[1].address), ("z", nodes[2].address)];
    let switch = Switch::start(&lines(&addresses, &["z"]));
    let admin = switch.admin;
    assert_eq!(served_by(&switch), names(&["a", "b"]));
    assert_eq!(standing(&switch, "z"), ("up".to_owned(), true, true));

    // Ordinary nodes drain and return under load, and no request fails.
    let crowd = Crowd::start(switch.address);
    crowd.more(100);
    for node in ["a", "b"] {
        assert_eq!(post(admin, &format!("/nodes/{node}/drain")).status, 200);
    }
    assert_eq!(served_by(&switch), names(&["z"]));
    assert_eq!(standing(&switch, "z"), ("up".to_owned(), true, false));
    crowd.more(100);
    for node in ["a", "b"] {
        assert_eq!(post(admin, &format!("/nodes/{node}/undrain")).status, 200);
    }
    assert!(!served_by(&switch).contains("z"));
    crowd.more(100);
    let seen = crowd.end();
    assert!(["a", "b", "z"].iter().all(|node| seen.contains_key(*node)), "{seen:?}");

    // They die, and one returns.
    nodes[..2].iter_mut().for_each(Process::kill);
    until("the backup serves", || node_of(&switch, "/t1", "").filter(|node| node == "z"));
    until("both are down", || {
        ["a", "b"].iter().all(|node| standing(&switch, node).0 == "down").then_some(())
    });
    assert_eq!(served_by(&switch), names(&["z"]));
    assert_eq!(metric(admin, "larder_switch_group_on_backups", &["{group=\"\"}"]), Some(1));
    let reply = get(switch.address, "/t0");
    let cookie = reply.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    nodes[0] = Process::model_node("a", &addresses[0].1.to_string(), &manifest);
    until("an ordinary node serves", || node_of(&switch, "/t1", "").filter(|node| node == "a"));
    assert_eq!(served_by(&switch), names(&["a"]));
    assert_eq!(metric(admin, "larder_switch_group_on_backups", &["{group=\"\"}"]), Some(0));
    assert_eq!(metric(admin, "larder_switch_node_standby", &["{node=\"z\"}"]), Some(1));
    let fields = format!("Cookie: {cookie}\r\n");
    assert_eq!(node_of(&switch, "/t0", &fields).as_deref(), Some("z"), "the client's session is there");

    // A new config swaps the roles of the two nodes.
    switch.write(&lines(&addresses, &["a"]));
    switch.reload();
    // The previous worker may still accept connections for a moment.
    until("the new worker alone serves", || (served_by(&switch) == names(&["z"])).then_some(()));
    assert_eq!((standing(&switch, "a").2, standing(&switch, "z").1), (true, false));
    let log = switch.log_text();
    for said in ["backup nodes: take requests, no ordinary node", "backup nodes: take no new requests"] {
        assert!(log.lines().any(|line| line.contains(said)), "{said}\n{log}");
    }
    assert!(switch.terminate().success());
}

#[test]
fn check_shows_backups_and_warns_if_all_nodes_are_backups() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("larder.toml");
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let check = |backups: &[&str]| {
        let text = format!("[switch]\n{}\n", lines(&[("a", address(1)), ("b", address(2))], backups));
        fs::write(&config, text).unwrap();
        let arguments = ["check", "--no-preflight", config.to_str().unwrap()];
        let output = Command::new(LARDER).args(arguments).output().unwrap();
        assert!(output.status.success());
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let [said, warned] = check(&["b"]);
    assert!(said.contains("node b at 127.0.0.1:2: weight 1, cache unknown, backup"), "{said}");
    assert!(said.contains("node a at 127.0.0.1:1: weight 1, cache unknown\n"), "{said}");
    assert!(!warned.contains("backup"), "{warned}");
    let [_, warned] = check(&["a", "b"]);
    assert!(warned.contains("switch.nodes: every node is a backup"), "{warned}");
}
