//! Performance numbers in documents. Each of them has a row in CLAIMS.md with the command that measures it.
//!
//! A number is marked where it stands, `24 us <!-- claim:relay-1k -->`. The table of CLAIMS.md lists it by
//! that id: `| relay-1k | what is claimed | where | command | measured |`.

use std::collections::BTreeSet;

use crate::markdown::prose;
use crate::none;
use crate::repo::{text, texts};

/// Units of numbers that are claims and not settings.
const UNITS: &[&str] = &[
    "ns",
    "us",
    "\u{b5}s",
    "%",
    "times",
    "x",
    "\u{d7}",
    "MB/s",
    "GB/s",
    "requests/s",
    "req/s",
    "decisions/s",
    "bytes",
];

/// A row of the table in CLAIMS.md.
struct Claim {
    id: String,
    command: String,
    measured: String,
}

fn claims(document: &str) -> Vec<Claim> {
    let mut found = Vec::new();
    for line in document.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let id = cells[0].trim_matches('`');
        let header = id == "id" || id.chars().all(|c| matches!(c, '-' | ':'));
        if !header {
            let cell = |at: usize| cells.get(at).copied().unwrap_or("").to_owned();
            found.push(Claim { id: id.to_owned(), command: cell(3), measured: cell(4) });
        }
    }
    found
}

/// Returns the ids that are marked in a text.
fn marked_ids(document: &str) -> Vec<String> {
    let starts = document.split("<!-- claim:").skip(1);
    starts.filter_map(|rest| rest.split("-->").next()).map(|id| id.trim().to_owned()).collect()
}

/// Splits a document at empty lines and after each row of a table, where the scope of a mark ends.
fn passages(document: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (at, line) in document.lines().enumerate() {
        let alone = line.starts_with('|') || line.trim().is_empty();
        match found.last_mut() {
            Some((_, passage)) if open && !alone => {
                passage.push(' ');
                passage.push_str(line);
            }
            _ => found.push((at + 1, line.to_owned())),
        }
        open = !alone;
    }
    found
}

/// Returns the first claim in a passage: digits and one of the units, with or without a space.
fn claimed_number(passage: &str) -> Option<String> {
    let words: Vec<&str> =
        passage.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', ';'])).collect();
    for (at, word) in words.iter().enumerate() {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ','));
        let unit = unit.trim_end_matches(['.', ':']);
        if unit.len() == word.len() {
            continue;
        }
        let next = words.get(at + 1).map_or("", |next| next.trim_end_matches(['.', ':']));
        if UNITS.contains(&unit) || (unit.is_empty() && UNITS.contains(&next)) {
            return Some(format!("{word} {next}"));
        }
    }
    None
}

fn unmarked_numbers(path: &str, document: &str) -> Vec<String> {
    let plain = prose(document);
    let mut problems = Vec::new();
    for (line, passage) in passages(&plain) {
        if let Some(number) = claimed_number(&passage)
            && marked_ids(&passage).is_empty()
        {
            problems.push(format!("{path}:{line}: '{number}' has no claim mark"));
        }
    }
    problems
}

fn mismatches(claims: &[Claim], marked: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut ids = BTreeSet::new();
    for claim in claims {
        if !ids.insert(claim.id.clone()) {
            problems.push(format!("CLAIMS.md lists '{}' twice", claim.id));
        }
        if !claim.command.contains('`') {
            problems.push(format!("CLAIMS.md: '{}' has no command", claim.id));
        }
        if claim.measured.is_empty() {
            problems.push(format!("CLAIMS.md: '{}' has no result", claim.id));
        }
        if !marked.contains(&claim.id) {
            problems.push(format!("CLAIMS.md: '{}' is claimed nowhere", claim.id));
        }
    }
    for id in marked.difference(&ids) {
        problems.push(format!("'{id}' is claimed but not in CLAIMS.md"));
    }
    problems
}

#[test]
fn claims_and_marks_agree() {
    let mut marked = BTreeSet::new();
    for (path, document) in texts(".md") {
        if path != "CLAIMS.md" {
            marked.extend(marked_ids(&prose(&document)));
        }
    }
    none(&mismatches(&claims(&text("CLAIMS.md")), &marked));
}

#[test]
fn the_readme_claims_nothing_unlisted() {
    none(&unmarked_numbers("README.md", &text("README.md")));
}

#[test]
fn false_claims_are_noticed() {
    let table = "| id | claim | where | command | measured |\n|---|---|---|---|---|\n\
                 | a | fast | README | `make bench` | 3 ns |\n| b | small | README | none | 4 |\n";
    let listed = claims(table);
    assert_eq!(listed.len(), 2);
    let marked = marked_ids("3 ns <!-- claim:a --> and 5 % <!-- claim:c -->").into_iter().collect();
    let problems = mismatches(&listed, &marked);
    assert_eq!(problems.len(), 3, "{problems:?}");
    for (passage, claimed) in [
        ("it takes 150 ns.", true),
        ("2.2x faster", true),
        ("at 40% of", true),
        ("8 nodes with 16 MB", false),
        ("10 s", false),
        ("v1.2 times out", false),
    ] {
        assert_eq!(claimed_number(passage).is_some(), claimed, "{passage}");
    }
    assert_eq!(unmarked_numbers("f", "a\n9 % of\nb\n\n8 %\n<!-- claim:x -->\n| 7 % |\n").len(), 2);
}
