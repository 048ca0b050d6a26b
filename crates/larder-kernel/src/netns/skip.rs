//! Skipping of tests that cannot run on this machine: each is reported, counted, and fails in CI. The same as in
//! `larder-testkit`, on which only tests may depend; namespaces are also used by the demo.

use super::NetnsError;

/// For tests: returns `None` and skips the test ([`skip`]) if namespaces cannot be created.
///
/// # Panics
///
/// On every other error, and when [`skip`] does.
#[expect(clippy::panic, reason = "a helper of tests: an error there is a failure")]
pub fn or_skip<T>(made: Result<T, NetnsError>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(NetnsError::Unable(why)) => {
            skip(&why);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// For tests: whether the process is root; if not, the test is skipped ([`skip`]). `of` states what root is needed for.
///
/// # Panics
///
/// When [`skip`] does.
pub fn root_or_skip(of: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(&format!("needs root ({of})"));
    }
    root
}

/// Variable that names a file to which each skipped test appends a line, so that `cargo xtask test` can count them. The
/// test harness hides the output of passing tests.
const SKIPS: &str = "LARDER_SKIPS";

/// For tests: reports on stderr, and in the file that `LARDER_SKIPS` names, that the calling test is skipped, and why.
///
/// # Panics
///
/// With `CI=true`: CI must provide what tests need, so a skip is a failure. Also if the file cannot be written.
#[expect(clippy::expect_used, reason = "a helper of tests: an error there is a failure")]
pub fn skip(why: &str) {
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci, "this test must run in CI: {why}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("skipped: {test}: {why}");
    if let Some(file) = std::env::var_os(SKIPS) {
        let line = format!("{test}\t{why}\n");
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
        // A single write, because tests of several processes append.
        opened
            .and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()))
            .expect("a file for skips");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Run separately, in processes with the relevant variables.
    #[test]
    #[ignore = "run by skips_are_counted_and_fail_in_ci"]
    fn skips() {
        skip("of a reason");
    }

    #[test]
    fn skips_are_counted_and_fail_in_ci() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("skips");
        let run = |ci: &str| {
            let mut command = Command::new(std::env::current_exe().expect("a path"));
            command
                .args(["--ignored", "--exact", "netns::skip::tests::skips"])
                .env("CI", ci)
                .env(SKIPS, &file);
            command.output().expect("it runs")
        };
        assert!(run("").status.success() && run("false").status.success());
        let text = std::fs::read_to_string(&file).expect("the file");
        assert_eq!(text, "netns::skip::tests::skips\tof a reason\n".repeat(2));
        let failed = run("true");
        assert!(!failed.status.success(), "{failed:?}");
        assert!(
            String::from_utf8_lossy(&failed.stdout).contains("must run in CI: of a reason"),
            "{failed:?}"
        );
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), text, "a failure is no skip");
    }
}
