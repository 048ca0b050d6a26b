//! `larder load` with users: manifests, sessions, a mix, DBench, and profiles of a log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::process::{LARDER, Process};

fn load(arguments: &[&str]) -> Output {
    Command::new(LARDER).arg("load").args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {talk}"))
}

/// Starts a node that serves the targets of the load.
fn node(folder: &Path, of: &[&str]) -> (Process, String) {
    let path = folder.join("manifest");
    let listed = load(&[&["manifest", "-o", path.to_str().unwrap()], of].concat());
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let node = Process::model_node("pantry", "127.0.0.1:0", &path);
    let url = format!("http://{}", node.address);
    (node, url)
}

#[test]
fn a_manifest_lists_the_targets_of_sessions_and_mixes() {
    let folder = tempfile::tempdir().unwrap();
    let figures = ["--documents", "500", "--seed", "4"];
    let (_node, url) = node(folder.path(), &[&["--site", "publishing-static"], &figures[..]].concat());
    let run = ["--duration", "1500ms", "--warmup", "300ms", "--time-scale", "0.01", "--json", "--quiet"];
    let open = [&["sessions", &*url, "--rate", "20"], &figures[..], &run[..]].concat();
    let report = json(&load(&open));
    assert_eq!(report["setup"]["load_model"], "sessions-open");
    // Every document exists with its size.
    assert_eq!((&report["requests"]["failed"], &report["pages"]["failed"]), (&0.into(), &0.into()));
    assert!(report["pages"]["ok"].as_u64().unwrap() > 0);
    assert_eq!(report["requests"]["nodes"][0]["name"], "pantry");
    let second = tempfile::tempdir().unwrap();
    let (_node, url) = node(second.path(), &[&["--mix", "intensive", "--everything"], &figures[..]].concat());
    let swept = [&["mix", &*url, "--clients", "2,4"], &figures[..], &run[..]].concat();
    let swept = json(&load(&swept));
    let clients: Vec<_> =
        swept["runs"].as_array().unwrap().iter().map(|run| &run["setup"]["clients"]).collect();
    assert_eq!(clients, [2, 4]);
    assert!(swept["runs"].as_array().unwrap().iter().all(|run| run["requests"]["failed"] == 0));
}

#[test]
fn dbench_replays_the_profiles_of_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let log: PathBuf = folder.path().join("access.log");
    let line = |client: usize, second: usize| {
        let time = format!("01/Jan/2020:12:00:{second:02} +0000");
        format!("10.0.0.{client} - - [{time}] \"GET /file{second} HTTP/1.0\" 200 {}\n", 1_000 + second)
    };
    let lines: String = (0..40).map(|second| line(second % 8, second)).collect();
    fs::write(&log, lines).unwrap();
    let log = log.to_str().unwrap();
    let (_node, url) = node(folder.path(), &["--log", log, "--profiles", "5"]);
    let limits = ["--ramp", "50", "--users-max", "10", "--epoch", "200ms", "--stable", "1s"];
    let run =
        [&["dbench", &*url, "--log", log, "--profiles", "5", "--time-scale", "0.01", "--json"], &limits[..]];
    let output = load(&run.concat());
    let report = json(&output);
    assert_eq!((&report["users"], &report["stopped"]["kind"]), (&10.into(), &"users_max".into()));
    assert_eq!((&report["setup"]["profiles"], &report["setup"]["mean_max_s"]), (&5.into(), &1.0.into()));
    assert_eq!(report["stable"]["failed"], 0);
    assert!(report["stable"]["completed"].as_u64().unwrap() > 10);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("5 profiles from 8 visits of 8 clients"), "{talk}");
}

#[test]
fn wrong_use_names_flag_and_remedy() {
    for (arguments, part) in [
        (&["manifest"][..], "--site, --mix, --hacc and --log"),
        (&["sessions", "http://127.0.0.1:1", "--site", "shop"], "commerce-a"),
        (&["mix", "http://127.0.0.1:1/x"], "--path"),
        (&["dbench", "http://127.0.0.1:1", "--hacc", "x"], "domino"),
        (&["dbench", "http://127.0.0.1:1", "--epoch", "1ms"], "sub-epoch"),
        (
            &["sessions", "http://127.0.0.1:1", "--parallel", "65", "--duration", "1s"],
            "connections of a user",
        ),
    ] {
        let output = load(arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {talk}");
        assert!(output.stdout.is_empty() && talk.contains(part), "{talk}");
    }
}
