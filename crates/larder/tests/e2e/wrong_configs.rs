//! Wrong configs and the exact output of `larder check` for each.
//!
//! The cases are in `tests/wrong/*.txt`: a title, the config, and the complete error. An error names file,
//! line, key, fault and remedy. `LARDER_WRITE=1` writes the errors of changed or added cases; read them
//! before a commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::LARDER;

struct Case {
    title: String,
    config: String,
    error: String,
}

/// Returns the cases of a file: `=== title`, the config, `---`, the error, and an empty line.
fn cases(path: &Path) -> Vec<Case> {
    let text = fs::read_to_string(path).unwrap();
    let parts = text.split("=== ").skip(1);
    let case = |part: &str| {
        let (title, rest) = part.split_once('\n').unwrap();
        let (config, error) = rest.split_once("\n---\n").unwrap();
        Case { title: title.to_owned(), config: format!("{config}\n"), error: error.trim_end().to_owned() }
    };
    parts.map(case).collect()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Returns a command's error for a config, after the checks that hold for every wrong config.
fn error_of(folder: &Path, case: &Case, command: &[&str]) -> String {
    fs::write(folder.join("larder.toml"), &case.config).unwrap();
    let ran = Command::new(LARDER).args(command).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(ran.stderr).unwrap().trim_end().to_owned();
    assert_eq!(ran.status.code(), Some(2), "{}: {command:?}\n{error}", case.title);
    assert!(ran.stdout.is_empty(), "{}: nothing is said on stdout", case.title);
    error
}

#[test]
fn every_wrong_config_is_refused_with_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files() {
        let mut written = Vec::new();
        for case in cases(&file) {
            let error = error_of(folder.path(), &case, &["check", "larder.toml"]);
            if error != case.error {
                wrong.push(format!(
                    "{}: {}\n{error}\ninstead of\n{}",
                    file.display(),
                    case.title,
                    case.error
                ));
            }
            let place = error.strip_prefix("larder: larder.toml:").unwrap_or_else(|| panic!("{error}"));
            let (line, rest) = place.split_once(':').unwrap();
            assert!((1..=case.config.lines().count()).contains(&line.parse().unwrap()), "{error}");
            let (column, rest) = rest.split_once(": ").unwrap();
            assert!(column.parse::<usize>().is_ok_and(|column| column > 0), "{error}");
            assert!(rest.starts_with(role(&case)) && error.contains("\n  hint: "), "{error}");
            written.push(format!("=== {}\n{}\n---\n{error}\n", case.title, case.config.trim_end()));
            count += 1;
        }
        if std::env::var_os("LARDER_WRITE").is_some() {
            fs::write(&file, written.join("\n")).unwrap();
        }
    }
    assert!(count >= 60, "{count} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Returns the role of a config: its first section.
fn role(case: &Case) -> &'static str {
    let begins = |role: &&str| case.config.trim_start().starts_with(&format!("[{role}]"));
    ["node", "agent", "picker"].into_iter().find(begins).unwrap_or("switch")
}

/// A role prints the same error as a check and exits. It would not exit if it served.
#[test]
fn no_role_starts_on_half_a_config() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        // One case per file is enough: the roles and the check share the code.
        let case = cases(&file).into_iter().last().unwrap();
        let error = error_of(
            folder.path(),
            &case,
            &[role(&case), "--config", "larder.toml", "--admin", "127.0.0.1:0"],
        );
        assert_eq!(error, case.error, "{}", case.title);
    }
}

#[test]
fn unusual_settings_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let head = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"10.0.0.1:80\"]\n";
    let cases = [
        ("policy = \"cap\"\n", 4, "switch.policy: 'cap' uses service classes, and there are none"),
        ("classes = [{ class = \"db\", path = \"/cgi-bin/*\" }]\n", 4, "switch.classes: no policy uses"),
        (
            "[[switch.routes]]\nname = \"a\"\npath = \"/a*\"\n[[switch.routes]]\nname = \"b\"\npath = \"/ab*\"\n",
            7,
            "switch.routes[1]: is never reached: switch.routes[0] takes all its requests",
        ),
        ("[[switch.routes]]\nname = \"all\"\n", 4, "switch.routes[0]: takes every request"),
        (
            "[switch.connect.tls]\nverify = false\n",
            5,
            "switch.connect.tls.verify: certificates of nodes are not verified",
        ),
        (
            "[[switch.routes]]\nname = \"a\"\npath = \"/a/\"\n",
            6,
            "switch.routes[0].path: '/a/' matches this one path",
        ),
        (
            "[switch.headers.request]\nset = { x-real-ip = \"$remote_addr\" }\n",
            5,
            "switch.headers.request.set.x-real-ip: '$remote_addr' is sent as text",
        ),
        (
            "[switch.headers.reply]\nadd = { x-c = \"%[src]\" }\n",
            5,
            "switch.headers.reply.add.x-c: '%[src]' is sent",
        ),
        ("policy = \"hacc\"\nsignals = { source = \"off\" }\n", 5, "switch.signals.source: 'hacc' uses"),
    ];
    for (rest, line, what) in cases {
        fs::write(folder.path().join("larder.toml"), format!("{head}{rest}")).unwrap();
        let ran = Command::new(LARDER)
            .args(["check", "--no-preflight", "larder.toml"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let error = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.success(), "{error}");
        assert!(
            error.starts_with(&format!("warning: larder.toml:{line}:"))
                && error.contains(&format!(": {what}")),
            "{error}"
        );
        assert!(String::from_utf8(ran.stdout).unwrap().ends_with("larder.toml: ok\n"));
    }
}
