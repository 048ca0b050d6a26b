//! `larder demo` with small traces: real clusters, every policy, with a switch and without, and all outputs.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use larder_core::PolicyKind;
use rustix::process::{Pid, Signal, kill_process};
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
        .arg("--output")
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

/// Every prompt passes a real switch, and each policy has the same requests.
#[test]
fn a_small_demo_of_prompts_compares_policies() {
    let output = Command::new(LARDER)
        .args([
            "demo",
            "--prompts",
            "--seconds",
            "2",
            "--nodes",
            "2",
            "--policies",
            "rr,lard-prefix",
            "--json",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let schema = Command::new(LARDER).args(["demo", "--prompts", "--json-schema"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&schema["properties"]), keys(&report));
    let policies = report["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 2);
    for policy in policies {
        let count = |key: &str| policy[key].as_u64().unwrap();
        assert_eq!(count("errors"), 0, "{policy}");
        assert_eq!(count("finished") + count("unfinished"), report["requests"].as_u64().unwrap(), "{policy}");
        assert!(count("finished") > 0 && policy["first_token_s_mean"].as_f64().unwrap() > 0.0, "{policy}");
    }
    let wrong = Command::new(LARDER).args(["demo", "--prompts", "--policies", "lard"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("unknown policy of chains 'lard'"));
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

/// Runs the demo without a switch, small and with fast disks. Returns its JSON.
fn peers_demo(more: &[&str]) -> Value {
    let output = Command::new(LARDER)
        .args([
            "demo",
            "--peers",
            "--nodes",
            "3",
            "--trace-recipe",
            "forth-like",
            "--scale",
            "0.02",
            "--speed",
            "100",
            "--clients",
            "24",
            "--json",
        ])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

fn share(value: &Value) -> f64 {
    let share = value.as_f64().unwrap_or_else(|| panic!("{value} is no share"));
    assert!((0.0..=1.0).contains(&share), "{share}");
    share
}

#[test]
fn a_small_demo_without_a_switch_counts_every_request_once() {
    let folder = tempfile::tempdir().unwrap();
    let (page, chart) = (folder.path().join("report.html"), folder.path().join("chart.svg"));
    let (page_name, chart_name) = (page.to_str().unwrap(), chart.to_str().unwrap());
    let report = peers_demo(&["--limit", "3000", "--output", page_name, "--svg", chart_name]);
    let schema = Command::new(LARDER).args(["demo", "--peers", "--json-schema"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&schema["properties"]), keys(&report));
    let point = &report["points"][0];
    assert_eq!(keys(&schema["$defs"]["Point"]["properties"]), keys(point));
    let systems = point["systems"].as_array().unwrap();
    let names: Vec<&str> = systems.iter().map(|system| system["system"].as_str().unwrap()).collect();
    assert_eq!(names, ["trad", "press", "card", "ward", "ward-own", "part", "lard-r"]);
    for (name, figures) in names.iter().zip(systems.iter().map(|system| &system["median"])) {
        let (requests, hits, misses) =
            (count(&figures["requests"]), count(&figures["hits"]), count(&figures["misses"]));
        assert_eq!((requests, hits + misses, count(&figures["errors"])), (2_000, 2_000, 0), "{name}");
        let whole = &figures["whole"];
        assert_eq!((&whole["sent"], &whole["served"]), (&3_000.into(), &3_000.into()), "{name}: {whole}");
        assert!(figures["requests_per_s"].as_f64().unwrap() > 0.0 && share(&figures["hit_ratio"]) > 0.0);
        let elsewhere = requests - count(&figures["local"]);
        if matches!(*name, "press" | "card" | "ward" | "ward-own" | "part") {
            assert!(share(&figures["forwarded"]) > 0.0 && elsewhere > 0, "{figures}");
            assert_eq!((&whole["decided"], &whole["forwarded"]), (&3_000.into(), &whole["taken"]), "{whole}");
            assert!(count(&whole["forwarded"]) >= elsewhere, "{whole}");
            let told = count(&whole["loads_told"]) > 0 && count(&whole["changes_told"]) > 0;
            assert_eq!(told, *name == "press", "{name}: {whole}");
            let messages = figures["peers"]["messages"].as_f64().unwrap();
            // The table contains all decisions. When nodes build another table is a matter of time.
            if *name != "ward-own" {
                assert_eq!(
                    messages > 0.01,
                    matches!(*name, "press" | "card"),
                    "{name}: {messages} a request"
                );
            }
            let decisions = figures["peers"]["decisions"].as_object().unwrap();
            let sum: f64 =
                decisions.iter().filter(|(why, _)| *why != "unanswered").map(|row| share(row.1)).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{decisions:?}");
        } else {
            assert_eq!((elsewhere, &figures["peers"]), (0, &Value::Null), "{name}");
            assert_eq!(figures["hit_ratio"], figures["hit_ratio_local"], "{name}");
        }
    }
    let [alone, together] = [0, 1].map(|system: usize| &systems[system]["median"]);
    assert!(share(&together["hit_ratio"]) > share(&alone["hit_ratio_local"]), "one memory instead of three");
    let rates = &report["rates"];
    assert!(rates["local_us"].as_f64().unwrap() > 0.0 && share(&rates["forwarded"]) > 0.3, "{rates}");
    assert_eq!(point["model"]["rows"].as_array().unwrap().len(), 3, "{report:#}");
    assert!(std::fs::read_to_string(page).unwrap().contains("paper, Clarknet"));
    assert!(std::fs::read_to_string(chart).unwrap().starts_with("<svg"));
}

#[test]
fn sweeps_run_every_setting() {
    let steps = peers_demo(&["--limit", "450", "--no-report", "--sweep", "load-step", "--no-model"]);
    let points = steps["points"].as_array().unwrap();
    let told: Vec<u64> = points.iter().map(|point| count(&point["load_step"])).collect();
    assert_eq!(told, [1, 2, 4, 8, 16]);
    let memories = peers_demo(&[
        "--limit",
        "450",
        "--no-report",
        "--sweep",
        "memory",
        "--policies",
        "press",
        "--no-model",
        "--seconds",
        "1",
    ]);
    let points = memories["points"].as_array().unwrap();
    let bytes: Vec<u64> = points.iter().map(|point| count(&point["memory_bytes"])).collect();
    assert!(bytes.len() == 6 && bytes.is_sorted(), "{bytes:?}");
    for point in points {
        let figures = &point["systems"][0]["median"];
        assert_eq!(count(&figures["hits"]) + count(&figures["misses"]), count(&figures["requests"]));
    }
}

#[test]
fn an_interrupt_ends_the_demo_and_all_its_nodes() {
    // A shell that starts a program in the background ignores interrupts for it.
    for shell in ["exec \"$0\" \"$@\"", "trap '' INT; exec \"$0\" \"$@\""] {
        let folder = tempfile::tempdir().unwrap();
        let demo = Command::new("sh")
            .args(["-c", shell, LARDER])
            .args(["demo", "--peers", "--speed", "0.1", "--nodes", "3", "--no-report", "--no-model"])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut demo = Killed(demo.unwrap());
        let cluster = until("nodes run", || Some(children(demo.0.id())).filter(|ids| ids.len() == 3));
        kill_process(Pid::from_child(&demo.0), Signal::INT).unwrap();
        let status = until("the demo ends", || demo.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(1), "the signal itself did not end it");
        until("all have ended", || cluster.iter().all(|id| parent_of(*id).is_none()).then_some(()));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "no files are left");
    }
}

/// A process that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
