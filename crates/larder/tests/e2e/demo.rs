//! `larder demo`, small: real cluster, every policy, all outputs.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use larder_core::PolicyKind;
use serde_json::Value;

use crate::process::{LARDER, children, parent_of, until};

#[test]
fn a_small_demo_compares_every_policy() {
    let folder = tempfile::tempdir().unwrap();
    let (page, chart) = (folder.path().join("report.html"), folder.path().join("chart.svg"));
    let output = Command::new(LARDER)
        .args([
            "demo", "--limit", "300", "--scale", "0.01", "--nodes", "2", "--cache", "1MB", "--speed", "200",
        ])
        .args(["--policies", "all", "--clients", "20", "--json"])
        .arg("--out")
        .arg(&page)
        .arg("--svg")
        .arg(&chart)
        .output()
        .unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "larder-demo/1");
    let schema = Command::new(LARDER).args(["demo", "--json-schema"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&schema["properties"]), keys(&report));
    assert_eq!(keys(&schema["$defs"]["Figures"]["properties"]), keys(&report["policies"][0]["median"]));
    assert_eq!(
        (&report["trace"]["requests"], &report["trace"]["warmup_requests"]),
        (&300.into(), &100.into())
    );
    let policies = report["policies"].as_array().unwrap();
    let names: Vec<&str> = policies.iter().map(|policy| policy["policy"].as_str().unwrap()).collect();
    assert_eq!(names, PolicyKind::ALL.map(PolicyKind::name));
    for policy in policies {
        let figures = &policy["median"];
        assert!(figures["requests_per_s"].as_f64().unwrap() > 0.0, "{policy}");
        assert_eq!(figures["errors"], 0, "{policy}");
        assert!((0.0..=1.0).contains(&figures["hit_ratio"].as_f64().unwrap()), "{policy}");
        assert_eq!(policy["node_loads"].as_array().unwrap().len(), 2, "{policy}");
    }
    assert!(std::fs::read_to_string(page).unwrap().contains("lard-r"));
    assert!(std::fs::read_to_string(chart).unwrap().starts_with("<svg"));
}

#[test]
fn a_killed_demo_leaves_no_process_behind() {
    let mut demo = Command::new(LARDER)
        .args(["demo", "--speed", "0.1", "--nodes", "3", "--no-report", "--policies", "wrr"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let cluster = until("nodes and switch run", || Some(children(demo.id())).filter(|ids| ids.len() == 4));
    demo.kill().unwrap();
    demo.wait().unwrap();
    until("all have ended", || cluster.iter().all(|id| parent_of(*id).is_none()).then_some(()));
}
