//! `larder sim churn` with a small trace: text, JSON, Markdown, and errors for invalid arguments.

use std::process::{Command, Output};

use larder_core::PolicyKind;
use serde_json::Value;

use crate::process::LARDER;

fn churn(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(["sim", "churn"]).args(arguments).output().unwrap()
}

#[test]
fn a_small_run_has_every_policy_and_event() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("churn.md");
    let small = ["--scale", "0.01", "--nodes", "3", "--json", "--markdown", page.to_str().unwrap()];
    let output = churn(&small);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(table["schema"], "larder/churn/1");
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), PolicyKind::ALL.len() * 4);
    for (row, at) in rows.iter().zip(0..) {
        assert_eq!(row["policy"], PolicyKind::ALL[at / 4].name());
        assert_eq!(row["event"], ["join", "leave", "flap", "restart"][at % 4]);
    }
    // All requests are for files, so `static` reserves no nodes. A target goes to any of three nodes.
    let of = |policy: &str| rows.iter().find(|row| row["policy"] == policy).unwrap();
    assert!(of("static")["moved_anyway"].as_f64().unwrap() > 0.3, "{}", of("static"));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("larder sim churn --recipe rice-like --scale 0.01 --nodes 3"), "{page}");
    assert!(page.contains("| lard-r | leave |"), "{page}");
}

#[test]
fn bad_arguments_are_named() {
    for (arguments, complaint) in [
        (&["--policies", "all,rr"][..], "'all' cannot be combined"),
        (&["--policies", "lrad"], "unknown policy 'lrad'"),
        (&["--costs", "free"], "'free' is not a cost model"),
        (&["--limit", "100"], "at least 10,000 requests"),
        (&["--nodes", "1"], "2..=1000"),
        (&["--refresh", "0s", "--scale", "0.01"], "refresh.every"),
    ] {
        let output = churn(arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && talk.contains(complaint), "{arguments:?}: {talk}");
    }
}
