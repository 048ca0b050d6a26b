//! Import cycles between the files of a crate: their maximum size, and that they stay in one folder.
//!
//! Files in a cycle can only be understood together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::imports::{Imports, imports};
use crate::none;
use crate::repo::texts;

/// Maximum number of files in a cycle.
const FILES_MAX: usize = 6;

/// Files that import each other, sorted by path.
type Cycle = BTreeSet<String>;

/// Returns all cycles of more than one file, the largest first.
fn cycles(imports: &Imports) -> Vec<Cycle> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|from| (*from, reachable(from, &next))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let cycle_of = |file: &&str| -> Cycle {
        let others = reached[file].iter().filter(|other| reaches(other, file));
        others.map(|other| (*other).to_owned()).collect()
    };
    let found: BTreeSet<Cycle> = next.keys().map(cycle_of).filter(|cycle| !cycle.is_empty()).collect();
    let mut found: Vec<Cycle> = found.into_iter().collect();
    found.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    found
}

/// Returns the files that a file reaches by imports. It contains the file itself only if the file is in a
/// cycle.
fn reachable<'a>(from: &'a str, next: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        let targets = next.get(file).into_iter().flatten();
        open.extend(targets.filter(|target| found.insert(**target)));
    }
    found
}

/// Reports whether the files are in one folder. `a.rs` may count as part of the folder `a` beside it.
fn is_of_one_folder(cycle: &Cycle) -> bool {
    let parts = |file: &String| -> [String; 2] {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        [folder.to_owned(), file.trim_end_matches(".rs").to_owned()]
    };
    let Some(first) = cycle.first() else { return true };
    parts(first).iter().any(|folder| cycle.iter().all(|file| parts(file).contains(folder)))
}

/// Describes a cycle by its imports, one per line.
fn describe(cycle: &Cycle, imports: &Imports) -> String {
    let files: Vec<&str> = cycle.iter().map(String::as_str).collect();
    let mut text = format!("{} files import each other: {}", cycle.len(), files.join(", "));
    let inner = imports.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
    for ((from, to), reason) in inner {
        // Writing to memory does not fail.
        let _ = write!(text, "\n    {from}:{} -> {to} ({})", reason.line, reason.path);
    }
    text
}

/// Returns the cycles of a crate that are too large or leave their folder.
fn problems(imports: &Imports) -> Vec<String> {
    let is_knot = |cycle: &Cycle| cycle.len() > FILES_MAX || !is_of_one_folder(cycle);
    let knots = cycles(imports).into_iter().filter(is_knot);
    knots.map(|cycle| describe(&cycle, imports)).collect()
}

#[test]
fn import_cycles_are_small() {
    let mut crates: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (path, text) in texts(".rs") {
        let parts: Vec<&str> = path.splitn(4, '/').collect();
        if let [group @ ("crates" | "lab"), name, "src", _] = parts[..] {
            crates.entry(format!("{group}/{name}")).or_default().insert(path, text);
        }
    }
    assert!(crates.len() > 10, "only {} crates", crates.len());
    let mut all = Vec::new();
    for (folder, files) in &crates {
        let roots = ["lib.rs", "main.rs"].map(|root| format!("{folder}/src/{root}"));
        let root = roots.iter().find(|root| files.contains_key(*root)).expect("a crate has a root");
        all.extend(problems(&imports(files, root)));
    }
    none(&all);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the imports between these files. `lib.rs` is the root.
    fn of(files: &[(&str, &str)]) -> Imports {
        let files = files.iter().map(|(path, text)| (format!("src/{path}"), (*text).to_owned()));
        imports(&files.collect(), "src/lib.rs")
    }

    fn pairs(imports: &Imports) -> Vec<(&str, &str)> {
        imports.keys().map(|(from, to)| (&from[4..from.len() - 3], &to[4..to.len() - 3])).collect()
    }

    #[test]
    fn names_are_followed_to_their_files() {
        let imports = of(&[
            ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use c::*;"),
            (
                "a.rs",
                "use crate::{C as D, b::{self, d::deep}}; pub struct A; fn f() { b::g(); std::mem::drop(1) }",
            ),
            ("b/mod.rs", "pub(crate) mod d; pub(in crate::c) fn g() { /* crate::c::C */ \"crate::c::C\"; }"),
            ("b/d.rs", "pub fn deep(_: super::super::A) { let crate_ = self::deep; }"),
            ("c.rs", "pub struct C; #[cfg(test)] mod tests { use crate::A; } #[cfg(test)] use crate::A;"),
        ]);
        assert_eq!(pairs(&imports), [("a", "b/d"), ("a", "b/mod"), ("a", "c"), ("b/d", "a")]);
        assert_eq!(imports[&("src/a.rs".to_owned(), "src/c.rs".to_owned())].path, "crate::C");
    }

    #[test]
    fn a_re_export_counts_where_it_is_used() {
        let files = |root: &'static str| of(&[("lib.rs", root), ("a.rs", "pub struct A;")]);
        assert_eq!(pairs(&files("mod a; pub use a::A;")), []);
        assert_eq!(pairs(&files("mod a; pub use a::A; pub struct B(A);")), [("lib", "a")]);
    }

    #[test]
    fn knots_are_noticed() {
        let ring = |count: usize, folder: &str| -> Imports {
            let name = |at: usize| format!("src/{}{at}.rs", if at == 0 { folder } else { "" });
            let one = |at: usize| ((name(at), name((at + 1) % count)), Default::default());
            (0..count).map(one).collect()
        };
        assert_eq!(problems(&ring(FILES_MAX, "")), Vec::<String>::new());
        let seen = problems(&ring(FILES_MAX + 1, ""));
        assert!(seen[0].starts_with("7 files") && seen[0].contains("src/6.rs:0 -> src/0.rs"), "{seen:?}");
        assert!(problems(&ring(2, "b/"))[0].contains("src/b/0.rs"));
    }

    #[test]
    fn a_file_belongs_to_the_folder_beside_it() {
        let cycle = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect::<Cycle>();
        assert!(is_of_one_folder(&cycle(&["src/a.rs", "src/a/b.rs"])));
        assert!(is_of_one_folder(&cycle(&["src/a/mod.rs", "src/a/b.rs"])));
        assert!(!is_of_one_folder(&cycle(&["src/a/b.rs", "src/c.rs"])));
        assert!(!is_of_one_folder(&cycle(&["src/a.rs", "src/a/b.rs", "src/c.rs"])));
    }
}
