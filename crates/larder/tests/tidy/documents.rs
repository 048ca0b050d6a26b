//! Checks of documents: one title each, valid links, valid examples, and complete lists.

use std::path::Path;

use assert_cmd::Command;
use larder_core::policy::{PolicyKind, Reason};
use larder_switch::Failure;
use larder_trace::Format;

use crate::markdown::{anchor, code_block, headings, links};
use crate::none;
use crate::repo::{root, text, texts};

fn one_title(path: &str, document: &str) -> Option<String> {
    let titles = headings(document).into_iter().filter(|(level, _)| *level == 1).count();
    // The summary of the book has a heading per part.
    (titles != 1 && path != "docs/SUMMARY.md").then(|| format!("{path}: {titles} titles, there must be one"))
}

/// Returns the broken links of a document. Addresses in the web are not checked.
fn dead_links(path: &str, document: &str) -> Vec<String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut problems = Vec::new();
    for (line, target) in links(document) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, fragment) = target.split_once('#').unwrap_or((&target, ""));
        let full = root().join(folder).join(file);
        if !file.is_empty() && !full.exists() {
            problems.push(format!("{path}:{line}: {target} does not exist"));
        } else if !fragment.is_empty() {
            let aimed = if file.is_empty() { document.to_owned() } else { read(&full) };
            if !headings(&aimed).iter().any(|(_, title)| anchor(title) == fragment) {
                problems.push(format!("{path}:{line}: {target} names no heading"));
            }
        }
    }
    problems
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Maximum number of words of README.md.
const README_WORDS_MAX: usize = 600;

/// Returns the error of `larder check` for a file, if it refuses it.
fn refused_config(path: &Path) -> Option<String> {
    let mut larder = Command::cargo_bin("larder").expect("larder is built");
    let output = larder.args(["check", "--no-preflight"]).arg(path).output().ok()?;
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then(|| format!("{}: {talk}", path.display()))
}

#[test]
fn documents_have_one_title_and_living_links() {
    let documents = texts(".md");
    assert!(documents.len() >= 8, "only {} documents", documents.len());
    let mut problems = Vec::new();
    for (path, document) in &documents {
        problems.extend(one_title(path, document));
        problems.extend(dead_links(path, document));
    }
    none(&problems);
}

#[test]
fn the_documentation_has_every_command_and_no_other() {
    let help =
        Command::cargo_bin("larder").expect("larder is built").arg("--help").output().expect("it runs");
    let help = String::from_utf8(help.stdout).expect("text");
    let listed = help.split("\nCommands:\n").nth(1).expect("it lists commands").lines();
    let names = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let mut commands: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    commands.retain(|name| !["help", "version"].contains(name));
    let document = text("docs/README.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `larder ")?.split_once('`'));
    let mut rows: Vec<&str> = rows.map(|(name, _)| name).collect();
    commands.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, commands, "the table of commands in docs/README.md");
}

#[test]
fn the_readme_is_short() {
    let words = text("README.md").split_whitespace().count();
    assert!(
        words <= README_WORDS_MAX,
        "README.md has {words} words; move what is beyond {README_WORDS_MAX} to docs/"
    );
}

/// Returns the documents under docs/ that the summary of the book does not link.
fn unlisted(summary: &str, paths: &[String]) -> Vec<String> {
    let listed: Vec<String> = links(summary).into_iter().map(|(_, target)| target).collect();
    let documents = paths.iter().filter_map(|path| path.strip_prefix("docs/"));
    let missing =
        documents.filter(|name| *name != "SUMMARY.md" && !listed.iter().any(|target| target == name));
    missing.map(|name| format!("docs/SUMMARY.md does not list {name}")).collect()
}

#[test]
fn the_book_has_every_document() {
    let paths: Vec<String> = texts(".md").into_iter().map(|(path, _)| path).collect();
    none(&unlisted(&text("docs/SUMMARY.md"), &paths));
}

#[test]
fn every_policy_is_documented_and_no_other() {
    let sections = headings(&text("docs/reference/policies.md"));
    let documented = sections.iter().filter_map(|(_, title)| title.strip_prefix('`')?.strip_suffix('`'));
    let documented: Vec<&str> = documented.collect();
    let known: Vec<String> = PolicyKind::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(
        documented, known,
        "the sections of docs/reference/policies.md, in the order of PolicyKind::ALL"
    );
}

