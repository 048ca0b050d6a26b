//! Check that every test that docs/reference/promises.md names exists in the named file.

use crate::none;
use crate::repo::text;

/// A test that a promise names.
#[derive(Debug, PartialEq)]
struct NamedTest {
    file: String,
    name: String,
}

/// Returns the tests in the rows of a table, each written as `` `FILE`: `TEST`, `TEST` ``.
fn named_tests(document: &str) -> Vec<NamedTest> {
    let mut tests = Vec::new();
    for line in document.lines().filter(|line| line.starts_with('|')) {
        let mut file = None;
        for word in line.split('`').skip(1).step_by(2) {
            if word.contains('/') {
                file = Some(word).filter(|path| path.ends_with(".rs"));
            } else if let Some(file) = file.filter(|_| word.contains('_')) {
                tests.push(NamedTest { file: file.to_owned(), name: word.to_owned() });
            }
        }
    }
    tests
}

#[test]
fn tests_of_promises_exist() {
    let tests = named_tests(&text("docs/reference/promises.md"));
    assert!(tests.len() >= 50, "docs/reference/promises.md names only {} tests", tests.len());
    let missing = tests.iter().filter(|test| !text(&test.file).contains(&format!("fn {}(", test.name)));
    none(
        &missing
            .map(|test| format!("docs/reference/promises.md: {} has no test '{}'", test.file, test.name))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn named_tests_are_read() {
    let row = "| A promise of `a.b`. | `crates/a/src/b.rs`: `it_is_one`, `it_is_two`; `bench/c.py`; `crates/d.rs`: `it_is_three` |";
    let test = |file: &str, name: &str| NamedTest { file: file.to_owned(), name: name.to_owned() };
    let expected = [
        test("crates/a/src/b.rs", "it_is_one"),
        test("crates/a/src/b.rs", "it_is_two"),
        test("crates/d.rs", "it_is_three"),
    ];
    assert_eq!(named_tests(row), expected);
}
