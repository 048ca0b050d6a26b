//! Log lines: their form, and their catalogue, of which docs/reference/logs.md is made.
//!
//! A message is `subject: event`, and its facts are fields. logs.toml has the meaning and the remedy of each.
//! `LARDER_WRITE=1` writes the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::none;
use crate::repo::{root, text, texts};
use crate::rust::{Token, tokens_and_strings};

const CATALOGUE: &str = "crates/larder/tests/tidy/logs.toml";
const PAGE: &str = "docs/reference/logs.md";

/// Levels, most urgent first, and what each asks of the operator.
const LEVELS: [(&str, &str); 4] = [
    ("error", "Act now: clients are refused, or a part of larder has stopped."),
    ("warn", "Act today: something is wrong or will be, and larder goes on."),
    ("info", "A change of state, or a fault of clients. larder is well."),
    (
        "debug",
        "The rest: steps and single failures, for a search of a cause. Off by default, not limited in rate.",
    ),
];

/// Start of the page, before the levels.
const INTRODUCTION: &str = "\
# Log lines

You find what a line of the log means, and what to do. Search this page for the message of the line. To begin with a symptom, see
[troubleshooting](../operate/troubleshooting.md).

<!-- Made by the tidy tests from crates/larder/tests/tidy/logs.toml: change that file, and run them with LARDER_WRITE=1. -->

## Read a line

Switch, node and agent write their log to stderr, which systemd keeps in the journal (`journalctl -u larder-switch`).

```text
2026-03-01T09:14:07.412883Z  WARN larder_switch::decider: node: marked down node=\"a\" from=up cause=\"requests fail\"
```

| part | meaning |
|---|---|
| `2026-03-01T09:14:07.412883Z` | time, in UTC |
| `WARN` | [level](#levels) |
| `larder_switch::decider` | module of the source |
| `node: marked down` | message: subject and event, always in these words, so that you can search and alert by it |
| `node=\"a\" from=up` | facts of this event |

Some facts have the same meaning in all lines: `error` is the cause, `hint` a remedy, `key` the key of the config that sets a limit.
Lines that traffic can cause come at most every ten seconds. Their fact `times` counts the events since the last line.

To see more, set `level` under `[log]` and reload, or start larder with `LARDER_LOG=debug`. Both take filters, such as
`info,larder_switch::handoff=debug`.
";

/// A log line in the source.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    path: String,
    line: usize,
    level: String,
    /// Message without facts. Empty if the line has no literal.
    message: String,
}

/// An event of the catalogue.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    level: String,
    meaning: String,
    #[serde(default)]
    remedy: String,
}

/// Events by subject.
type Catalogue = BTreeMap<String, BTreeMap<String, Entry>>;

/// Returns the log lines of a source text.
fn log_lines(path: &str, source: &str) -> Vec<Line> {
    let tokens = tokens_and_strings(source);
    let mut found = Vec::new();
    for (at, window) in tokens.windows(5).enumerate() {
        let [krate, "::", name, "!", "("] = [0, 1, 2, 3, 4].map(|at| window[at].text) else { continue };
        let level = match (krate, name) {
            ("tracing", "enabled") => continue,
            ("tracing", level) => level,
            ("larder_log", "limited_warn") => "warn",
            _ => continue,
        };
        let (path, message) = (path.to_owned(), message(&tokens[at + 4..]));
        found.push(Line { path, line: window[0].line, level: level.to_owned(), message });
    }
    found
}

