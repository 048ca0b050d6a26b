//! Requirements of a start. `larder check` and the start report the same faults, all at once, each with its
//! key.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use larder_testkit::free_port;
use serde_json::Value;

use crate::http;
use crate::process::{LARDER, Process};

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(LARDER).args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn write(folder: &Path, config: &str) {
    fs::write(folder.join("larder.toml"), config).unwrap();
}

/// Returns the places of all errors, warnings and notes, in order.
fn places(said: &str) -> Vec<&str> {
    let lines = said.lines().filter(|line| !line.starts_with(' '));
    lines
        .filter_map(|line| line.split_once("larder.toml:")?.1.split_once(": ")?.1.split(':').next())
        .collect()
}

#[test]
fn check_and_the_start_report_everything_missing_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(folder.path().join("empty.key"), "").unwrap();
    let config = format!(
        "[switch]\nlisten = [\"127.0.0.1:0\", \"{}\", \"192.0.2.1:80\"]\nnodes = [\"127.0.0.1:1\", \"no-such-host.invalid:80\"]\n\
         access_log.file = \"missing/access.log\"\nrecord.file = \".\"\n[switch.signals]\nsecret = \"empty.key\"\n\
         [[switch.discover]]\nfile = \"nodes.toml\"\n[admin]\nlisten = \"off\"\n",
        taken.local_addr().unwrap()
    );
    write(folder.path(), &config);
    let checked = run(folder.path(), &["check", "larder.toml"]);
    let said = stderr(&checked);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(checked.stdout.is_empty());
    let expected = [
        "switch.listen[1]",
        "switch.listen[2]",
        "switch.nodes[1]",
        "switch.access_log.file",
        "switch.record.file",
        "switch.signals.secret",
        "switch.discover[0].file",
    ];
    assert_eq!(places(&said), expected, "{said}");
    assert_eq!(said.matches("\n  hint: ").count(), expected.len(), "{said}");
    let started = run(folder.path(), &["switch", "--config", "larder.toml"]);
    assert_eq!((started.status.code(), stderr(&started)), (Some(1), said));
    let alone = run(folder.path(), &["check", "--no-preflight", "larder.toml"]);
    assert!(alone.status.success(), "{}", stderr(&alone));
}

#[test]
fn a_node_s_missing_requirements_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[node]\nname = \"a\"\nlisten = \"127.0.0.1:0\"\nroot = \"missing\"\n[node.peers]\nlisten = \"127.0.0.1:0\"\n\
                  advertise = \"127.0.0.1:7950\"\nsecret = \"cluster.key\"\nseeds = \"no-such-host.invalid:7950\"\n";
    write(folder.path(), config);
    let checked = stderr(&run(folder.path(), &["check", "larder.toml"]));
    assert!(checked.starts_with("warning: larder.toml:9:1: node.peers.seeds: cannot resolve"), "{checked}");
    assert_eq!(places(&checked), ["node.peers.seeds", "node.root", "node.peers.secret"], "{checked}");
    assert!(
        checked.contains("mkdir -p missing") && checked.contains("larder keys new cluster.key"),
        "{checked}"
    );
    let started = run(folder.path(), &["node", "--config", "larder.toml"]);
    assert_eq!(started.status.code(), Some(1));
    // An unreachable seed is no error: the node retries and logs the failures.
    assert_eq!(places(&stderr(&started)), ["node.root", "node.peers.secret"], "{}", stderr(&started));
    fs::create_dir(folder.path().join("missing")).unwrap();
    assert!(run(folder.path(), &["keys", "new", "cluster.key"]).status.success());
    let checked = run(folder.path(), &["check", "larder.toml"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    let summary = String::from_utf8(checked.stdout).unwrap();
    let peers = "  peers: listens on 127.0.0.1:0 (advertised as 127.0.0.1:7950), policy press, seeds no-such-host.invalid:7950\n";
    assert!(summary.contains(peers), "{summary}");
}

#[test]
fn an_address_of_a_running_larder_is_a_note_to_a_check_and_refuses_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let node = Process::start(&["node", "--root", "/", "--listen", "127.0.0.1:0"]);
    write(folder.path(), &format!("[node]\nlisten = \"{}\"\nroot = \"/\"\n", node.address));
    let checked = run(folder.path(), &["check", "larder.toml"]);
    let held =
        format!("larder.toml:2:1: node.listen: {} is in use by larder, process {}", node.address, node.id());
    assert!(checked.status.success(), "{}", stderr(&checked));
    let other = format!("warning: {held}, which was not started with this file: a start fails\n");
    assert!(stderr(&checked).starts_with(&other), "{}", stderr(&checked));
    let started = run(folder.path(), &["node", "--config", "larder.toml"]);
    assert_eq!(started.status.code(), Some(1));
    assert!(stderr(&started).contains(&format!("{held}\n")), "{}", stderr(&started));

    // A running process keeps its address at a reload of the same file.
    drop(node);
    let port = larder_testkit::free_port();
    write(folder.path(), &format!("[node]\nlisten = \"127.0.0.1:{port}\"\nroot = \"/\"\n"));
    let _node = Process::start(&["node", "--config", folder.path().join("larder.toml").to_str().unwrap()]);
    let checked = stderr(&run(folder.path(), &["check", "larder.toml"]));
    let kept = format!("note: larder.toml:2:1: node.listen: 127.0.0.1:{port} is in use by larder");
    assert!(checked.starts_with(&kept), "{checked}");
}

