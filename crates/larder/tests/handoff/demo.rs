//! `larder demo --handoff`: its report, and the removal of everything it made.

use larder_testkit::{or_skip, take_time};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use larder_kernel::netns::{available, installed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LARDER: &str = env!("CARGO_BIN_EXE_larder");

fn demo() -> Command {
    let mut command = Command::new(LARDER);
    command.args(["demo", "--handoff", "--json", "--seconds", "1", "--nodes", "2", "--clients", "4"]);
    command.args(["--scale", "0.01", "--limit", "2000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the namespaces and programs of the demo with this process ID.
fn leftovers(id: u32) -> Vec<String> {
    let names = |folder: &str, prefix: String| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.starts_with(&prefix))
            .map(|name| format!("{folder}/{name}"))
            .collect::<Vec<_>>()
    };
    let mut left = names("/run/netns", format!("ld{id}-"));
    for folder in ["/sys/fs/bpf/larder", "/run/larder/bpf"] {
        left.extend(
            pinned_objects(Path::new(folder))
                .into_iter()
                .filter(|path| path.contains(&format!("larder-demo-{id}"))),
        );
    }
    left
}

/// Returns everything that is pinned below a directory. Directories hold nothing in the kernel.
fn pinned_objects(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let each = |path: std::path::PathBuf| {
        if path.is_dir() { pinned_objects(&path) } else { vec![path.display().to_string()] }
    };
    entries.flatten().flat_map(|entry| each(entry.path())).collect()
}

#[test]
#[ignore = "long: cargo xtask acceptance handoff-trouble"]
fn handoff_costs_the_front_end_less_and_nothing_is_left() {
    if or_skip(available()).is_none() {
        return;
    }
    let child = demo().spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "larder-demo-handoff/1");
    let rows = report["rows"].as_array().unwrap();
    let row = |setting: &str| rows.iter().find(|row| row["setting"] == setting && row["server"] == "larder");
    let (relay, repair, cookie) = (row("relay").unwrap(), row("repair").unwrap(), row("cookie").unwrap());
    let handed = |row: &Value| {
        let shares = row["delivered"].as_object().unwrap().iter();
        let handed = shares.filter(|(name, _)| name.starts_with("cookie/") || name.starts_with("repair/"));
        handed.filter_map(|(_, share)| share.as_f64()).sum::<f64>()
    };
    assert!(handed(relay) < 0.01 && handed(repair) > 0.8 && handed(cookie) > 0.8, "{report:#}");
    for row in [relay, repair, cookie] {
        assert_eq!(row["errors"], 0, "{row:#}");
        assert!(row["requests_per_s"].as_f64().unwrap() > 0.0 && row["front_us"].as_f64().unwrap() > 0.0);
    }
    // A reply of 10,000 bytes either passes the switch or bypasses it.
    let bytes = |row: &Value, which: &str| row["trace"][which].as_u64().unwrap();
    assert!(bytes(relay, "front_bytes") > 10_000 && bytes(relay, "direct_bytes") == 0, "{relay:#}");
    assert!(bytes(cookie, "front_bytes") < 10_000 && bytes(cookie, "direct_bytes") > 10_000, "{cookie:#}");
    assert_eq!(leftovers(id), Vec::<String>::new());
}

/// A missing capability is reported with its remedy, and not as a fault of the program.
#[test]
fn without_privileges_it_reports_missing_capabilities() {
    let mut command = demo();
    if available().is_ok() {
        if or_skip(installed("setpriv", "--version", "util-linux")).is_none() {
            return;
        }
        let mut by = Command::new("setpriv");
        by.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--", LARDER]);
        by.args(command.get_args());
        command = by;
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("needs CAP_NET_ADMIN") && said.contains("larder doctor"), "{said}");
    assert!(!said.contains("panicked") && output.stdout.is_empty(), "{said}");
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    if or_skip(available()).is_none() {
        return;
    }
    let mut child = demo().spawn().unwrap();
    let id = child.id();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.by_ref().map_while(Result::ok).any(|line| line.starts_with("relay")), "it never began");
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).unwrap();
    // The demo is interrupted while it starts its processes, so that parts of everything exist.
    take_time(std::time::Duration::from_millis(1_500));
    kill_process(pid, Signal::INT).unwrap();
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    assert_eq!(leftovers(id), Vec::<String>::new());
}
