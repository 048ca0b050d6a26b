//! `larder load`: output on stdout, exit codes, and a report after an interrupt.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use larder_testkit::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{LARDER, Process, until};

fn load(arguments: &[&str]) -> Output {
    Command::new(LARDER).arg("load").args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Writes a manifest of ten targets of 1 to 10 KB.
fn manifest(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("manifest");
    let lines: String = (1..=10).map(|size| format!("{}\t/file-{size}?x=1\n", size * 1_000)).collect();
    fs::write(&path, lines).unwrap();
    path
}

#[test]
fn a_list_is_replayed_and_each_size_checked() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let node = Process::model_node("pantry", "127.0.0.1:0", &manifest);
    let url = format!("http://{}", node.address);
    let list = ["--targets", manifest.to_str().unwrap(), "--check-sizes", "-n", "40", "--warmup", "10"];
    let saved = folder.path().join("first.json");
    let first =
        load(&[&[&*url, "--json", "--closed", "2", "--output", saved.to_str().unwrap()], &list[..]].concat());
    assert!(first.status.success());
    let report = json(&first);
    assert_eq!((&report["ok"], &report["failed"]), (&30.into(), &0.into()));
    assert_eq!(report["body_bytes"], 3 * 55_000);
    assert_eq!(report["nodes"][0]["name"], "pantry");
    assert_eq!(report["cache"]["hits"].as_u64().unwrap() + report["cache"]["misses"].as_u64().unwrap(), 30);
    // Compared with the first run, as text.
    let second = load(&[&[&*url, "--closed", "2", "--compare", saved.to_str().unwrap()], &list[..]].concat());
    let text = String::from_utf8(second.stdout).unwrap();
    assert!(text.contains("30 good, 0 failed") && text.contains("ratio"), "{text}");
    // A list with a wrong size.
    let lie = fs::read_to_string(&manifest).unwrap().replace("1000\t/file-1?", "1001\t/file-1?");
    fs::write(&manifest, lie).unwrap();
    let third = json(&load(&[&[&*url, "--json"], &list[..]].concat()));
    assert_eq!(third["faults"]["wrong_size"], 3);
}

#[test]
fn the_exit_code_depends_on_the_kind_of_error() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let url = format!("http://{nobody}/");
    let refused = load(&[&url]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&format!("cannot connect to {nobody}")));
    for arguments in
        [&["https://localhost/"][..], &[], &[&url, "--rate", "0"], &[&url, "--compare", "/dev/null"]]
    {
        let output = load(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    let folder = tempfile::tempdir().unwrap();
    let node = Process::model_node("n", "127.0.0.1:0", &manifest(folder.path()));
    let missing = format!("http://{}/none", node.address);
    assert_eq!(load(&[&missing, "-n", "3"]).status.code(), Some(0));
    assert_eq!(load(&[&missing, "-n", "3", "--strict"]).status.code(), Some(1));
}

#[test]
fn an_interrupt_ends_the_run_with_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let manifest = manifest.to_str().unwrap();
    let node = Process::start(&[
        "node",
        "--name",
        "n",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--manifest",
        manifest,
    ]);
    let admin = node.admin.unwrap();
    let url = format!("http://{}", node.address);
    let child = Command::new(LARDER)
        .args([
            "load",
            &url,
            "--targets",
            manifest,
            "--json",
            "--duration",
            "1h",
            "--rate",
            "100",
            "--warmup",
            "0",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = LoadProcess(Some(child));
    // The signal would end the process before it handles signals, so the test waits for the first requests.
    until("requests arrive", || {
        (crate::http::metric(admin, "larder_node_misses_total", &[])? > 0).then_some(())
    });
    let output = child.interrupt();
    assert!(output.status.success());
    let report = json(&output);
    assert!(report["ok"].as_u64().unwrap() > 0);
    assert!(report["warnings"].as_array().unwrap().iter().any(|warning| warning["kind"] == "interrupted"));
}

/// A load process that is killed at the end of its test.
struct LoadProcess(Option<Child>);

impl LoadProcess {
    /// Sends SIGINT and waits for the end of the process.
    fn interrupt(&mut self) -> Output {
        let child = self.0.as_mut().unwrap();
        kill_process(Pid::from_child(child), Signal::INT).unwrap();
        until("the run ends", || child.try_wait().unwrap());
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