#[test]
fn every_reason_is_documented() {
    let document = text("docs/reference/policies.md");
    let missing = Reason::ALL.iter().filter(|reason| !document.contains(&format!("\n| `{reason}` |")));
    none(
        &missing
            .map(|reason| format!("docs/reference/policies.md does not explain '{reason}'"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_error_of_the_switch_is_documented() {
    let document = text("docs/reference/replies.md");
    let row = |failure: &Failure| format!("\n| `{}` | {}", failure.name(), failure.status());
    let missing = Failure::ALL.iter().map(row).filter(|row| !document.contains(row));
    none(
        &missing
            .map(|row| format!("docs/reference/replies.md has no row '{}..'", row.trim()))
            .collect::<Vec<_>>(),
    );
}

/// Returns the keys in the second column of the table in a section.
fn keys_of_limits(document: &str, section: &str) -> Vec<String> {
    let mut sections = document.split("\n## ").filter_map(|text| text.split_once('\n'));
    let table = sections.find(|(title, _)| *title == section).map_or("", |(_, text)| text);
    let cells = table.lines().filter_map(|line| line.strip_prefix('|')?.split('|').nth(1));
    let keys = cells.filter_map(|cell| cell.trim().strip_prefix('`')?.split('`').next());
    keys.map(str::to_owned).collect()
}

#[test]
fn the_documented_limits_are_keys_of_the_config() {
    let mut larder = Command::cargo_bin("larder").expect("larder is built");
    let output = larder.args(["check", "--defaults"]).output().expect("larder runs");
    assert!(output.status.success(), "larder check --defaults: {}", String::from_utf8_lossy(&output.stderr));
    let defaults = String::from_utf8(output.stdout).expect("the defaults are text");
    let defaults: toml::Table = defaults.parse().expect("the defaults are TOML");
    let document = text("docs/reference/bounds.md");
    let mut problems = Vec::new();
    for (section, role) in [("Switch", "switch"), ("Node", "node")] {
        let keys = keys_of_limits(&document, section);
        assert!(keys.len() > 10, "docs/reference/bounds.md lists only {} limits of [{role}]", keys.len());
        let exists =
            |key: &String| key.split('.').try_fold(&defaults[role], |table, part| table.get(part)).is_some();
        let unknown = keys.iter().filter(|key| !exists(key));
        problems.extend(unknown.map(|key| format!("docs/reference/bounds.md: [{role}] has no key '{key}'")));
    }
    none(&problems);
}

#[test]
fn every_trace_format_is_documented() {
    let document = text("docs/reference/formats.md");
    let missing =
        Format::ALL.iter().filter(|format| !document.contains(&format!("\n| `{}` |", format.name())));
    none(
        &missing
            .map(|format| format!("docs/reference/formats.md does not list '{}'", format.name()))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn examples_load() {
    let examples = texts(".toml").into_iter().filter(|(path, _)| path.starts_with("examples/"));
    let paths: Vec<_> = examples.map(|(path, _)| root().join(path)).collect();
    assert!(!paths.is_empty(), "examples/ holds no config");
    none(&paths.iter().filter_map(|path| refused_config(path)).collect::<Vec<_>>());
}

#[test]
fn the_config_in_the_readme_loads() {
    let config = code_block(&text("README.md"), "toml").expect("README.md shows a config");
    assert!(config.lines().count() <= 5, "the README promises five lines");
    let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a temporary file");
    std::fs::write(file.path(), config).expect("the temporary file is written");
    none(&refused_config(file.path()).into_iter().collect::<Vec<_>>());
}

#[test]
fn bad_documents_are_noticed() {
    assert!(one_title("a.md", "# One\n# Two\n").is_some());
    assert!(one_title("a.md", "# One\n```\n# code\n```\n").is_none());
    let dead = dead_links(
        "docs/x.md",
        "# X\n[a](nowhere.md) [b](#y) [c](#x) [d](../README.md) [e](https://e.org/)\n",
    );
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(refused_config(&root().join("README.md")).is_some());
    let paths = ["docs/a.md", "docs/b.md", "docs/SUMMARY.md", "docs/adr/c.md", "d.md"].map(str::to_owned);
    assert_eq!(
        unlisted("# X\n[a](a.md)\n", &paths),
        ["docs/SUMMARY.md does not list b.md", "docs/SUMMARY.md does not list adr/c.md"]
    );
}
