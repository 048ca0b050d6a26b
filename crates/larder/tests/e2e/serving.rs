//! Nodes and a switch that serve a directory, and their admin interfaces.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use rustix::process::Signal;
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

    let explained = get(admin, "/explain?target=localhost/7.txt");
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

#[test]
fn a_terminating_switch_completes_its_requests() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifest.tsv");
    fs::write(&manifest, "1000\t/slow\n").unwrap();
    // 28 ms divided by this speed are nearly a second.
    let node = Process::slow_node("slow", "127.0.0.1:0", &manifest, 0.03);
    let switch = switch(&[("slow", &node)]);
    let (address, admin) = (switch.address, switch.admin.unwrap());
    let client = thread::spawn(move || get(address, "/slow"));
    let outstanding = || get(admin, "/status").json()["outstanding"].as_u64();
    until("the request is under way", || (outstanding() == Some(1)).then_some(()));
    assert!(switch.terminate().success());
    let reply = client.join().unwrap();
    assert_eq!((reply.status, reply.body.len()), (200, 1_000));
}

#[test]
fn the_access_log_survives_rotation() {
    let (site, folder) = (site(), tempfile::tempdir().unwrap());
    let node = node(&site, "a");
    let (log, old) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let (member, file) = (format!("--node=a={}", node.address), log.to_str().unwrap());
    let words = ["switch", "--listen", "127.0.0.1:0", &member, "--admin", "off", "--access-log", file];
    let switch = Process::start(&words);
    let lines = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    get(switch.address, "/1.txt");
    until("the line is written", || (lines(&log) == 1).then_some(()));
    fs::rename(&log, &old).unwrap();
    switch.signal(Signal::HUP);
    until("lines go to the new file", || {
        get(switch.address, "/2.txt");
        (lines(&log) > 0).then_some(())
    });
    let text = fs::read_to_string(&old).unwrap();
    assert!(text.contains("\"GET /1.txt HTTP/1.1\" 200") && text.contains("node=a"), "{text}");
}

#[test]
fn the_admin_interface_limits_the_size_of_requests() {
    let site = site();
    let node = node(&site, "a");
    let mut stream = TcpStream::connect(node.admin.unwrap()).unwrap();
    let long = format!("GET /stats HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(40_000));
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(long.as_bytes());
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&reply));
    assert_eq!(get(node.admin.unwrap(), "/healthz").status, 200);
}
