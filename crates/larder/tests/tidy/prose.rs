//! Checks of prose: length of sentences, of pages and of the whole documentation, and openings of doc comments.

use crate::markdown::without_code;
use crate::none;
use crate::repo::texts;

/// Maximum number of words of a sentence.
const SENTENCE_WORDS_MAX: usize = 30;
/// Maximum share of longer sentences in all sentences. Percent.
const LONG_SENTENCES_MAX: usize = 2;
/// Maximum number of words of a page in the folders of [`SHORT_PAGES`].
const PAGE_WORDS_MAX: usize = 1_500;
/// Maximum number of words of the handwritten documentation: the book, and the documents at the root. The changelog has a limit of
/// its own, and the summary is the table of contents.
const DOCUMENTATION_WORDS_MAX: usize = 45_500;

/// Documents that a program writes.
const GENERATED: &[&str] = &[
    "docs/reference/churn.md",
    "docs/reference/claims.md",
    "docs/reference/commands.md",
    "docs/reference/config.md",
    "docs/reference/conformance.md",
    "docs/reference/live.md",
    "docs/reference/logs.md",
    "docs/reference/metrics.md",
    "docs/reference/validation-live.md",
    "docs/reference/validation.md",
];
/// Folders whose pages are short.
const SHORT_PAGES: &[&str] = &["docs/start/", "docs/operate/", "docs/understand/"];
/// Pages in these folders that may be longer.
const LONG_PAGES: &[&str] = &[];

/// Folders whose doc comments are checked.
const CODE: &[&str] = &["crates/", "lab/", "xtask/", "fuzz/"];
/// Words that no doc comment begins with, because the sentence then has no subject.
const OPENINGS: &[&str] =
    &["What", "Of", "Who", "Whose", "Those", "Such", "By which", "From which", "As long as", "That which"];
/// Words whose point does not end a sentence.
const ABBREVIATIONS: &[&str] =
    &["e.g.", "i.e.", "etc.", "cf.", "vs.", "approx.", "fig.", "sec.", "no.", "al."];

/// A paragraph, an item of a list, or a cell of a table.
struct Block {
    line: usize,
    text: String,
    is_cell: bool,
}

/// A sentence, or a text without a full stop, such as a cell.
#[derive(Debug, PartialEq, Eq)]
struct Sentence {
    line: usize,
    text: String,
    words: usize,
    is_of_cell: bool,
}

/// Returns the blocks of a document: no code, headings, comments, or definitions of links.
fn blocks(document: &str) -> Vec<Block> {
    let plain = without_comments(&without_code(document));
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (at, line) in plain.lines().enumerate() {
        let line = line.trim_start_matches([' ', '>']).trim_end();
        if line.starts_with('|') {
            let cells = line.trim_matches('|').split('|').map(str::trim);
            let cells = cells.filter(|cell| cell.chars().any(char::is_alphanumeric));
            blocks.extend(cells.map(|cell| Block { line: at + 1, text: cell.to_owned(), is_cell: true }));
            is_open = false;
        } else if line.is_empty() || line.starts_with('#') || line.starts_with('[') && line.contains("]: ") {
            is_open = false;
        } else if let Some(item) = item(line) {
            blocks.push(Block { line: at + 1, text: item.to_owned(), is_cell: false });
            is_open = true;
        } else if is_open && let Some(block) = blocks.last_mut() {
            block.text.push(' ');
            block.text.push_str(line);
        } else {
            blocks.push(Block { line: at + 1, text: line.to_owned(), is_cell: false });
            is_open = true;
        }
    }
    blocks
}

/// Returns the text of a line that begins an item of a list.
fn item(line: &str) -> Option<&str> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest =
        if digits > 0 { line[digits..].strip_prefix('.')? } else { line.strip_prefix(['-', '*', '+'])? };
    rest.strip_prefix(' ').map(str::trim_start)
}

/// Removes comments of HTML. Their line ends stay, so line numbers stay correct.
fn without_comments(text: &str) -> String {
    let mut parts = text.split("<!--");
    let mut plain = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (comment, rest) = part.split_once("-->").unwrap_or((part, ""));
        plain.extend(comment.chars().filter(|c| *c == '\n'));
        plain.push_str(rest);
    }
    plain
}

/// Returns a text as a reader sees it: code as one word, links as their text, no images, no tags of HTML.
fn shown(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| if at % 2 == 1 { "code" } else { part });
    let mut rest = &*parts.collect::<String>();
    let mut shown = String::new();
    while let Some(at) = rest.find(['[', '<', '!']) {
        shown.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_image = rest.starts_with("![");
        let opening = if is_image { "![" } else { &rest[..1] };
        let after = &rest[opening.len()..];
        let closing = if opening == "<" { ">" } else { "](" };
        match after.split_once(closing).filter(|(inner, _)| !inner.contains('[')) {
            // A sign such as in `a < b`, or a text in brackets.
            _ if opening == "!"
                || opening == "<" && !after.starts_with(|c: char| c.is_alphabetic() || c == '/') =>
            {
                shown.push_str(opening);
                rest = after;
            }
            Some((inner, tail)) => {
                if opening == "[" {
                    shown.push_str(inner);
                }
                rest = if opening == "<" { tail } else { tail.split_once(')').map_or("", |(_, tail)| tail) };
            }
            None => {
                shown.push_str(opening);
                rest = after;
            }
        }
    }
    shown.push_str(rest);
    shown
}

