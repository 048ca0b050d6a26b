//! Programs of a node, and a node before an origin.

use std::fs;
use std::path::Path;

use crate::http::{ask, get};
use crate::process::{Process, until};

fn configured(folder: &Path, text: &str) -> Process {
    let path = folder.join("node.toml");
    fs::write(&path, format!("[node]\nname = \"n\"\nlisten = \"127.0.0.1:0\"\n{text}")).unwrap();
    Process::start(&["node", "--config", path.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

#[test]
fn programs_take_the_time_of_a_modelled_machine_beside_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifest.tsv");
    fs::write(&manifest, "1000\t/a.html\n").unwrap();
    let node = configured(
        folder.path(),
        &format!(
            "[node.model]\nmanifest = \"{}\"\nspeed = 100.0\nprocessor_speed = 10.0\nprograms = [\n\
             {{ name = \"cgi\", paths = \"/cgi-bin/*\", cpu = \"100ms\", reads = 2, reply = \"6KB\" }},\n]\n",
            manifest.display()
        ),
    );
    let program = get(node.address, "/cgi-bin/x?y=1");
    assert_eq!((program.status, program.body.len()), (200, 6_000));
    assert_eq!(program.header("cache-status"), Some("n; fwd=bypass; detail=cgi"));
    assert_eq!(program.header("cache-control"), Some("no-store"));
    assert_eq!(ask(node.address, "HEAD", "/cgi-bin/x", "").status, 200);
    assert_eq!(get(node.address, "/a.html").body.len(), 1_000);
    let stats = get(node.admin.unwrap(), "/stats").json();
    assert_eq!((stats["dynamic"].as_u64(), stats["disk_reads"].as_u64()), (Some(2), Some(5)), "{stats}");
    // Each of two requests takes 100 ms of a processor that is ten times as fast.
    assert!(stats["cpu_busy_us"].as_u64().unwrap() >= 20_000, "{stats}");
    assert!(node.terminate().success());
}

#[test]
fn a_node_stands_before_an_application() {
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("a.txt"), "content").unwrap();
    let application = Process::start(&[
        "node",
        "--name",
        "app",
        "--root",
        site.path().to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
    ]);
    let url = format!("http://{}", application.address);
    let node = Process::start(&[
        "node",
        "--name",
        "n",
        "--origin",
        &url,
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    let first = get(node.address, "/a.txt");
    assert_eq!((first.status, first.body.as_slice()), (200, &b"content"[..]));
    let status = first.header("cache-status").unwrap();
    assert!(status.starts_with("app; fwd=uri-miss; stored"), "the application speaks first: {}", first.head);
    assert!(first.head.contains("n; fwd=uri-miss; fwd-status=200; stored"), "{}", first.head);
    let objects = || get(node.admin.unwrap(), "/stats").json()["cache_objects"].as_u64();
    until("the reply is kept", || objects().filter(|objects| *objects == 1));
    let part = ask(node.address, "GET", "/a.txt", "Range: bytes=0-2\r\n");
    assert!(part.status == 206 || part.head.contains("fwd=stale"), "{}", part.head);
    assert_eq!(part.body, b"con");
    drop(application);
    assert_eq!(get(node.address, "/b.txt").status, 502);
    assert!(node.terminate().success());
}
