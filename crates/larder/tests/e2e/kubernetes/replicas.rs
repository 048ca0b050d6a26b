//! Several replicas of a picker agree through the protocol between switches.

use std::fs;
use std::path::Path;
use std::process::Command;

use larder_testkit::free_port;
use serde_json::Value;

use super::picker::page;
use crate::process::{LARDER, Process, until};

fn replica(folder: &Path, name: &str, port: u16, seeds: &[u16]) -> Process {
    let secret = folder.join("peers.key");
    let seeds: Vec<String> = seeds.iter().map(|seed| format!("127.0.0.1:{seed}")).collect();
    let config = format!(
        "[picker]\nlisten = \"127.0.0.1:0\"\nnodes = [\"10.0.0.1:80\", \"10.0.0.2:80\", \"10.0.0.3:80\"]\n\
         [picker.peers]\nlisten = \"127.0.0.1:{port}\"\nsecret = {secret:?}\nseeds = {seeds:?}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let path = folder.join(format!("{name}.toml"));
    fs::write(&path, config).unwrap();
    let address = format!("127.0.0.1:{port}");
    // The command line gives what differs between the pods of a deployment.
    Process::start(&[
        "picker",
        "--config",
        path.to_str().unwrap(),
        "--peer-name",
        name,
        "--peer-address",
        &address,
    ])
}

/// Returns the names of the peers to which messages pass.
fn peers(picker: &Process) -> Vec<String> {
    let page = page(picker, "/peers");
    let up = page["others"].as_array().unwrap().iter().filter(|peer| peer["up"] == true);
    up.map(|peer| peer["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn replicas_find_each_other_and_survive_the_loss_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let made =
        Command::new(LARDER).args(["keys", "new"]).arg(folder.path().join("peers.key")).output().unwrap();
    assert!(made.status.success());
    let ports = [free_port(), free_port(), free_port()];
    let [a, b, mut c] = ["a", "b", "c"].map(|name| {
        let at = usize::from(name.as_bytes()[0] - b'a');
        replica(folder.path(), name, ports[at], &ports)
    });
    let until_peers = |picker: &Process, expected: &[&str]| {
        let known = || peers(picker);
        until(std::fmt::from_fn(|f| write!(f, "peers {expected:?}, not {:?}", known())), || {
            (known() == expected).then_some(())
        });
    };
    until_peers(&a, &["b", "c"]);
    until_peers(&b, &["a", "c"]);
    c.kill();
    until_peers(&a, &["b"]);
    let page: Value = page(&b, "/peers");
    assert_eq!((&page["name"], &page["whole"]), (&"b".into(), &true.into()), "{page}");
    assert!(a.terminate().success());
    until_peers(&b, &[]);
}
