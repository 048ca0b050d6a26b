//! Check that the names in ARCHITECTURE.md exist: functions of the walks in their files, and the modules and types of each
//! crate's section in that crate.

use std::path::Path;

use crate::none;
use crate::repo::{root, text, texts};

const DOCUMENT: &str = "ARCHITECTURE.md";

/// A name in the document.
#[derive(Debug, PartialEq)]
struct Name {
    /// Line of the document, from 1.
    line: usize,
    /// Path below `crates/`: of the file that must have the name, or of a crate.
    place: String,
    name: String,
}

/// Returns the texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the cells of a table row.
fn cells(line: &str) -> Vec<&str> {
    line.split('|').map(str::trim).skip(1).collect()
}

/// Returns whether a text is an identifier, or a path of identifiers.
fn is_path(text: &str) -> bool {
    !text.is_empty() && text.split("::").all(|part| !part.is_empty() && part.chars().all(is_word))
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Returns the functions of the walks. A row of a walk is `| step | text | file |`; a function is a code of the text that is
/// an identifier in lower case after the last `::`.
fn walk_names(document: &str) -> Vec<Name> {
    let mut names = Vec::new();
    for (at, line) in document.lines().enumerate() {
        let [step, description, file, ..] = cells(line)[..] else { continue };
        if step.parse::<u32>().is_err() {
            continue;
        }
        let Some(file) = code(file).next() else { continue };
        // Only the first name is the step's; later ones explain it.
        if let Some(name) = code(description).next().filter(|name| is_path(name)) {
            let name = name.rsplit("::").next().unwrap_or(name);
            names.push(Name { line: at + 1, place: file.to_owned(), name: name.to_owned() });
        }
    }
    names
}

/// Returns the modules and types that the section of a crate names, except paths into other crates.
fn section_names(document: &str) -> Vec<Name> {
    let (mut names, mut section, mut modules) = (Vec::new(), None, None);
    for (at, line) in document.lines().enumerate() {
        if line.starts_with('#') {
            section = line.strip_prefix("### ").filter(|title| title.starts_with("larder"));
        }
        let Some(section) = section else { continue };
        let mut add = |name: &str| {
            names.push(Name { line: at + 1, place: section.to_owned(), name: name.to_owned() });
        };
        if line.starts_with('|') {
            let row = cells(line);
            modules = row.iter().position(|title| *title == "modules").or(modules);
            code(modules.and_then(|at| row.get(at)).unwrap_or(&"")).for_each(&mut add);
        } else {
            modules = None;
        }
        let is_type = |name: &&str| {
            is_path(name) && name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
        };
        code(line).filter(is_type).for_each(add);
    }
    names
}

/// Returns whether a source has a name as a whole word.
fn has_word(source: &str, name: &str) -> bool {
    source
        .match_indices(name)
        .any(|(at, _)| !source[..at].ends_with(is_word) && !source[at + name.len()..].starts_with(is_word))
}

#[test]
fn steps_of_the_walks_exist() {
    let names = walk_names(&text(DOCUMENT));
    assert!(names.len() >= 15, "the walks have only {} functions", names.len());
    let missing = |step: &&Name| !has_word(&text(&format!("crates/{}", step.place)), &step.name);
    let problem = |step: &Name| format!("{DOCUMENT}:{}: {} has no '{}'", step.line, step.place, step.name);
    none(&names.iter().filter(missing).map(problem).collect::<Vec<_>>());
}

#[test]
fn modules_and_types_of_the_sections_exist() {
    let names = section_names(&text(DOCUMENT));
    assert!(names.len() >= 60, "the sections have only {} names", names.len());
    let sources = texts(".rs");
    let mut problems = Vec::new();
    for Name { line, place, name } in &names {
        let folder = format!("crates/{place}/src");
        let is_module = || {
            let path = root().join(&folder).join(name.replace("::", "/"));
            path.is_dir() || Path::new(&format!("{}.rs", path.display())).is_file()
        };
        let is_in = |folder: &str, name: &str| {
            sources.iter().any(|(path, source)| path.starts_with(folder) && has_word(source, name))
        };
        let exists = if name.starts_with(char::is_lowercase) {
            is_module()
        } else {
            // A section may name the types of a crate that it uses.
            name.split("::").all(|part| is_in("crates/", part))
        };
        if !exists {
            problems.push(format!("{DOCUMENT}:{line}: {place} has no '{name}'"));
        }
    }
    none(&problems);
}

#[test]
fn names_are_read() {
    let name = |line, place: &str, name: &str| Name { line, place: place.to_owned(), name: name.to_owned() };
    let walk = "| step | function | file |\n|---|---|---|\n| 1 | `Gate::wait` queues `x` | `larder-core/src/a.rs` |\n";
    assert_eq!(walk_names(walk), [name(3, "larder-core/src/a.rs", "wait")]);
    let section = "### larder-node\n`Node` at [x](y).\n| layer | modules | contents |\n|---|---|---|\n| a | `node` | `Part::new` |\n## End\n`None`\n";
    let expected =
        [name(2, "larder-node", "Node"), name(5, "larder-node", "node"), name(5, "larder-node", "Part::new")];
    assert_eq!(section_names(section), expected);
    assert!(has_word("fn wait()", "wait") && !has_word("await_it", "wait"));
}