#[test]
fn a_config_can_be_checked_without_the_files_of_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"10.0.0.1:80\"]\nprocess.user = \"no-such-user\"\n\
                  [switch.tls]\nlisten = \"127.0.0.1:443\"\ncertificates = \"none.pem\"\n";
    write(folder.path(), config);
    let checked = stderr(&run(folder.path(), &["check", "larder.toml"]));
    assert_eq!(places(&checked), ["switch.process.user", "switch.tls.certificates"], "{checked}");
    let alone = run(folder.path(), &["check", "--no-preflight", "larder.toml"]);
    assert!(alone.status.success(), "{}", stderr(&alone));
    assert_eq!(String::from_utf8(alone.stdout).unwrap(), "larder.toml: ok\n");
    write(folder.path(), &format!("{config}polcy = 1\n"));
    let alone = run(folder.path(), &["check", "--no-preflight", "larder.toml"]);
    assert_eq!((alone.status.code(), places(&stderr(&alone))), (Some(2), vec!["switch.tls.polcy"]));
}

#[test]
fn the_doctor_reports_addresses_and_reachable_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let node = Process::start(&["node", "--name", "a", "--root", "/", "--listen", "127.0.0.1:0"]);
    assert_eq!(http::get(node.address, "/.larder/health").status, 200);
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{}\", \"{closed}\"]\n[switch.health]\ncheck = \"/.larder/health\"\n\
         [admin]\nlisten = \"off\"\n",
        node.address
    );
    write(folder.path(), &config);
    let examined = run(folder.path(), &["doctor", "--json", "--config", "larder.toml"]);
    assert!(examined.status.success(), "{}", stderr(&examined));
    let json: Value = serde_json::from_slice(&examined.stdout).unwrap();
    assert_eq!(json["start"], serde_json::json!({ "ready": true, "findings": [] }));
    let state = |list: &str, what: &str| {
        let all = json[list].as_array().unwrap();
        let one = all.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("{what} in {json:#}"));
        one["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state("reach", &format!("node {}", node.address)), "works");
    assert_eq!(state("reach", &format!("node {closed}")), "missing");
    assert_eq!(state("reach", "clock"), "works");
    assert!(["works", "degraded"].contains(&state("machine", "open files (nofile)").as_str()));
    write(
        folder.path(),
        &config
            .replace("[admin]", "[switch.traces]\nendpoint = \"http://127.0.0.1:1\"\n[admin]")
            .replace("[switch]\n", "[switch]\naccess_log.file = \"missing/a.log\"\n"),
    );
    let examined = run(folder.path(), &["doctor", "--config", "larder.toml"]);
    assert_eq!(examined.status.code(), Some(1));
    let text = String::from_utf8(examined.stdout.clone()).unwrap();
    assert!(
        text.starts_with(
            "start: not possible\n  error     larder.toml:2:12: switch.access_log.file: missing does not exist\n"
        ),
        "{text}"
    );
    assert!(
        stderr(&examined).ends_with("cannot start on this machine: 1 error under \"start\"\n"),
        "{}",
        stderr(&examined)
    );
}
