//! Arguments, config files, exit codes and closed pipes.

use std::fs;
use std::process::{Command, Stdio};

use assert_cmd::assert::OutputAssertExt as _;

use crate::process::LARDER;

fn larder(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(LARDER).args(arguments).assert()
}

fn stderr(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

#[test]
fn an_unknown_key_is_named_with_file_line_and_cure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    fs::write(&path, "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"a:1\"]\npolcy = \"lard\"\n").unwrap();
    for arguments in
        [&["check", path.to_str().unwrap()][..], &["switch", "--config", path.to_str().unwrap()][..]]
    {
        let text = stderr(&larder(arguments).code(2));
        assert!(text.contains("my.toml:4:1: switch.polcy: unknown key 'polcy'"), "{text}");
        assert!(text.contains("did you mean 'policy'?"), "{text}");
    }
}

#[test]
fn options_are_checked_like_the_file() {
    let cases: [(&[&str], &str); 9] = [
        (&["switch"], "--listen"),
        (&["switch", "--listen", "127.0.0.1:0"], "switch.nodes: missing"),
        (
            &["switch", "--listen", "127.0.0.1:0", "--node", "a:1", "--policy", "best"],
            "known here: random, rr",
        ),
        (&["node", "--listen", "127.0.0.1:0"], "node.root: missing"),
        (&["node", "--root", "/", "--listen", "127.0.0.1:0", "--cache", "lots"], "is not a size"),
        (&["demo", "--t-low", "65"], "--t-low"),
        (&["demo", "--trace-recipe", "soup"], "'soup' is not a recipe"),
        (&["demo", "--policies", "all,wrr"], "cannot be combined"),
        (&["demo", "--policies", "wrr,wrr"], "names 'wrr' twice"),
    ];
    for (arguments, word) in cases {
        let text = stderr(&larder(arguments).code(2));
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
    let text = stderr(&larder(&["demo", "--log", "/nonexistent.log"]).code(1));
    assert!(text.contains("/nonexistent.log"), "{text}");
}

#[test]
fn commands_that_have_moved_name_the_new_command() {
    let text = stderr(&larder(&["sim", "paper", "lard-fig07", "--json", "-"]).code(2));
    assert!(text.contains("run `larder-lab paper lard-fig07 --json -`"), "{text}");
    let text = stderr(&larder(&["lab", "cap", "--seconds", "3"]).code(2));
    assert!(text.contains("run `larder-lab live cap --seconds 3`"), "{text}");
    let text = stderr(&larder(&["sim", "run", "--help"]).code(2));
    assert!(text.contains("run `larder-lab run --help`"), "{text}");
}

#[test]
fn the_output_of_check_is_a_valid_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.toml");
    let defaults = larder(&["check", "--defaults"]).success();
    fs::write(&path, &defaults.get_output().stdout).unwrap();
    let effective = larder(&["check", "--effective", path.to_str().unwrap()]).success();
    fs::write(&path, &effective.get_output().stdout).unwrap();
    larder(&["check", "--no-preflight", path.to_str().unwrap()]).success();
    let schema = larder(&["check", "--schema"]).success();
    let schema: serde_json::Value = serde_json::from_slice(&schema.get_output().stdout).unwrap();
    assert!(schema.pointer("/properties/switch").is_some());
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = Command::new(LARDER)
        .args(["check", "--schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
