//! Shared libraries of the workspace, built as a user gets them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library of a package with a profile, and returns the folder with its files. `file` is one of them, such as
/// `liblarder.so`.
///
/// # Panics
/// If cargo fails, or if it does not build the file.
pub fn build_library(package: &str, file: &str, profile: &str) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--lib", "--message-format", "json", "--package", package, "--profile", profile]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).expect("UTF-8");
    let mut built = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let mut names = message["filenames"].as_array()?.iter().filter_map(|name| name.as_str());
        let found = names.find(|name| Path::new(name).file_name().is_some_and(|name| name == file))?;
        Some(Path::new(found).parent()?.to_path_buf())
    });
    built.next_back().expect("cargo has built the library")
}
