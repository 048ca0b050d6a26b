//! `cargo xtask book`: the documentation as a book, by mdBook, with all its internal links checked.
//!
//! mdBook reads one folder and copies it. Pages link to documents at the root of the repository and to `examples/`, so
//! the book is built from a staged copy that has the same layout: `target/book/src/docs/operate/tls.md` can link to
//! `../../examples/larder.toml` as the repository's page does. `docs/SUMMARY.md` names the pages relative to `docs/`;
//! its copy names them relative to the root. Links to files that the book does not contain lead to the repository's
//! page in the web.

mod links;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::files::{make_directory, read_text, write};
use crate::process::{command, command_with, find, is_executable, read, run};
use crate::toolchain::{root, set_up, target_directory, tools_directory};

/// Files and folders of the repository that the book contains.
const CONTENTS: [&str; 8] = [
    "docs",
    "examples",
    "packaging",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

/// The first page of the server's root, which leads to the introduction.
const FRONT_PAGE: &str = "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>larder</title>\n\
    <meta http-equiv=\"refresh\" content=\"0; url=docs/index.html\">\n<a href=\"docs/index.html\">larder</a>\n";

/// Where files of the repository that the book does not contain can be read.
const REPOSITORY: &str = "https://github.com/larder-cluster/larder/blob/main/";

/// Runs `cargo xtask book`.
pub(crate) fn task(arguments: Arguments) -> Result<()> {
    arguments.finish()?;
    set_up("book")?;
    let first_page = build()?;
    println!("{}", first_page.display());
    Ok(())
}

/// Builds the book, checks its links, and returns the path of its first page.
pub(crate) fn build() -> Result<PathBuf> {
    let directory = target_directory().join("book");
    stage(&directory)?;
    run(command(mdbook()?).args(["build".as_ref(), directory.as_os_str()]))?;
    let html = directory.join("html");
    // mdBook puts a copy of the first page here, whose links would be wrong.
    write(html.join("index.html"), FRONT_PAGE)?;
    links::check(&html)?;
    Ok(html.join("index.html"))
}

/// The program mdBook: the one that `scripts/setup.sh` has built, else one in `PATH`.
fn mdbook() -> Result<PathBuf> {
    let built = tools_directory().join("mdbook");
    if is_executable(&built) {
        return Ok(built);
    }
    find("mdbook").ok_or_else(|| Failure::Missing("mdbook (scripts/setup.sh book builds it)".to_owned()))
}

/// Copies the sources of the book, as git knows them, into `directory/src`.
fn stage(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(Failure::file(directory))?;
    }
    let files = read(
        command_with("git", ["ls-files", "--cached", "--others", "--exclude-standard", "--"]).args(CONTENTS),
    )?;
    let source = directory.join("src");
    let files: Vec<&str> = files.lines().filter(|file| root().join(file).is_file()).collect();
    let contained: HashSet<PathBuf> = files.iter().map(links::page).collect();
    for file in files {
        let (from, to) = (root().join(file), source.join(file));
        if file.ends_with(".md") {
            let text = read_text(&from)?;
            write(&to, links::to_repository(&text, Path::new(file), &contained, REPOSITORY))?;
        } else {
            make_directory(to.parent().unwrap_or(&source))?;
            fs::copy(&from, &to).map_err(Failure::file(&from))?;
        }
    }
    let summary = summary_from_root(&read_text(root().join("docs/SUMMARY.md"))?);
    write(source.join("SUMMARY.md"), summary)?;
    fs::remove_file(source.join("docs/SUMMARY.md")).map_err(Failure::file("docs/SUMMARY.md"))?;
    fs::rename(source.join("docs/book.toml"), directory.join("book.toml"))
        .map_err(Failure::file("docs/book.toml"))
}

/// Returns `docs/SUMMARY.md` with links relative to the root of the repository.
fn summary_from_root(summary: &str) -> String {
    summary.replace("](../", "](\u{0}").replace("](", "](docs/").replace("](docs/\u{0}", "](")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_staged_with_paths_from_the_root() {
        let staged = summary_from_root("- [A](start/a.md)\n  - [B](../B.md)\n");
        assert_eq!(staged, "- [A](docs/start/a.md)\n  - [B](B.md)\n");
    }
}
