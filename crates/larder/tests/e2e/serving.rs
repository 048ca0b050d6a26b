//! Nodes and a switch that serve a directory, and their admin interfaces.

use std::fs;

use tempfile::TempDir;

use crate::http::{ask, get};
use crate::process::{Process, until};

fn site() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..20 {
        fs::write(folder.path().join(format!("{i}.txt")), format!("content of {i}")).unwrap();
    }
    folder
}

fn node(site: &TempDir, name: &str) -> Process {
    let root = site.path().to_str().unwrap();
    Process::start(&[
        "node",
        "--name",
        name,
        "--root",
        root,
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ])
}

fn switch(nodes: &[(&str, &Process)]) -> Process {
    let nodes: Vec<String> =
        nodes.iter().map(|(name, node)| format!("--node={name}={}", node.address)).collect();
    let mut words = vec!["switch", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    words.extend(nodes.iter().map(String::as_str));
    Process::start(&words)
}

#[test]
fn a_node_serves_a_directory_from_memory_the_second_time() {
    let site = site();
    let node = node(&site, "alone");
    let first = get(node.address, "/3.txt");
    assert_eq!((first.status, first.body.as_slice()), (200, &b"content of 3"[..]));
    assert_eq!(first.node_and_hit(), ("alone".to_owned(), false));
    assert_eq!(get(node.address, "/3.txt").node_and_hit(), ("alone".to_owned(), true));
    assert_eq!(ask(node.address, "GET", "/3.txt", "Range: bytes=0-6\r\n").body, b"content");
    assert_eq!(get(node.address, "/../etc/passwd").status / 100, 4);
    let stats = get(node.admin.unwrap(), "/stats").json();
    assert!(stats["hits"].as_u64().unwrap() >= 1, "{stats}");
    assert!(get(node.admin.unwrap(), "/metrics").body.starts_with(b"# "));
    assert!(node.terminate().success());
}

#[test]
fn a_switch_sends_a_target_to_the_node_that_has_it() {
    let site = site();
    let (a, b) = (node(&site, "a"), node(&site, "b"));
    let switch = switch(&[("a", &a), ("b", &b)]);
    let mut used = Vec::new();
    for i in 0..20 {
        let target = format!("/{i}.txt");
        let (first, hit) = get(switch.address, &target).node_and_hit();
        assert!(!hit, "{target} was never asked for");
        for _ in 0..2 {
            assert_eq!(get(switch.address, &target).node_and_hit(), (first.clone(), true), "{target}");
        }
        used.push(first);
    }
    used.sort();
    used.dedup();
    assert_eq!(used, ["a", "b"], "targets are shared out");
    drop(a);
    assert!(switch.close_stdin().success());
}

#[test]
fn the_admin_interface_explains_and_drains() {
    let site = site();
    let (a, b) = (node(&site, "a"), node(&site, "b"));
    let switch = switch(&[("a", &a), ("b", &b)]);
    let admin = switch.admin.unwrap();
    let (server, _) = get(switch.address, "/7.txt").node_and_hit();

    let explained = get(admin, "/explain?target=test/7.txt");
    assert_eq!(explained.status, 200);
    let text = explained.json().to_string();
    assert!(text.contains(&format!("\"{server}\"")), "{server} has the target: {text}");

    let nodes = get(admin, "/nodes").json();
    let names: Vec<&str> =
        nodes.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(get(admin, "/config").json()["switch"]["policy"], "lard-r");
    assert_eq!(get(admin, "/healthz").status, 200);
    assert_eq!(get(admin, "/status").status, 200);
    assert!(get(admin, "/metrics").body.starts_with(b"# "));

    assert_eq!(get(admin, &format!("/nodes/{server}/drain")).status, 405);
    assert_eq!(ask(admin, "POST", "/nodes/nobody/drain", "").status, 404);
    let page = ask(admin, "POST", &format!("/nodes/{server}/drain"), "Origin: http://evil.example\r\n");
    assert_eq!(page.status, 403);
    assert_eq!(ask(admin, "POST", &format!("/nodes/{server}/drain"), "").status, 200);
    let other = if server == "a" { "b" } else { "a" };
    until("the target has moved", || (get(switch.address, "/7.txt").node_and_hit().0 == other).then_some(()));
    assert_eq!(ask(admin, "POST", &format!("/nodes/{server}/undrain"), "").status, 200);

    let missing = get(admin, "/nowhere");
    assert_eq!(missing.status, 404);
    assert!(missing.json()["hint"].as_str().unwrap().contains("/explain"));
    assert_eq!(ask(admin, "DELETE", "/nodes", "").status, 405);
    assert_eq!(get(admin, "/explain").status, 400);
}
