//! Checks of every file: length, size, words, and no unsafe code.

use crate::none;
use crate::repo::{File, files, list, metadata, string, text, texts};

/// Maximum length of a source file.
const SOURCE_LINES_MAX: usize = 600;
/// Maximum size of a file. Larger files are data, which needs a recipe instead.
const FILE_BYTES_MAX: u64 = 512 * 1024;
/// Crates that may contain unsafe code: calls into the kernel, and pointers of a C program.
const MAY_BE_UNSAFE: &[&str] = &["larder-envoy", "larder-kernel", "larder-nginx", "liblarder"];
/// Lints that such a crate denies, so that each module with unsafe code says why, and each block why it is sound.
const UNSAFE_LINTS: &[(&str, &str)] =
    &[("rust", "unsafe_code"), ("rust", "unsafe_op_in_unsafe_fn"), ("clippy", "undocumented_unsafe_blocks")];

/// Banned words: marks of unfinished work, and praise. They are split, because this file is checked too.
const BANNED: &[(&str, &str)] = &[
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X"),
    ("TB", "D"),
    ("W", "IP"),
    ("place", "holder"),
    ("lorem", " ipsum"),
    ("blaz", "ing"),
    ("lightning", "-fast"),
    ("cutting", "-edge"),
    ("world", "-class"),
    ("revolu", "tionary"),
    ("game", "-changer"),
    ("/wo", "rk/"),
    ("/tm", "p/w/"),
];

fn banned_words(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for (left, right) in BANNED {
            let word = format!("{left}{right}");
            // Marks in capitals are compared as written, and other words in any case.
            let shouted = word.chars().all(|c| c.is_ascii_uppercase());
            let line = if shouted { line.to_owned() } else { line.to_lowercase() };
            let found = line.match_indices(&word).any(|(start, _)| {
                let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
                let (before, after) =
                    (line[..start].chars().next_back(), line[start + word.len()..].chars().next());
                !(shouted && (inside(before) || inside(after)))
            });
            if found {
                problems.push(format!("{path}:{}: '{word}'", at + 1));
            }
        }
    }
    problems
}

fn too_long(file: &File) -> Option<String> {
    let lines = file.text.as_deref().map_or(0, |text| text.lines().count());
    let is_source = [".rs", ".sh", ".c", ".h"].iter().any(|ending| file.path.ends_with(ending));
    (is_source && lines > SOURCE_LINES_MAX)
        .then(|| format!("{}: {lines} lines, {SOURCE_LINES_MAX} at most", file.path))
}

fn too_large(file: &File) -> Option<String> {
    (file.size_bytes > FILE_BYTES_MAX)
        .then(|| format!("{}: {} bytes, {FILE_BYTES_MAX} at most", file.path, file.size_bytes))
}

/// Returns test code that sleeps. A test must wait for an event with the helpers of the testkit, which give
/// the reason for a duration.
fn sleeps(path: &str, text: &str) -> Vec<String> {
    let is_test = (path.starts_with("crates/") || path.starts_with("lab/"))
        && (path.contains("/tests/") || path.ends_with("/tests.rs"));
    let lines = text.lines().enumerate().filter(|(_, line)| is_test && line.contains(concat!("sl", "eep(")));
    lines.map(|(at, _)| format!("{path}:{}: a sleep; use larder-testkit's wait", at + 1)).collect()
}

/// Reports whether a crate's manifest inherits the lints of the workspace, which forbid unsafe code.
fn lints_are_taken_over(manifest: &str) -> bool {
    let table: toml::Table = manifest.parse().unwrap_or_default();
    let lints = table.get("lints").and_then(|lints| lints.get("workspace"));
    lints.and_then(toml::Value::as_bool) == Some(true)
}

/// Returns the lints of [`UNSAFE_LINTS`] that a crate's manifest does not deny.
fn missing_unsafe_lints(manifest: &str) -> Vec<&'static str> {
    let table: toml::Table = manifest.parse().unwrap_or_default();
    let level =
        |tool: &str, lint: &str| table.get("lints")?.get(tool)?.get(lint)?.as_str().map(str::to_owned);
    let missing = UNSAFE_LINTS.iter().filter(|(tool, lint)| level(tool, lint).as_deref() != Some("deny"));
    missing.map(|(_, lint)| *lint).collect()
}

#[test]
fn files_are_short_and_small() {
    let files = files();
    assert!(files.len() > 30, "git lists {} files", files.len());
    none(&files.iter().flat_map(|file| [too_long(file), too_large(file)]).flatten().collect::<Vec<_>>());
}

#[test]
fn files_hold_no_banned_words() {
    let mut problems = Vec::new();
    for file in files() {
        // Licences and lock files are foreign text.
        if !matches!(file.name(), "LICENSE" | "Cargo.lock")
            && let Some(text) = &file.text
        {
            problems.extend(banned_words(&file.path, text));
        }
    }
    none(&problems);
}

#[test]
fn tests_wait_for_events() {
    none(&texts(".rs").iter().flat_map(|(path, text)| sleeps(path, text)).collect::<Vec<_>>());
}

#[test]
fn unsafe_code_lives_in_few_crates() {
    let workspace: toml::Table = text("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let level = workspace["workspace"]["lints"]["rust"]["unsafe_code"].as_str();
    assert_eq!(level, Some("forbid"), "the workspace forbids unsafe code");
    let mut problems = Vec::new();
    for package in list(&metadata(false), "packages") {
        let name = string(package, "name");
        let path = string(package, "manifest_path");
        let manifest = std::fs::read_to_string(path).expect("cargo names a manifest that can be read");
        if MAY_BE_UNSAFE.contains(&name) {
            let missing = missing_unsafe_lints(&manifest).into_iter();
            problems.extend(missing.map(|lint| format!("{name} does not deny {lint}")));
        } else if !lints_are_taken_over(&manifest) {
            problems.push(format!("{name} does not take over the workspace's lints"));
        }
    }
    none(&problems);
}

#[test]
fn bad_files_are_noticed() {
    let file = |path: &str, lines: usize| {
        let text = "x\n".repeat(lines);
        File { path: path.to_owned(), size_bytes: text.len() as u64, text: Some(text) }
    };
    assert!(too_long(&file("a.rs", SOURCE_LINES_MAX + 1)).is_some());
    assert!(too_long(&file("a.rs", SOURCE_LINES_MAX)).is_none());
    assert!(too_long(&file("a.md", SOURCE_LINES_MAX + 1)).is_none());
    let nap = format!("thread::sl{}(x);", "eep");
    assert_eq!((sleeps("crates/a/tests/b.rs", &nap).len(), sleeps("crates/a/src/b.rs", &nap).len()), (1, 0));
    assert!(too_large(&file("a.md", FILE_BYTES_MAX as usize / 2 + 1)).is_some());
    assert!(!lints_are_taken_over("[package]\nname = \"x\"\n"));
    assert!(lints_are_taken_over("[lints]\nworkspace = true\n"));
    let lints = "[lints.rust]\nunsafe_code = \"deny\"\nunsafe_op_in_unsafe_fn = \"warn\"\n";
    assert_eq!(missing_unsafe_lints(lints), ["unsafe_op_in_unsafe_fn", "undocumented_unsafe_blocks"]);
    for (text, count) in [("a TO\u{44}O here", 1), ("METHO\u{44}OLOGY", 0), ("Bla\u{7a}ing", 1), ("fine", 0)]
    {
        assert_eq!(banned_words("f", text).len(), count, "{text}");
    }
}
