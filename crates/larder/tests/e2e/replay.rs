//! `larder switch --record` and `larder sim replay` as processes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::http::{ask, get};
use crate::process::{LARDER, Process};

fn replay(words: &[&str]) -> Output {
    Command::new(LARDER).args(["sim", "replay"]).args(words).output().unwrap()
}

/// Records a switch before a node and a closed port. Sends requests and terminates the switch.
fn record(record: &Path, log: &Path) {
    let site = tempfile::tempdir().unwrap();
    for i in 0..20 {
        fs::write(site.path().join(format!("{i}.txt")), format!("content of {i}")).unwrap();
    }
    let root = site.path().to_str().unwrap();
    let node = Process::start(&["node", "--root", root, "--listen", "127.0.0.1:0"]);
    let (alive, dead) = (format!("--node=alive={}", node.address), "--node=dead=127.0.0.1:9");
    let files = ["--record", record.to_str().unwrap(), "--record-log", log.to_str().unwrap()];
    let words = ["switch", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", &alive, dead];
    let switch = Process::start(&[&words[..], &files].concat());
    for i in 0..60 {
        assert_eq!(get(switch.address, &format!("/{}.txt", i % 20)).status, 200);
    }
    let admin = switch.admin.unwrap();
    assert_eq!(ask(admin, "POST", "/nodes/dead/drain", "").status, 200);
    assert_eq!(get(admin, "/status").json()["record"]["state"], "recording");
    get(switch.address, "/3.txt");
    assert!(switch.terminate().success());
}

#[test]
fn a_recorded_switch_is_replayed_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("run.rec"), dir.path().join("run.log"));
    record(&file, &log);
    let name = file.to_str().unwrap();

    let printed = replay(&[name]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let live = fs::read(&log).unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), String::from_utf8_lossy(&live));
    assert!(String::from_utf8_lossy(&live).contains(" retry\n"), "the dead node was tried");
    assert!(replay(&[name, "--check", log.to_str().unwrap()]).status.success());
    let json: Value = serde_json::from_slice(&replay(&[name, "--json"]).stdout).unwrap();
    assert_eq!((&json["end"], &json["differing"]), (&"complete".into(), &0.into()));
    assert!(json["decisions"].as_u64().unwrap() >= 61);

    // A different, a shorter and a longer log give exit code 1 and the place.
    let text = String::from_utf8(live).unwrap();
    let last = text.lines().count();
    for (spoilt, place) in [
        (text.replacen(" 0 first\n", " 1 first\n", 1), "line "),
        (text[..text.len() / 2].to_owned(), "line "),
        (format!("{text}more\n"), &*format!("the log has more lines than the record, from line {last}")),
    ] {
        fs::write(&log, spoilt).unwrap();
        let output = replay(&[name, "--check", log.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(place), "{said}");
    }

    // A truncated record: all complete decisions are printed, and the exit code reports the loss.
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 10]).unwrap();
    let output = replay(&[name]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("record ") && said.contains("the record has no end"),
        "{said}"
    );
    assert!(!output.stdout.is_empty());
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x");
    fs::write(&file, "GET / HTTP/1.1\r\n\r\n").unwrap();
    let output = replay(&[file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a record of a switch"));
}
