//! Skipped tests: a test that cannot run on this machine reports this and is counted.
//!
//! libtest has no skip at run time: a test that returns early counts as passed. Therefore a skip appends a line to the file that
//! `LARDER_SKIPS` names. `cargo xtask test` sets the variable, lists the lines, and adds them to the sum of skipped tests.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::thread;

/// Names the file to which skips are appended, one line each: the test, a tab, the reason.
pub const SKIPS_FILE: &str = "LARDER_SKIPS";

/// Reports that the calling test cannot run here, and why. The test returns right after it.
///
/// # Panics
/// If `CI` is `true`: a CI machine has everything that the tests need, so a skip there hides a test.
#[expect(clippy::panic, reason = "a skip under CI is a failure of the test")]
pub fn skip(reason: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed");
    if std::env::var("CI").is_ok_and(|ci| ci == "true") {
        panic!("test skipped under CI: {test}: {reason}");
    }
    eprintln!("test skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os(SKIPS_FILE) {
        // A single write, so that lines of several test processes do not mix.
        let line = format!("{test}\t{reason}\n");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            panic!("cannot record the skip of {test} in {}: {error}", path.display());
        }
    }
}

/// Returns whether the test runs as root. Otherwise the test is skipped; `purpose` says what needs root.
pub fn needs_root(purpose: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(&format!("needs root ({purpose})"));
    }
    is_root
}

/// Returns the path of a program in `PATH`. If no directory has the program, the test is skipped; `package` is the Debian package
/// that has the program.
pub fn needs_tool(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("needs the program {program} (apt-get install {package})"));
    }
    found
}
