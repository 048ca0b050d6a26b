//! `larder trace ward`: from a log to a table and back.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::assert::OutputAssertExt as _;
use larder_core::TargetId;
use larder_core::policy::table::Place;
use larder_trace::ward::read_routes;
use larder_trace::{Limits, Trace};

use crate::process::LARDER;

fn ward(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(LARDER).args(["trace", "ward"]).args(arguments).assert()
}

fn stdout(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stdout).into_owned()
}

fn stderr(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

/// Writes a packed log of 20,000 requests.
fn log(folder: &Path) -> String {
    let path = folder.join("a.log.zst").to_str().unwrap().to_owned();
    let made = ["trace", "synth", "zipf", "--targets", "500", "--requests", "20000", "-o", &path];
    Command::new(LARDER).args(made).assert().success();
    path
}

#[test]
fn the_written_table_is_the_one_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (log, table) = (log(folder.path()), folder.path().join("t.routes.gz"));
    let trace = Trace::load(Path::new(&log), &larder_trace::LoadOptions::default()).unwrap().0;
    let memory = (trace.working_set().get() / 8).to_string();
    let common = [&log, "--names", "a,b,c,d", "--memory", &memory];
    let report = ward(&[&common[..], &["--json", "-o", table.to_str().unwrap()]].concat()).success();
    let report: serde_json::Value = serde_json::from_str(&stdout(&report)).unwrap();
    let (header, routes) =
        read_routes(&table, &Limits::default(), |name| TargetId::of(name.as_bytes())).unwrap();
    let count = |class: &str| report["analysis"][class]["targets"].as_u64().unwrap();
    assert!(count("core") > 0 && count("partition") > 0);
    assert_eq!((header.core_targets, header.partition_targets), (count("core"), count("partition")));
    assert_eq!((header.names.len(), header.log_requests), (4, 20_000));
    assert_eq!((header.costs.origin.as_str(), header.log.as_str()), ("ward01", log.as_str()));
    assert_eq!(routes.core_len() as u64, count("core"));
    let mut counts = vec![0; trace.targets.len()];
    trace.requests.iter().for_each(|request| counts[request.target as usize] += 1);
    let hottest = (0..counts.len()).max_by_key(|&target| counts[target]).unwrap();
    assert_eq!(routes.get(TargetId::of(trace.targets[hottest].name.as_bytes())), Some(Place::Core));

    let text = stdout(&ward(&common).success());
    for word in ["core", "partition", "on disk", "other", "expected locally", "without a core"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.contains("20,000 requests to"), "{text}");
    // A stream gives the same result.
    let bytes = fs::read(&log).unwrap();
    let streamed = assert_cmd::Command::new(LARDER)
        .args(["trace", "ward", "-", "--names", "a,b,c,d", "--memory", &memory])
        .write_stdin(bytes)
        .assert()
        .success();
    assert_eq!(stdout(&streamed), text);
}

#[test]
fn costs_come_from_flags_names_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let costs = folder.path().join("costs.toml");
    let of = |arguments: &[&str]| {
        let common = [&log, "--nodes", "4", "--memory", "2MB", "--json"];
        let report: serde_json::Value =
            serde_json::from_str(&stdout(&ward(&[&common[..], arguments].concat()).success())).unwrap();
        let costs = &report["analysis"]["costs"];
        let number = |name: &str| costs[name].as_f64().unwrap();
        let origin = costs["origin"].as_str().unwrap().to_owned();
        (number("forward_us"), number("disk_us_per_byte"), origin)
    };
    assert_eq!(of(&[]), (276.0, 0.606, "ward01".to_owned()));
    assert_eq!(of(&["--forward-us", "138"]), (138.0, 0.606, "ward01, --forward-us".to_owned()));
    assert_eq!(of(&["--costs", "lard98"]).0, 194.0);
    let text = "[other]\nx = 1\n[ward]\nforward_us = 10.0\ndisk_us_per_byte = 0.5\n";
    fs::write(&costs, text).unwrap();
    let path = costs.to_str().unwrap();
    assert_eq!(of(&["--costs", path]), (10.0, 0.5, path.to_owned()));
    fs::write(&costs, text.replace("forward_us", "foward_us")).unwrap();
    let error = stderr(&ward(&[&log, "--nodes", "4", "--memory", "2MB", "--costs", path]).code(2));
    assert!(error.contains("costs.toml:4: ") && error.contains("foward_us"), "{error}");
}

#[test]
fn invalid_inputs_are_refused_with_the_flag_or_file() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let cases: [(&[&str], i32, &str); 8] = [
        (&[], 2, "--nodes"),
        (&["--nodes", "4"], 2, "--memory"),
        (&["--nodes", "0", "--memory", "1MB"], 2, "1 to 1024 nodes, not 0"),
        (&["--nodes", "2", "--memory", "0"], 2, "the memory of a node must be above 0"),
        (
            &["--nodes", "2", "--names", "a,b,c", "--memory", "1MB"],
            2,
            "--nodes is 2, but --names has 3 names",
        ),
        (&["--names", "a,a", "--memory", "1MB"], 2, "two nodes are named \"a\""),
        (&["--nodes", "2", "--memory", "1MB", "--disk-us-per-byte", "nan"], 2, "--disk-us-per-byte"),
        (
            &["--nodes", "2", "--memory", "1MB", "--costs", "ward02"],
            1,
            "cost models with a name are ward01 and lard98",
        ),
    ];
    for (arguments, code, word) in cases {
        let text = stderr(&ward(&[&[log.as_str()][..], arguments].concat()).code(code));
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
    let text = stderr(&ward(&["/none.log", "--nodes", "2", "--memory", "1MB"]).code(1));
    assert!(text.contains("/none.log"), "{text}");
}
