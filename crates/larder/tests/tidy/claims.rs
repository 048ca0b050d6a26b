//! Performance numbers in documents. Each of them has a record in `claims/` with the command that measures it.
//!
//! A number is marked where it stands, `24 us <!-- claim:relay-1k -->`. The record lists its documents, and the
//! page docs/reference/claims.md is made of all records.

#[path = "../../../../xtask/src/claims/page.rs"]
mod page;
#[path = "../../../../xtask/src/claims/record.rs"]
mod record;

use std::collections::{BTreeMap, BTreeSet};

use crate::markdown::prose;
use crate::none;
use crate::repo::{root, text, texts};
use record::Area;

/// Documents in which each claim is marked.
type Marks = BTreeMap<String, BTreeSet<String>>;

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

fn mismatches(areas: &[Area], marks: &Marks) -> Vec<String> {
    let mut problems = Vec::new();
    let mut ids = BTreeSet::new();
    for claim in areas.iter().flat_map(|area| &area.claims) {
        let id = &claim.id;
        if !ids.insert(id) {
            problems.push(format!("claims/ has '{id}' twice"));
        }
        problems.extend(claim.faults().into_iter().map(|fault| format!("claims/: '{id}' {fault}")));
        let listed: BTreeSet<String> = claim.documents.iter().cloned().collect();
        let marked = marks.get(id).cloned().unwrap_or_default();
        if listed != marked || marked.is_empty() {
            let remedy = "run `cargo xtask claims where`";
            problems.push(format!("claims/: '{id}' has where = {listed:?}, its marks {marked:?}; {remedy}"));
        }
    }
    for (id, documents) in marks.iter().filter(|(id, _)| !ids.contains(id)) {
        problems.push(format!("'{id}' is marked in {documents:?} and has no record in claims/"));
    }
    problems
}

#[test]
fn claims_and_marks_agree() {
    let mut marks = Marks::new();
    for (path, document) in texts(".md").into_iter().filter(|(path, _)| path != page::PATH) {
        for id in marked_ids(&prose(&document)) {
            marks.entry(id).or_default().insert(path.clone());
        }
    }
    none(&mismatches(&record::read(&root()).expect("claims/ is read"), &marks));
}

#[test]
fn the_page_of_claims_is_current() {
    let page = page::page(&record::read(&root()).expect("claims/ is read"));
    if std::env::var_os("LARDER_WRITE").is_some() {
        std::fs::write(root().join(page::PATH), &page).expect("the page is written");
    }
    assert!(page == text(page::PATH), "{} differs from claims/; run `cargo xtask claims page`", page::PATH);
}

#[test]
fn the_readme_claims_nothing_unlisted() {
    none(&unmarked_numbers("README.md", &text("README.md")));
}

#[test]
fn false_claims_are_noticed() {
    let record = |id: &str, value: &str| {
        format!(
            "[[claim]]\nid = '{id}'\nclaim = 'Fast.'\nwhere = ['a.md']\ncommands = ['make bench']\n\
             date = 2026-01-02\nvalues = [{{ name = 'n', {value} }}]\n"
        )
    };
    let text = format!("area = 'A'\norder = 1\n{}{}", record("a", "value = 3"), record("b", "note = 'n'"));
    let area = record::parse("claims/a.toml", &text).expect("it is a record");
    let ids = marked_ids("3 ns <!-- claim:a --> and 5 % <!-- claim:c -->");
    let marks = ids.into_iter().map(|id| (id, BTreeSet::from(["a.md".to_owned()]))).collect();
    let problems = mismatches(&[area], &marks);
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
