//! Tokens of Rust source: words and marks, and string literals on request. Comments are passed over.

/// A word, a mark or a string literal. `::` is one mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    /// Line, from 1.
    pub(crate) line: usize,
}

/// Returns all words and marks of a source text.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = tokens_and_strings(source);
    found.retain(|token| token.text.len() == 1 || !token.text.starts_with('"'));
    found
}

/// Returns all words, marks and plain string literals of a source text.
pub(crate) fn tokens_and_strings(source: &str) -> Vec<Token<'_>> {
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < source.len() {
        let end = at + length(&source[at..]);
        let text = &source[at..end];
        let is_mark = text == "::" || text.len() == 1 && text.as_bytes()[0].is_ascii_punctuation();
        let is_word = text.starts_with(is_of_word) && !text.ends_with(['"', '\'', '#']);
        if is_mark || is_word || text.starts_with('"') {
            found.push(Token { text, line });
        }
        line += text.bytes().filter(|byte| *byte == b'\n').count();
        at = end;
    }
    found
}

/// Returns the length of the first token, comment, literal or white space of a text that is not empty. Bytes.
fn length(text: &str) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(text.len());
    if text.starts_with("//") {
        return to(text.find('\n'));
    }
    if text.starts_with("/*") {
        return comment(text);
    }
    if text.starts_with("::") {
        return 2;
    }
    if text.starts_with('"') {
        return quoted(text, 0, '"');
    }
    if let Some(rest) = text.strip_prefix('\'') {
        // A lifetime has no closing mark after its first letter.
        let mut letters = rest.chars();
        let is_literal = letters.next() == Some('\\') || letters.next() == Some('\'');
        return if is_literal { quoted(text, 0, '\'') } else { 1 + word(rest) };
    }
    let word = word(text);
    let (prefix, rest) = text.split_at(word);
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    match prefix {
        "r" | "br" | "cr" if rest[hashes..].starts_with('"') => {
            let end = format!("\"{}", "#".repeat(hashes));
            let from = word + hashes + 1;
            to(text[from..].find(&end).map(|at| from + at + end.len()))
        }
        "b" | "c" if rest.starts_with('"') => quoted(text, word, '"'),
        "b" if rest.starts_with('\'') => quoted(text, word, '\''),
        "" => text.chars().next().map_or(1, char::len_utf8),
        _ => word,
    }
}

/// Returns the length up to the end of a literal whose opening mark is at `open`. Bytes.
fn quoted(text: &str, open: usize, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip_while(|(at, _)| *at <= open) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            letter if letter == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a comment, which may be nested. Bytes.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(step) = text[at..].find("/*").into_iter().chain(text[at..].find("*/")).min() {
        depth += if text[at + step..].starts_with("/*") { 1 } else { -1 };
        at += step + 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the length of the first word of a text. Bytes.
fn word(text: &str) -> usize {
    text.find(|letter| !is_of_word(letter)).unwrap_or(text.len())
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[test]
fn comments_and_literals_are_passed_over() {
    let source = r####"a::b /* c /* d */ e */ // f
        "g \" h" r#"i " j"# b'\'' '"' 'k' &'l m r"n" b"o" '\u{1F600}' "p
        " q1"####;
    let found: Vec<(&str, usize)> =
        tokens(source).into_iter().map(|token| (token.text, token.line)).collect();
    assert_eq!(found, [("a", 1), ("::", 1), ("b", 1), ("&", 2), ("m", 2), ("q1", 3)]);
    let strings = tokens_and_strings(source).into_iter().filter(|token| token.text.starts_with('"'));
    assert_eq!(strings.map(|token| token.line).collect::<Vec<_>>(), [2, 2]);
}
