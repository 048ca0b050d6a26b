//! `larder doctor` as a process, on this machine and in namespaces.

use std::fs;
use std::process::{Command, Output};

use larder_handoff::channel::identity::Identity;
use larder_kernel::netns::{Host, INTERFACE, Topology, TopologySpec};
use larder_testkit::or_skip;
use serde_json::Value;

const LARDER: &str = env!("CARGO_BIN_EXE_larder");

fn states(output: &Output, role: &str) -> (Value, Vec<(String, String)>) {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let roles = json["roles"].as_array().unwrap();
    let side = roles.iter().find(|side| side["role"] == role).unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = side["findings"].as_array().unwrap();
    let states = findings.iter().map(|f| (text(&f["what"]), text(&f["state"]))).collect();
    (side, states)
}

/// Relay is always available, so an examination without requirements succeeds on every machine, with and
/// without privileges.
#[test]
fn it_reports_on_every_machine() {
    let output = Command::new(LARDER).args(["doctor", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for role in ["switch", "node"] {
        let (side, states) = states(&output, role);
        assert!(["cookie", "repair", "relay"].contains(&side["mechanism"].as_str().unwrap()), "{side}");
        for what in ["CAP_NET_ADMIN", "BTF", "bpf_sk_assign_tcp_reqsk", "TCP_REPAIR", "TUN"] {
            assert!(states.iter().any(|(name, _)| name == what), "{what} of {role}");
        }
    }
    let table = Command::new(LARDER).arg("doctor").output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("switch: auto requested") && table.contains("node: auto requested"), "{table}");
}

#[test]
fn an_unavailable_mechanism_fails_and_is_named() {
    let arguments = ["doctor", "--role", "switch", "--mechanism", "cookie", "--service", "192.0.2.1:80"];
    let output = Command::new(LARDER).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("the switch cannot use the requested mechanism cookie")
            && said.contains("address 192.0.2.1"),
        "{said}"
    );
    let wrong = Command::new(LARDER).args(["doctor", "--mechanism", "magic"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

fn examine(host: &Host, config: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("larder.toml");
    fs::write(&file, config).unwrap();
    let mut command = Command::new(LARDER);
    command.args(["doctor", "--json", "--config"]).arg(file).args(more);
    host.namespace.output(&mut command).unwrap()
}

/// Mechanism, interface, services and tunnels come from the config. Each listen address has its result.
#[test]
fn requirements_come_from_the_config() {
    let spec = TopologySpec { nodes: 1, routed: true, ..TopologySpec::default() };
    let Some(topology) = or_skip(Topology::new(&spec)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let identity = Identity::generate().unwrap();
    identity.save(&file).unwrap();
    let (key, file, node) = (identity.public(), file.display(), topology.nodes[0].v4);
    let switch = |more: &str| {
        format!(
            "[switch]\nlisten = [\"10.9.0.100:80\", \"0.0.0.0:81\"]\n\
             nodes = [\"192.0.2.9:80\", {{ address = \"{node}:80\", handoff = {{ control = \"{node}:7946\", key = \"{key}\" }} }}]\n\
             [switch.handoff]\nmechanism = \"cookie\"\nidentity = \"{file}\"\n{more}"
        )
    };
    let listens = |side: &Value| {
        let text = |one: &Value| one["mechanism"].as_str().unwrap().to_owned();
        side["listen"].as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    // Only tunnels pass the router between the hosts.
    for (forward, works, first) in [("", false, "relay"), ("forward = \"gue\"\n", true, "cookie")] {
        let output = examine(topology.front(), &switch(forward), &[]);
        let (side, states) = states(&output, "switch");
        assert_eq!(output.status.success(), works, "{side:#}");
        assert_eq!(side["asked"], "cookie");
        assert_eq!(listens(&side), [first, "relay"], "{side:#}");
        assert_eq!(side["relayed_nodes"], serde_json::json!(["192.0.2.9:80"]));
        // Found by the listen address.
        assert!(states.contains(&("interface eth0".to_owned(), "works".to_owned())), "{states:?}");
    }
    let agent = format!(
        "[agent]\nlisten = \"{node}:7946\"\nidentity = \"{file}\"\nswitches = [\"{key}\"]\n\
         interface = \"{INTERFACE}\"\nservices = [\"10.9.0.100:80\", \"10.9.0.101:80\"]\n"
    );
    let output = examine(&topology.nodes[0], &agent, &[]);
    let (side, states) = states(&output, "node");
    assert!(output.status.success(), "{side:#}");
    assert_eq!((&side["asked"], listens(&side).len()), (&"auto".into(), 2));
    for (what, state) in
        [("address 10.9.0.100", "works"), ("address 10.9.0.101", "missing"), ("interface eth0", "works")]
    {
        assert!(states.contains(&(what.to_owned(), state.to_owned())), "{states:?}");
    }
}

/// Cookie works in a topology made for it. It does not work through a router without a tunnel.
#[test]
fn a_config_is_examined_on_its_machine() {
    let switch = |node: &Host| {
        format!(
            "[switch]\nlisten = \"10.9.0.100:80\"\n[[switch.nodes]]\nname = \"a\"\naddress = \"{}:80\"\n",
            node.v4
        )
    };
    for routed in [false, true] {
        let spec = TopologySpec { nodes: 1, routed, ..TopologySpec::default() };
        let Some(topology) = or_skip(Topology::new(&spec)) else { return };
        let config = switch(&topology.nodes[0]);
        let output = examine(topology.front(), &config, &["--mechanism", "cookie"]);
        let (side, states) = states(&output, "switch");
        assert!(states.contains(&("address 10.9.0.100".to_owned(), "works".to_owned())), "{states:?}");
        assert_eq!(output.status.success(), !routed, "{side:#}");
        assert_eq!(side["mechanism"], if routed { "relay" } else { "cookie" });
        let tunnel = examine(topology.front(), &config, &["--mechanism", "cookie", "--tunnels"]);
        assert!(tunnel.status.success());
        // A config without handoff has all its requirements met.
        assert!(examine(topology.front(), &config, &[]).status.success());
    }
}
