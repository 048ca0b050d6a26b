//! Links of the book. In its sources, links to files that it does not contain become links to the repository. In the built
//! book, each internal link must lead to a file, and to an element of it if the link names one.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::files::{list, read_text};
use crate::toolchain::root;

/// Returns the path of a source file, without `.` and `..`.
pub(super) fn page(file: impl AsRef<Path>) -> PathBuf {
    resolve(Path::new(""), &file.as_ref().to_string_lossy())
}

/// Returns the text of a page with links to files that the book does not contain changed to the repository's. mdBook calls
/// the page of a README `index`.
pub(super) fn to_repository(
    text: &str,
    page: &Path,
    contained: &HashSet<PathBuf>,
    repository: &str,
) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((link, tail)) = after.split_once(')') else { break };
        changed += before;
        changed += "](";
        let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
        let path = resolve(page, file);
        if !file.is_empty() && is_internal(link) && !contained.contains(&path) && root().join(&path).exists()
        {
            changed += repository;
            changed += &path.to_string_lossy();
            if !fragment.is_empty() {
                changed = changed + "#" + fragment;
            }
        } else if contained.contains(&path) && path.file_name().is_some_and(|name| name == "README.md") {
            changed += &link.replace("README.md", "index.md");
        } else {
            changed += link;
        }
        changed += ")";
        rest = tail;
    }
    changed + rest
}

/// Checks all internal links of the pages in a directory, and prints those that lead nowhere.
pub(super) fn check(html: &Path) -> Result<()> {
    let mut pages = Vec::new();
    collect(html, &mut pages)?;
    let mut texts = HashMap::new();
    for page in pages {
        let text = read_text(&page)?;
        texts.insert(page, text);
    }
    let targets: HashMap<&Path, HashSet<&str>> =
        texts.iter().map(|(page, text)| (page.as_path(), attributes(text, "id").collect())).collect();
    let mut broken = Vec::new();
    let mut count = 0;
    for (page, text) in &texts {
        // mdBook makes this page for servers; its links are absolute.
        if page.ends_with("404.html") {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")).filter(|link| is_internal(link)) {
            count += 1;
            if !leads_somewhere(page, link, &targets) {
                broken.push(format!("{}: {link}", page.strip_prefix(html).unwrap_or(page).display()));
            }
        }
    }
    broken.sort();
    broken.dedup();
    if broken.is_empty() {
        println!("{} pages, {count} internal links, all lead to a page", texts.len());
        return Ok(());
    }
    Err(Failure::Check(format!("links of the book that lead nowhere:\n  {}", broken.join("\n  "))))
}

fn collect(directory: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for path in list(directory)? {
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            pages.push(path);
        }
    }
    Ok(())
}

/// The values of an attribute, as mdBook writes it: ` name="value"`.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let before = format!(" {name}=\"");
    let length = before.len();
    let starts: Vec<usize> = text.match_indices(&before).map(|(at, _)| at + length).collect();
    starts.into_iter().filter_map(move |start| text.get(start..)?.split('"').next())
}

fn is_internal(link: &str) -> bool {
    let scheme = link.split(['/', '#', '?']).next().unwrap_or("");
    !scheme.contains(':') && !link.starts_with("//")
}

fn leads_somewhere(page: &Path, link: &str, targets: &HashMap<&Path, HashSet<&str>>) -> bool {
    let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
    let file = file.split('?').next().unwrap_or("");
    let path = if file.is_empty() { page.to_owned() } else { resolve(page, file) };
    let path = if path.is_dir() { path.join("index.html") } else { path };
    if !path.is_file() {
        return false;
    }
    fragment.is_empty() || targets.get(path.as_path()).is_none_or(|ids| ids.contains(fragment))
}

/// The path of a link in a page, without `.` and `..`.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(page).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::write;
    use crate::temporary::TemporaryDirectory;

    #[test]
    fn links_out_of_the_book_lead_to_the_repository() {
        let contained = ["docs/a.md", "docs/adr/README.md"].map(PathBuf::from).into();
        let text = "[a](a.md) [b](../Makefile#x) [c](https://e.org/) [d](nowhere.md) [e](#here) [f](adr/README.md#x)";
        let changed = to_repository(text, Path::new("docs/b.md"), &contained, "https://r.org/");
        let expected = text.replace("../Makefile", "https://r.org/Makefile").replace("README", "index");
        assert_eq!(changed, expected);
    }

    #[test]
    fn links_to_absent_pages_and_headings_are_reported() {
        let directory = TemporaryDirectory::new().unwrap();
        let page = |name: &str, text: &str| write(directory.path().join(name), text).unwrap();
        page("a.html", "<h1 id=\"top\"></h1><a href=\"b/c.html#x\">");
        page(
            "b/c.html",
            "<h1 id=\"x\"></h1><a href=\"../a.html\"><a href=\"https://e.org/\"><img src=\"#x\">",
        );
        check(directory.path()).unwrap();
        page("b/c.html", "<a href=\"../a.html#nowhere\"><a href=\"d.html\"><a href=\"../a.html#top\">");
        let problem = check(directory.path()).unwrap_err().to_string();
        let lines: Vec<&str> = problem.lines().skip(1).map(str::trim).collect();
        assert_eq!(lines, ["a.html: b/c.html#x", "b/c.html: ../a.html#nowhere", "b/c.html: d.html"]);
    }
}
