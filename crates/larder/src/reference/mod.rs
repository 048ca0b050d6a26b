//! Pages of `docs/reference/` that are generated from the code.
//!
//! A test compares each page with the file. `LARDER_WRITE=1` writes the file instead.

mod commands;
mod metrics;

use std::path::Path;

/// Compares a generated page with its file, or writes the file.
pub(crate) fn check(path: &str, page: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("LARDER_WRITE").is_some() {
        std::fs::write(&file, page).expect("the page is written");
        return;
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let differing = written.lines().zip(page.lines()).find(|(old, new)| old != new);
    assert!(
        written == page,
        "{path} is not up to date: run the test with LARDER_WRITE=1; first difference: {differing:?}"
    );
}

/// Returns a text for a cell of a table: one line, and no mark that ends the cell.
pub(crate) fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[test]
fn cells_are_one_line_and_escaped() {
    assert_eq!(cell("a\n\nb `c|d`"), "a b `c\\|d`");
}
