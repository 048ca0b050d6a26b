//! Check of docs/understand/compare.md: every stated feature of larder names a test.

use std::collections::BTreeMap;

use crate::{none, repo};

/// Returns the faults of the tables: an unknown word, a yes without a test, or a test that does not exist.
/// `tests` has the text of the files by their names without extension.
fn problems(text: &str, tests: &BTreeMap<String, String>) -> Vec<String> {
    let mut problems = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, what, ours, shown, _, ..] = cells[..] else { continue };
        if ours == "larder" {
            continue;
        }
        if !["yes", "no", "partly"].iter().any(|word| ours.starts_with(word)) {
            problems.push(format!("{what}: \"{ours}\" is none of yes, no, partly"));
        }
        if ours.starts_with("yes") && shown.is_empty() {
            problems.push(format!("{what}: no test shows it"));
        }
        for name in shown.split('`').skip(1).step_by(2) {
            let there = name.split_once("::").is_some_and(|(file, test)| {
                tests.get(file).is_some_and(|text| text.contains(&format!("fn {test}(")))
            });
            if !there {
                problems.push(format!("{what}: there is no test {name}"));
            }
        }
    }
    problems
}

#[test]
fn each_yes_names_a_test_that_there_is() {
    let mut tests: BTreeMap<String, String> = BTreeMap::new();
    for (path, text) in repo::texts(".rs") {
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        tests.entry(name.to_owned()).or_default().push_str(&text);
    }
    let text = repo::text("docs/understand/compare.md");
    let rows = text.lines().filter(|line| line.starts_with("| ")).count();
    assert!(rows >= 48, "{rows} rows");
    none(&problems(&text, &tests));
}

#[test]
fn a_wrong_row_is_named() {
    let tests = BTreeMap::from([("a".to_owned(), "fn it_works() {".to_owned())]);
    let row = |ours: &str, shown: &str| problems(&format!("| x | {ours} | {shown} | Y |\n"), &tests);
    assert!(row("yes", "`a::it_works`").is_empty() && row("no", "").is_empty());
    assert_eq!(row("yes", ""), ["x: no test shows it"]);
    assert_eq!(row("partly", "`a::it_fails`"), ["x: there is no test a::it_fails"]);
    assert_eq!(row("perhaps", ""), ["x: \"perhaps\" is none of yes, no, partly"]);
}
