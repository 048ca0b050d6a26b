//! The command line: the list of experiments, and errors for wrong names and files.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failed test")]

use std::fs;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder-lab")).args(arguments).output().unwrap()
}

#[test]
fn experiments_are_listed() {
    let output = lab(&["paper", "list"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("lard-fig07 ")), "{text}");
}

#[test]
fn wrong_names_and_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    fs::write(&path, "id = \"mine\"\nrecipe = 1\n").unwrap();
    let file = path.to_str().unwrap();
    for (arguments, code, complaint) in [
        (&["paper", "lard-fig99"][..], 2, "larder-lab: there is no experiment 'lard-fig99'"),
        (&["run", file], 2, "mine.toml:2"),
        (&["run", "/nonexistent.toml"], 1, "larder-lab: /nonexistent.toml"),
    ] {
        let output = lab(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(complaint), "{arguments:?}: {text}");
    }
}
