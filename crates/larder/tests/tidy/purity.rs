//! Check that the core decides and does not act. It uses no clock, socket, file, thread, environment, own
//! randomness, or log.

use crate::none;
use crate::repo::texts;

/// Names that are forbidden in core code, with the alternative.
const FORBIDDEN: &[(&str, &str)] = &[
    ("std::time::Instant", "time comes in as larder_core::Time"),
    ("std::time::SystemTime", "time comes in as larder_core::Time"),
    ("Instant::now", "time comes in as larder_core::Time"),
    ("SystemTime", "time comes in as larder_core::Time"),
    ("std::net", "the shells own sockets"),
    ("std::fs", "the shells own files"),
    ("std::io", "the shells own input and output"),
    ("std::path", "the shells own files"),
    ("std::process", "the shells own processes"),
    ("std::thread", "the shells own threads"),
    ("std::env", "settings come in as arguments"),
    (
        "std::collections::HashMap",
        "its order changes from run to run: use hashbrown with our hasher, or a BTreeMap",
    ),
    (
        "std::collections::HashSet",
        "its order changes from run to run: use hashbrown with our hasher, or a BTreeSet",
    ),
    ("RandomState", "chance comes in as a seed"),
    ("rand::rng", "chance comes in as a seed"),
    ("thread_rng", "chance comes in as a seed"),
    ("getrandom", "chance comes in as a seed"),
    ("tokio", "the core does not wait"),
    ("async fn", "the core does not wait"),
    (".await", "the core does not wait"),
    ("tracing", "the core returns reasons, the shells log them"),
    ("log", "the core returns reasons, the shells log them"),
    ("println!", "the core returns reasons, the shells log them"),
    ("eprintln!", "the core returns reasons, the shells log them"),
    ("print!", "the core returns reasons, the shells log them"),
    ("eprint!", "the core returns reasons, the shells log them"),
];

/// Returns the code without comments and test modules, and the names of test modules in separate files.
fn own_code(source: &str) -> (Vec<(usize, String)>, Vec<String>) {
    let (mut code, mut test_files) = (Vec::new(), Vec::new());
    let mut after_cfg_test = false;
    for (at, line) in source.lines().enumerate() {
        let line = line.split("//").next().unwrap_or("").trim();
        if after_cfg_test && let Some(module) = line.strip_prefix("mod ") {
            match module.strip_suffix(';') {
                Some(name) => test_files.push(name.to_owned()),
                // Tests stand last in a file.
                None => break,
            }
        } else if !line.is_empty() {
            code.push((at + 1, line.to_owned()));
        }
        after_cfg_test = line == "#[cfg(test)]" || (after_cfg_test && line.starts_with("#["));
    }
    (code, test_files)
}

/// Reports whether the text contains the word as a whole. A lower-case word is the name of a crate. It counts
/// only at the beginning of a path or in an import, because a method may have any name.
fn names(text: &str, word: &str) -> bool {
    let of_a_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_crate = word.chars().all(|c| c.is_ascii_lowercase());
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        let continues_left = word.starts_with(of_a_word) && before.ends_with(|c| of_a_word(c) || c == '.');
        let continues_right = word.ends_with(of_a_word) && after.starts_with(of_a_word);
        let counts = !is_crate || after.starts_with("::") || text.starts_with("use ");
        counts && !continues_left && !continues_right
    })
}

/// Returns the paths of a `use` one by one: `use a::{b, c::d};` is `a::b` and `a::c::d`.
fn imports(tree: &str, prefix: &str, found: &mut Vec<String>) {
    let (mut depth, mut start) = (0_i32, 0);
    let mut branches = Vec::new();
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&tree[start..]);
    for branch in branches.into_iter().map(str::trim).filter(|branch| !branch.is_empty()) {
        match branch.split_once('{') {
            Some((head, rest)) => {
                let inner = rest.strip_suffix('}').unwrap_or(rest);
                imports(inner, &format!("{prefix}{head}"), found);
            }
            None => found.push(format!("{prefix}{branch}")),
        }
    }
}

fn impurities(path: &str, code: &[(usize, String)]) -> Vec<String> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open_use: Option<(usize, String)> = None;
    for (number, line) in code {
        let starts_use = line.starts_with("use ") || line.starts_with("pub use ");
        if let Some((_, text)) = open_use.as_mut() {
            text.push_str(line);
        } else if starts_use {
            open_use = Some((*number, line.trim_start_matches("pub ").trim_start_matches("use ").to_owned()));
        } else {
            lines.push((*number, line.clone()));
        }
        if line.ends_with(';')
            && let Some((number, tree)) = open_use.take()
        {
            let mut found = Vec::new();
            imports(tree.trim_end_matches(';'), "use ", &mut found);
            lines.extend(found.into_iter().map(|path| (number, path)));
        }
    }
    let mut problems = Vec::new();
    for (number, line) in &lines {
        for (word, instead) in FORBIDDEN {
            if names(line, word) {
                problems.push(format!("{path}:{number}: '{word}' in the core: {instead}"));
            }
        }
    }
    problems
}

#[test]
fn the_core_is_pure() {
    let sources: Vec<(String, String)> =
        texts(".rs").into_iter().filter(|(path, _)| path.starts_with("crates/larder-core/src/")).collect();
    assert!(sources.len() > 5, "the core has {} files", sources.len());
    let mut test_files = Vec::new();
    let mut problems = Vec::new();
    let mut code = Vec::new();
    for (path, source) in &sources {
        let (own, tests) = own_code(source);
        let folder = match path.rsplit_once('/') {
            Some((folder, "mod.rs" | "lib.rs")) => folder.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        test_files.extend(tests.iter().map(|name| format!("{folder}/{name}")));
        code.push((path, own));
    }
    for (path, own) in code {
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
        if !test_files.iter().any(|test| module == test || module.starts_with(&format!("{test}/"))) {
            problems.extend(impurities(path, &own));
        }
    }
    none(&problems);
}

#[test]
fn impurity_is_noticed() {
    let source = "use std::{collections::{BTreeMap, HashMap}, time::{Duration, Instant}};\n\
                  // std::net in a comment is no use of it\n\
                  fn f() { let catalog = 1; println!(\"x\"); log::info!(\"y\"); let f = x.log(2); }\n\
                  #[cfg(test)]\nmod shelf;\n\
                  #[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
    let (code, tests) = own_code(source);
    assert_eq!(tests, ["shelf"]);
    let problems = impurities("f.rs", &code);
    assert_eq!(problems.len(), 4, "{problems:#?}");
    for word in ["HashMap", "Instant", "println!", "'log'"] {
        assert!(problems.iter().any(|problem| problem.contains(word)), "{word}: {problems:#?}");
    }
}
