//! `larder-lab calibrate` and `larder-lab validate`: comparison of a live cluster with the simulator, and invalid files.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is a failed test")]

mod program;

use std::fs;

use serde_json::Value;

use program::lab;

/// A log with a few popular and many unpopular targets: 3,000 requests for 60 targets of 1 to 60 KB.
fn log() -> String {
    let line = |i: u32| {
        // The square of a uniform random number favours small numbers.
        let draw = u64::from(i.wrapping_mul(2_654_435_761) >> 16) % 1_000;
        let target = draw * draw * 60 / 1_000_000;
        let second = i / 60;
        format!(
            "10.0.0.1 - - [01/Jan/2024:00:{:02}:{:02} +0000] \"GET /{target} HTTP/1.1\" 200 {}\n",
            second / 60,
            second % 60,
            1_000 * (target + 1)
        )
    };
    (0..3_000).map(line).collect()
}

#[test]
fn the_simulator_hits_as_often_as_the_live_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, costs, published) = (path("a.log"), path("costs.toml"), path("rows.md"));
    fs::write(&trace, log()).unwrap();
    let calibrated =
        lab(&["calibrate", "--seconds", "5", "--model", "modelled", "--output", &costs, "--json"]);
    assert!(calibrated.status.success(), "{}", String::from_utf8_lossy(&calibrated.stderr));
    let calibration: Value = serde_json::from_slice(&calibrated.stdout).unwrap();
    for part in ["node", "switch", "client"] {
        assert!(calibration[part]["cost"]["request_us"].as_f64().unwrap() > 1.0, "{calibration}");
    }
    // Node memory holds a sixth of the 1.8 MB, so policies and replacement matter.
    let output = lab(&[
        "validate",
        "--log",
        &trace,
        "--nodes",
        "2",
        "--policies",
        "wrr,hash,lard-r",
        "--cache",
        "300KB",
        "--seconds",
        "2",
        "--costs",
        &costs,
        "--markdown",
        &published,
        "--json",
    ]);
    // The agreement of the throughput depends on other load of this machine, so the exit code is not checked.
    let talk = String::from_utf8_lossy(&output.stderr);
    let rows: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {talk}"));
    let rows = rows.as_array().unwrap();
    let policies: Vec<&str> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["wrr", "hash", "lard-r"]);
    for row in rows {
        assert_eq!(row["requests"], 2_000, "{row}");
        let hits = row["live"]["hit_ratio"].as_f64().unwrap();
        assert!((0.2..0.99).contains(&hits), "memory must matter: {row}");
        // The other policies depend on load, and so on other load of this machine.
        let points_max = if row["policy"] == "hash" { 5.0 } else { 20.0 };
        assert!(row["hit_points"].as_f64().unwrap().abs() <= points_max, "{row}");
        assert!(row["simulated"]["requests_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let text = fs::read_to_string(&published).unwrap();
    assert!(text.starts_with("# Live against simulated") && text.contains("| lard-r |"), "{text}");
}

#[test]
fn invalid_runs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let costs = folder.path().join("costs.toml");
    let file = costs.to_str().unwrap();
    let files = [
        ("model = \"modelled\"\n\ncores = 0\n", "costs.toml:3: cores: must be 1 to 1,024"),
        ("model = \"modelled\"\n[machine]\nrequest = 1.0\n", "costs.toml:3: machine.request: unknown field"),
        ("model = \"moddeled\"\n", "costs.toml:1: model: unknown model 'moddeled'"),
        ("model = \"modern\"\n", "needs the model 'modelled'"),
    ];
    for (text, expected) in files {
        fs::write(&costs, text).unwrap();
        let output = lab(&["validate", "--costs", file, "--limit", "30"]);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}: {talk}");
        assert!(talk.contains(expected), "{text}: {talk}");
    }
    for (arguments, expected) in [
        (["validate", "--policies", "ward"], "which this comparison does not provide"),
        (["validate", "--speed", "0"], "--speed must be"),
        (["validate", "--seconds", "0"], "--seconds must be"),
        (["validate", "--cache", "0"], "--cache must be above 0"),
        (["calibrate", "--seconds", "1"], "--seconds must be from 2"),
    ] {
        let output = lab(&arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {talk}");
        assert!(talk.contains(expected), "{arguments:?}: {talk}");
    }
}