/// Returns the last string literal of a macro's arguments, which begin with a parenthesis.
fn message(tokens: &[Token<'_>]) -> String {
    let (mut depth, mut last) = (0_usize, "");
    for token in tokens {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            text if depth == 1 && text.len() > 1 && text.starts_with('"') => last = text,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    let literal = last.trim_matches('"').split("\\\n").map(str::trim_start).collect::<String>();
    // Facts that one text holds follow as an argument of the format.
    literal.split(" {").next().unwrap_or_default().replace("\\\"", "\"")
}

/// Returns the first fault of a message.
fn fault_of_form(message: &str) -> Option<&'static str> {
    let Some((subject, event)) = message.split_once(": ") else { return Some("is not 'subject: event'") };
    let is_subject = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == ' ' || c == '-';
    if subject.is_empty() || !subject.chars().all(is_subject) {
        Some("has a subject that is not in lower case")
    } else if event.trim() != event || event.is_empty() || event.contains(['{', '\n']) {
        Some("has facts in its event; use fields")
    } else if event.ends_with(['.', '!', ':']) {
        Some("ends with a mark")
    } else {
        None
    }
}

fn violations(lines: &[Line], catalogue: &Catalogue) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    for Line { path, line, level, message } in lines {
        let mut problem = |what: &str| problems.push(format!("{path}:{line}: '{message}' {what}"));
        if let Some(fault) = fault_of_form(message) {
            problem(fault);
            continue;
        }
        let (subject, event) = message.split_once(": ").unwrap_or_default();
        match catalogue.get(subject).map(|events| events.get(event)) {
            None => problem(&format!("has a subject that {CATALOGUE} lacks")),
            Some(None) => problem(&format!("is not in {CATALOGUE}")),
            Some(Some(entry)) if entry.level != *level => {
                problem(&format!("has level {level}, and {} in {CATALOGUE}", entry.level));
            }
            Some(Some(_)) => {}
        }
        used.insert(message.as_str());
    }
    for (subject, events) in catalogue {
        for (event, Entry { level, meaning, remedy }) in events {
            let mut problem = |what: &str| problems.push(format!("{CATALOGUE}: '{subject}: {event}' {what}"));
            if !used.contains(format!("{subject}: {event}").as_str()) {
                problem("is logged nowhere");
            }
            if !LEVELS.iter().any(|(known, _)| known == level) {
                problem("has an unknown level");
            }
            if !meaning.ends_with('.') || !(remedy.ends_with('.') || level == "debug" && remedy.is_empty()) {
                problem("lacks a sentence for its meaning or its remedy");
            }
        }
    }
    problems
}

/// Returns the page of a catalogue.
fn page(catalogue: &Catalogue) -> String {
    let mut out = format!("{INTRODUCTION}\n## Levels\n\n| level | meaning |\n|---|---|\n");
    for (level, meaning) in LEVELS {
        let _ = writeln!(out, "| `{level}` | {meaning} |");
    }
    out += "\n## Lines\n";
    for (subject, events) in catalogue {
        let _ = write!(out, "\n### {subject}\n\n| level | message | meaning | remedy |\n|---|---|---|---|\n");
        for (level, _) in LEVELS {
            for (event, entry) in events.iter().filter(|(_, entry)| entry.level == level) {
                let Entry { meaning, remedy, .. } = entry;
                let _ = writeln!(out, "| {level} | `{subject}: {event}` | {meaning} | {remedy} |");
            }
        }
    }
    out
}

/// Returns the log lines that the code blocks of a document show, with or without time and module.
fn shown_lines(path: &str, document: &str) -> Vec<Line> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (at, line) in document.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        let of_level = LEVELS.iter().find_map(|(level, _)| {
            let (time, rest) = line.split_once(&format!("{} ", level.to_uppercase()))?;
            Some((*level, time.trim(), rest))
        });
        let Some((level, time, rest)) = of_level.filter(|_| is_code) else { continue };
        let rest = match (time, rest.split_once(": ")) {
            ("", _) => rest,
            (time, Some((module, rest))) if time.ends_with('Z') && module.starts_with("larder") => rest,
            _ => continue,
        };
        let words = rest.split(' ').take_while(|word| !word.contains('='));
        let message = words.collect::<Vec<_>>().join(" ");
        found.push(Line { path: path.to_owned(), line: at + 1, level: level.to_owned(), message });
    }
    found
}

