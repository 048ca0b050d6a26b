//! `larder-lab live` on small workloads with real processes: one run of each kind of scenario.
//!
//! These tests are a separate program, because they use all CPUs and would disturb tests that measure.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is a failed test")]

mod program;

use std::fs;
use std::process::Output;

use serde_json::Value;

fn live(arguments: &[&str]) -> Output {
    program::lab(&[&["live"], arguments].concat())
}

fn rows(output: &Output) -> Vec<Value> {
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {talk}"))
}

/// A log, a mix with programs, and a site with routes and groups.
#[test]
fn a_log_a_mix_and_a_site_run_under_policies_that_need_signals() {
    const SCENES: [&str; 3] = ["small", "cap-intensive", "hacc-asp"];
    let folder = tempfile::tempdir().unwrap();
    let (log, page) = (folder.path().join("small.log"), folder.path().join("policies.md"));
    let lines = (0..2_000_u32).map(|i| {
        let target = i.wrapping_mul(2_654_435_761) >> 20 & 0xff;
        format!("c - - [20/Feb/2016:00:00:00 +0000] \"GET /{target} HTTP/1.1\" 200 {}\n", 500 + 40 * target)
    });
    fs::write(&log, lines.collect::<String>()).unwrap();
    let (log, page_path) = (log.to_str().unwrap(), page.to_str().unwrap());
    let output = live(
        &[
            &["policies", "--log", log, "--only", &SCENES.join(","), "--policies", "cap,hacc"][..],
            &["--seconds", "1", "--json", "--markdown", page_path],
        ]
        .concat(),
    );
    let rows = rows(&output);
    let named: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row["scene"].as_str().unwrap(), row["figures"]["policy"].as_str().unwrap()))
        .collect();
    let expected = SCENES.iter().flat_map(|scene| ["cap", "hacc"].map(|policy| (*scene, policy)));
    assert_eq!(named, expected.collect::<Vec<_>>());
    for row in &rows {
        let figures = &row["figures"];
        assert!(figures["broken"].is_null() && figures["errors"] == 0, "{row:#}");
        assert!(figures["requests_per_s"].as_f64().unwrap() > 10.0, "{row:#}");
        let nodes = [("small", 8), ("cap-intensive", 4), ("hacc-asp", 3)];
        let nodes = nodes.iter().find(|(scene, _)| row["scene"] == *scene).unwrap().1;
        assert_eq!(figures["busy"].as_array().unwrap().len(), nodes, "{row:#}");
    }
    // Two of the site's three nodes run the scripts. Only the first one serves files and uses its disk.
    let site = &rows[5]["figures"];
    for node in 1..3 {
        assert_eq!(site["busy"][node]["disk"], 0.0, "{site:#}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("## Hit ratio") && page.contains("| hacc |"), "{page}");
}

#[test]
fn invalid_arguments_are_reported() {
    for (arguments, complaint) in [
        (&["cap", "--clients", "0"][..], "--clients 0: 1 to 20000"),
        (&["cap", "--policies", "best"], "unknown policy 'best'"),
        (&["policies", "--only", "nothing"], "--only names no workload"),
        (&["policies", "--log", "/nonexistent.log"], "/nonexistent.log"),
        (&["bound", "--log", "/nonexistent.log", "--p99", "0"], "--p99 takes times above 0"),
        (&["bound"], "--log"),
    ] {
        let output = live(arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && talk.contains(complaint), "{arguments:?}: {talk}");
    }
}