/// Reports whether a word is the last one of a sentence.
fn ends_sentence(word: &str) -> bool {
    let bare = word.trim_end_matches([')', '"', '\'', '*', '_', ']', '\u{201d}']);
    let is_abbreviation = || {
        let bare = bare.trim_start_matches(['(', '"', '*', '_']).to_lowercase();
        ABBREVIATIONS.contains(&&*bare)
    };
    bare.ends_with(['.', '!', '?']) && !is_abbreviation()
}

/// Returns the sentences of a document.
fn sentences(document: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    for block in blocks(document) {
        let text = shown(&block.text);
        let mut words: Vec<&str> = Vec::new();
        let mut close = |words: &mut Vec<&str>| {
            let count = words.iter().filter(|word| word.chars().any(char::is_alphanumeric)).count();
            if count > 0 {
                let text = words.join(" ");
                found.push(Sentence { line: block.line, text, words: count, is_of_cell: block.is_cell });
            }
            words.clear();
        };
        for word in text.split_whitespace() {
            words.push(word);
            if ends_sentence(word) {
                close(&mut words);
            }
        }
        close(&mut words);
    }
    found
}

/// Returns the handwritten documents.
fn handwritten() -> Vec<(String, String)> {
    texts(".md").into_iter().filter(|(path, _)| !GENERATED.contains(&path.as_str())).collect()
}

/// Returns the number of words outside of code blocks.
fn words(text: &str) -> usize {
    let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
    without_code(text).split_whitespace().filter(is_word).count()
}

/// Returns the first line of each doc comment with its line number.
fn openings(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_open = false;
    for (at, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        match comment.map(str::trim) {
            Some("") => {}
            Some(text) if !is_open => {
                found.push((at + 1, text));
                is_open = true;
            }
            Some(_) => {}
            None => is_open = false,
        }
    }
    found
}

/// Returns the doc comments that begin with one of the banned words.
fn subjectless(path: &str, source: &str) -> Vec<String> {
    let is_banned = |text: &str| {
        let rests = OPENINGS.iter().filter_map(|opening| text.strip_prefix(opening));
        rests.into_iter().any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let banned = openings(source).into_iter().filter(|(_, text)| is_banned(text));
    banned.map(|(line, text)| format!("{path}:{line}: {text}")).collect()
}

#[test]
fn doc_comments_begin_with_a_subject_or_a_verb() {
    let sources =
        texts(".rs").into_iter().filter(|(path, _)| CODE.iter().any(|folder| path.starts_with(folder)));
    none(&sources.flat_map(|(path, source)| subjectless(&path, &source)).collect::<Vec<_>>());
}

#[test]
fn sentences_are_short() {
    let (mut all, mut long) = (0, Vec::new());
    for (path, document) in handwritten() {
        for Sentence { line, text, words, is_of_cell } in sentences(&document) {
            all += usize::from(!is_of_cell);
            if words > SENTENCE_WORDS_MAX {
                long.push(format!("{path}:{line}: {words} words: {text}"));
            }
        }
    }
    println!("{} of {all} sentences have more than {SENTENCE_WORDS_MAX} words", long.len());
    if long.len() * 100 >= all * LONG_SENTENCES_MAX {
        none(&long);
    }
}

#[test]
fn pages_are_short() {
    let is_limited =
        |path: &str| SHORT_PAGES.iter().any(|folder| path.starts_with(folder)) && !LONG_PAGES.contains(&path);
    let pages = handwritten().into_iter().map(|(path, text)| (path, words(&text)));
    let long = pages.filter(|(path, words)| is_limited(path) && *words > PAGE_WORDS_MAX);
    none(
        &long
            .map(|(path, words)| format!("{path}: {words} words, {PAGE_WORDS_MAX} at most"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn the_documentation_is_short() {
    let is_counted = |path: &str| {
        !["CHANGELOG.md", "docs/SUMMARY.md"].contains(&path)
            && (path.starts_with("docs/") || !path.contains('/'))
    };
    let all: usize =
        handwritten().iter().filter(|(path, _)| is_counted(path)).map(|(_, text)| words(text)).sum();
    println!("{all} words in handwritten documents");
    assert!(all <= DOCUMENTATION_WORDS_MAX, "documents have {all} words, {DOCUMENTATION_WORDS_MAX} at most");
}

#[test]
fn sentences_are_told_apart() {
    let document = "# Title. Of it\n\nOne `a. b` is, e.g. [a link. Text](x.md). Two is 1.5 <!-- c. -->\nlong, ![i](j) <br>(it \
                    ends.) A < b\n\n- three\n  more\n- Four.\n1. Five\n\n| a cell. More | b |\n|---|---|\n\n```\nno. code\n```\n\
                    [x]: y\n";
    let found = sentences(document);
    let texts: Vec<&str> = found.iter().map(|sentence| &*sentence.text).collect();
    let expected = [
        "One code is, e.g. a link.",
        "Text.",
        "Two is 1.5 long, (it ends.)",
        "A < b",
        "three more",
        "Four.",
        "Five",
        "a cell.",
        "More",
        "b",
    ];
    assert_eq!(texts, expected);
    assert_eq!((found[2].words, found[2].line, found[7].is_of_cell, found[3].words), (6, 3, true, 2));
}

#[test]
fn a_doc_comment_without_a_subject_is_noticed() {
    let source = "//! What it is.\n//! Of more.\n\n/// Of a.\nfn a() {}\n/// Often.\n/// Such as it is.\nfn b() {}\n    /// By which it ends.\n";
    let problems = subjectless("a.rs", source);
    assert_eq!(problems, ["a.rs:1: What it is.", "a.rs:4: Of a.", "a.rs:9: By which it ends."]);
}
