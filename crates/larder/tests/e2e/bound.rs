//! `larder sim bound` with a small synthetic trace: the table, JSON, a log with a malformed line, and errors.

use std::process::{Command, Output};

use serde_json::Value;

use crate::process::LARDER;

const SMALL: [&str; 4] = ["--recipe", "rice-like", "--scale", "0.02"];

fn bound(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(["sim", "bound"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn no_policy_exceeds_the_bound() {
    let arguments = [&SMALL[..], &["--nodes", "2,4", "--policies", "rr,lard-r"]].concat();
    let output = bound(&[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let clusters = report["clusters"].as_array().unwrap();
    assert_eq!(clusters.iter().map(|cluster| &cluster["nodes"]).collect::<Vec<_>>(), [2, 4]);
    for cluster in clusters {
        let most = cluster["bound"]["throughput"].as_f64().unwrap();
        let policies = cluster["policies"].as_array().unwrap();
        assert_eq!(policies.iter().map(|row| &row["policy"]).collect::<Vec<_>>(), ["rr", "lard-r"]);
        for row in policies {
            let (throughput, share) = (row["throughput"].as_f64().unwrap(), row["share"].as_f64().unwrap());
            assert!(throughput > 0.0 && throughput <= most, "{row} {most}");
            assert!((share - throughput / most).abs() < 1e-9, "{row} {most}");
        }
    }
    let table = text(&bound(&arguments).stdout);
    assert!(table.contains("(upper bound)") && table.contains("limit: "), "{table}");
}

#[test]
fn malformed_lines_and_wrong_arguments_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let line =
        |path: u32| format!("192.0.2.1 - - [01/Mar/2026:00:00:00 +0000] \"GET /{path} HTTP/1.1\" 200 1000\n");
    std::fs::write(&log, (0..50).map(|n| line(n % 10)).chain(["nonsense\n".to_owned()]).collect::<String>())
        .unwrap();
    let output = bound(&["--log", log.to_str().unwrap(), "--nodes", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("access.log: 1 of 51 lines left out"), "{}", text(&output.stderr));
    for (arguments, part) in [
        (["--costs", "free"], "--costs 'free' is not a cost model: use one of "),
        (["--recipe", "none"], "none"),
        (["--log", "/nonexistent.log"], "/nonexistent.log"),
    ] {
        let output = bound(&arguments);
        assert!(!output.status.success() && text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}