/// Returns whether a file is part of the programs: no test, and not the rate limit itself.
fn is_program(path: &str) -> bool {
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    path.starts_with("crates/")
        && path.contains("/src/")
        && !is_test
        && !path.starts_with("crates/larder-log/")
}

fn catalogue() -> Catalogue {
    toml::from_str(&text(CATALOGUE)).expect("the catalogue of log lines is valid")
}

#[test]
fn every_log_line_is_in_the_catalogue() {
    let sources = texts(".rs").into_iter().filter(|(path, _)| is_program(path));
    let lines: Vec<Line> = sources.flat_map(|(path, source)| log_lines(&path, &source)).collect();
    assert!(lines.len() > 250, "the source has {} log lines", lines.len());
    none(&violations(&lines, &catalogue()));
}

#[test]
fn the_page_shows_the_catalogue() {
    let page = page(&catalogue());
    if std::env::var_os("LARDER_WRITE").is_some() {
        std::fs::write(root().join(PAGE), &page).expect("the page is written");
    }
    assert!(text(PAGE) == page, "{PAGE} differs from {CATALOGUE}: LARDER_WRITE=1 writes it");
}

#[test]
fn documents_show_log_lines_that_exist() {
    let catalogue = catalogue();
    let mut problems = Vec::new();
    for (path, document) in texts(".md") {
        for Line { path, line, level, message } in shown_lines(&path, &document) {
            let entry =
                message.split_once(": ").and_then(|(subject, event)| catalogue.get(subject)?.get(event));
            if entry.is_none_or(|entry| entry.level != level) {
                problems.push(format!("{path}:{line}: no line '{message}' has level {level}"));
            }
        }
    }
    none(&problems);
}

#[test]
fn bad_log_lines_are_noticed() {
    let source = "
        tracing::warn!(node, hint = \"a: b\", \"node: marked \\\n            down\");
        larder_log::limited_warn!(%error, key = f(\"x\"), \"node: up\");
        other => tracing::info!(\"store: ready {facts}\"),
        tracing::trace!(\"{text}\");
        // tracing::warn!(\"node: none\");
    ";
    let lines = log_lines("a.rs", source);
    let seen: Vec<_> = lines.iter().map(|line| (line.level.as_str(), line.message.as_str())).collect();
    assert_eq!(
        seen,
        [("warn", "node: marked down"), ("warn", "node: up"), ("info", "store: ready"), ("trace", "{text}")]
    );
    let catalogue = "[node]\n\"marked down\" = { level = \"warn\", meaning = \"A.\", remedy = \"B.\" }\n\
                     up = { level = \"info\", meaning = \"A.\" }\ngone = { level = \"debug\", meaning = \"A.\" }\n";
    let catalogue = toml::from_str(catalogue).unwrap();
    let problems = violations(&lines, &catalogue).join("\n");
    for part in [
        "'node: up' has level warn",
        "'store: ready' has a subject",
        "'{text}' is not",
        "'node: gone' is logged",
    ] {
        assert!(problems.contains(part), "{part}\n{problems}");
    }
    assert!(problems.contains("'node: up' lacks a sentence") && problems.lines().count() == 5, "{problems}");
    for bad in ["Node: up", "node: up.", "node: up {x}", "node up", ": up"] {
        assert!(fault_of_form(bad).is_some(), "{bad}");
    }
    let shown = shown_lines(
        "a.md",
        "```\nWARN node: gone a=b\nt Z INFO x\n2026Z  INFO larder::a: node: up a=b\n```\nWARN c: d",
    );
    let shown: Vec<_> = shown.iter().map(|line| (line.level.as_str(), line.message.as_str())).collect();
    assert_eq!(shown, [("warn", "node: gone"), ("info", "node: up")]);
    assert!(page(&catalogue).contains("| warn | `node: marked down` | A. | B. |\n"));
}
