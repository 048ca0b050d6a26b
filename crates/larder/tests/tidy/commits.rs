//! The hook that checks subjects of commits, `scripts/hooks/commit-msg`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::repo::root;

/// Runs the hook with a commit message. Returns its error if it refuses the message.
fn refusal(message: &str) -> Option<String> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(message.as_bytes()).expect("the temporary file is written");
    let mut hook = Command::new(root().join("scripts/hooks/commit-msg"));
    let output = hook.arg(file.path()).output().expect("the hook runs");
    let errors = String::from_utf8(output.stderr).expect("errors are text");
    (!output.status.success()).then(|| errors.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn the_hook_can_be_executed() {
    let metadata = root().join("scripts/hooks/commit-msg").metadata().expect("the hook exists");
    assert_eq!(metadata.permissions().mode() & 0o111, 0o111);
}

#[test]
fn the_hook_checks_subjects() {
    let longest = format!("area: {}", "\u{e4}".repeat(66));
    for message in [
        "docs: describe it\n\nBecause.\n",
        "# Comment\nhandoff/repair: pass it\n",
        "Merge branch 'a'\nb\n",
        &longest,
    ] {
        assert_eq!(refusal(message), None, "{message}");
    }
    let too_long = format!("{longest}b");
    for (message, fault) in [
        (&*too_long, "the subject has 73 characters, 72 at most"),
        ("Describe it\n", "the subject does not have the form 'area: do the thing'"),
        ("docs:describe it\n", "the subject does not have the form 'area: do the thing'"),
        ("docs: describe it.\n", "the subject ends with a full stop"),
        ("docs: describe it\nBecause.\n", "the second line is not empty"),
        ("", "the subject does not have the form 'area: do the thing'"),
    ] {
        assert_eq!(refusal(message), Some(format!("commit-msg: {fault}")), "{message}");
    }
}
