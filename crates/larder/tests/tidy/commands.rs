//! Commands of the repository. Each Makefile target, task of `cargo xtask` and script that a text names must
//! exist.

use crate::none;
use crate::repo::{File, files, root, text};

/// Prefix of a command, and a test whether a command of that name exists.
type Rule<'a> = (&'a str, &'a dyn Fn(&str) -> bool);

/// Excluded files: the changelog names old commands, and this file wrong ones.
const EXCEPT: &[&str] = &["CHANGELOG.md", "crates/larder/tests/tidy/commands.rs"];

/// Returns commands that the text names and that do not exist.
fn unknown_commands(path: &str, text: &str, rules: &[Rule<'_>]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for (prefix, exists) in rules {
            for (start, _) in line.match_indices(prefix) {
                let rest = &line[start + prefix.len()..];
                let end = rest.find(|c: char| !(c.is_ascii_lowercase() || "-._".contains(c)));
                let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
                // Capitals stand for a name: `cargo xtask acceptance NAME`.
                if !name.is_empty() && !exists(name) {
                    problems.push(format!("{path}:{}: '{prefix}{name}' does not exist", at + 1));
                }
            }
        }
    }
    problems
}

/// Reports whether the Makefile has the target.
fn is_target(makefile: &str, name: &str) -> bool {
    makefile.lines().any(|line| line.starts_with(&format!("{name}:")))
}

/// Reports whether a table of `xtask` has the name.
fn is_listed(source: &str, name: &str) -> bool {
    source.contains(&format!("name: \"{name}\","))
}

#[test]
fn every_command_that_is_named_exists() {
    let (makefile, tasks) = (text("Makefile"), text("xtask/src/main.rs"));
    let acceptance = text("xtask/src/acceptance.rs");
    let target = |name: &str| is_target(&makefile, name);
    let rules: &[Rule<'_>] = &[
        ("`make ", &target),
        ("cargo xtask ", &|name| name == "help" || is_listed(&tasks, name)),
        ("cargo xtask acceptance ", &|name| is_listed(&acceptance, name)),
        ("scripts/", &|name| !name.ends_with(".sh") || root().join("scripts").join(name).is_file()),
    ];
    let mut problems = Vec::new();
    for File { path, text, .. } in files().into_iter().filter(|file| !EXCEPT.contains(&file.path.as_str())) {
        problems.extend(unknown_commands(&path, &text.unwrap_or_default(), rules));
    }
    none(&problems);
}

#[test]
fn an_unknown_command_is_noticed() {
    let rules: &[Rule<'_>] = &[("`make ", &|name| is_target("test: ## the gate\n\t@cargo\n", name))];
    let problems = unknown_commands("a.md", "`make test`, `make`\n`make tests` or `make sense.`", rules);
    assert_eq!(problems, ["a.md:2: '`make tests' does not exist", "a.md:2: '`make sense' does not exist"]);
    let listed = |name| is_listed("Task { name: \"bpf\", run: bpf::run }", name);
    assert!(listed("bpf") && !listed("bp"));
}
