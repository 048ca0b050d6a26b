//! Skipped tests: a test that cannot run on this machine reports this and is counted.
//!
//! libtest has no skip at run time: a test that returns early counts as passed. Therefore a skip appends a line to the file that
//! `LARDER_SKIPS` names. `cargo xtask test` sets the variable, lists the lines, and adds them to the sum of skipped tests.

use std::fs::OpenOptions;
use std::io::{self, Write};
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

/// Returns the value. If it could not be made because this machine lacks a right or a tool
/// ([`io::ErrorKind::Unsupported`]), the test is skipped.
///
/// # Panics
/// On every other error.
#[expect(clippy::panic, reason = "an error is a failure of the test")]
pub fn or_skip<T, E: Into<io::Error>>(made: Result<T, E>) -> Option<T> {
    let error = match made {
        Ok(made) => return Some(made),
        Err(error) => error.into(),
    };
    if error.kind() != io::ErrorKind::Unsupported {
        panic!("{error}");
    }
    skip(&error.to_string());
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Run separately, in processes with the relevant variables.
    #[test]
    #[ignore = "run by skips_are_counted_and_fail_in_ci"]
    fn skips() {
        let missing = io::Error::new(io::ErrorKind::Unsupported, "a reason");
        assert!(or_skip(Err::<(), _>(missing)).is_none());
    }

    #[test]
    fn skips_are_counted_and_fail_in_ci() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("skips");
        let run = |ci: &str| {
            let mut command = Command::new(std::env::current_exe().expect("a path"));
            command.args(["--ignored", "--exact", "skip::tests::skips"]).env("CI", ci).env(SKIPS_FILE, &file);
            command.output().expect("it runs")
        };
        assert!(run("").status.success() && run("false").status.success());
        let text = std::fs::read_to_string(&file).expect("the file");
        assert_eq!(text, "skip::tests::skips\ta reason\n".repeat(2));
        let failed = run("true");
        assert!(!failed.status.success(), "{failed:?}");
        let message = "test skipped under CI: skip::tests::skips: a reason";
        assert!(String::from_utf8_lossy(&failed.stdout).contains(message), "{failed:?}");
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), text, "a failure is no skip");
    }

    #[test]
    #[should_panic(expected = "broken")]
    fn another_error_is_a_failure() {
        or_skip(Err::<(), _>(io::Error::other("broken")));
    }
}
