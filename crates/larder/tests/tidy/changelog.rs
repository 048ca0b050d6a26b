//! The form of CHANGELOG.md: versions, sections in their order, and one sentence for each entry.

use crate::none;
use crate::repo::text;

/// Sections of a version, in their order.
const SECTIONS: &[&str] = &["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
/// Maximum length of an entry. Characters.
const ENTRY_CHARS_MAX: usize = 120;
/// Maximum number of words of the entries of a version.
const VERSION_WORDS_MAX: usize = 700;

/// Reports whether a heading names a version: `Unreleased`, or `1.2.3 - 2026-01-31`.
fn is_version(heading: &str) -> bool {
    let numbers = |text: &str, separator: char, lengths: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        parts.len() == lengths.len()
            && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
            && parts.iter().zip(lengths).all(|(part, length)| *length == 0 || part.len() == *length)
    };
    let dated =
        |(version, date): (&str, &str)| numbers(version, '.', &[0, 0, 0]) && numbers(date, '-', &[4, 2, 2]);
    heading == "Unreleased" || heading.split_once(" - ").is_some_and(dated)
}

/// Returns the fault of an entry.
fn fault(entry: &str) -> Option<String> {
    let length = entry.chars().count();
    if length > ENTRY_CHARS_MAX {
        return Some(format!("{length} characters, {ENTRY_CHARS_MAX} at most"));
    }
    let is_sentence = entry.ends_with('.') && !entry.trim_end_matches('.').contains(". ");
    (!is_sentence).then(|| "not one sentence".to_owned())
}

/// Returns the faults of a changelog.
fn faults(document: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut versions, mut words) = (Vec::new(), 0);
    // Number of the current section in `SECTIONS`.
    let mut section: Option<usize> = None;
    for (at, line) in document.lines().enumerate() {
        let mut problem = |what: &str| problems.push(format!("CHANGELOG.md:{}: {what}", at + 1));
        if let Some(heading) = line.strip_prefix("## ") {
            if !is_version(heading) {
                problem("no version; write `Unreleased` or `1.2.3 - 2026-01-31`");
            }
            versions.push(heading);
            (section, words) = (None, 0);
        } else if let Some(heading) = line.strip_prefix("### ") {
            let found = SECTIONS.iter().position(|name| *name == heading);
            match found {
                None => problem(&format!("no section; there are {}", SECTIONS.join(", "))),
                Some(_) if section >= found => problem("the section is twice or too late"),
                Some(_) => {}
            }
            section = found.or(section);
        } else if let Some(entry) = line.strip_prefix("- ") {
            if section.is_none() {
                problem("an entry outside of a section");
            }
            if let Some(fault) = fault(entry) {
                problem(&fault);
            }
            words += entry.split_whitespace().count();
            if words > VERSION_WORDS_MAX {
                problem(&format!("the entries of the version have more than {VERSION_WORDS_MAX} words"));
            }
        } else if !versions.is_empty() && !line.is_empty() {
            problem("neither heading nor entry; an entry has one line");
        }
    }
    if versions.first() != Some(&"Unreleased") {
        problems.push("CHANGELOG.md: the first version is not `Unreleased`".to_owned());
    }
    problems
}

#[test]
fn the_changelog_has_its_form() {
    none(&faults(&text("CHANGELOG.md")));
}

#[test]
fn faults_of_a_changelog_are_noticed() {
    let right = "# C\n\nText.\n\n## Unreleased\n\n### Added\n\n- A.\n\n## 0.1.0 - 2026-01-31\n\n### Fixed\n\n- B 1.5.\n";
    assert_eq!(faults(right), Vec::<String>::new());
    let long = format!("- {}.", "a".repeat(ENTRY_CHARS_MAX));
    for (from, to, fault) in [
        (
            "## Unreleased\n",
            "## 0.2\n",
            "CHANGELOG.md:5: no version; write `Unreleased` or `1.2.3 - 2026-01-31`",
        ),
        (
            "### Fixed",
            "### Mended",
            "CHANGELOG.md:13: no section; there are Added, Changed, Deprecated, Removed, Fixed, Security",
        ),
        ("### Fixed", "### Fixed\n### Added", "CHANGELOG.md:14: the section is twice or too late"),
        ("- A.", "- A. B.", "CHANGELOG.md:9: not one sentence"),
        ("- A.", "- A", "CHANGELOG.md:9: not one sentence"),
        ("- A.", "- A\n  b.", "CHANGELOG.md:10: neither heading nor entry; an entry has one line"),
        ("- A.", &long, "CHANGELOG.md:9: 121 characters, 120 at most"),
        ("### Added\n", "", "CHANGELOG.md:8: an entry outside of a section"),
    ] {
        let found = faults(&right.replace(from, to));
        assert!(found.iter().any(|problem| problem == fault), "{fault}: {found:?}");
    }
}
