//! Patterns with `*`.
//!
//! `*` matches any run of bytes, including an empty one and one with `/` in it; every other byte matches itself. A
//! pattern is split at its stars into pieces. The first piece must begin the text and the last must end it. The
//! pieces between are searched one after the other, each at its first occurrence. A later occurrence is never
//! better, because it leaves less text for the rest, so nothing is tried twice.
//!
//! A piece is searched by the method of Knuth, Morris and Pratt (SIAM J. Computing 6, 1977), which never goes back
//! in the text. Matching takes at most two comparisons per byte of text, for every pattern and every text.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A pattern. The caller limits its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    first: Box<[u8]>,
    /// The pieces after the first star; `None` if there is no star, so that `first` is the whole pattern.
    rest: Option<GlobTail>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct GlobTail {
    between: Box<[GlobPiece]>,
    last: Box<[u8]>,
}

/// A piece between two stars; not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GlobPiece {
    bytes: Box<[u8]>,
    /// For each byte, the length of the longest proper prefix of the piece that ends there.
    borders: Box<[usize]>,
}

impl Glob {
    /// Parses a pattern.
    pub fn new(pattern: &str) -> Self {
        let mut pieces = pattern.split('*');
        let first = pieces.next().unwrap_or_default().as_bytes().into();
        let mut pieces: Vec<&str> = pieces.collect();
        let rest = pieces.pop().map(|last| GlobTail {
            between: pieces.into_iter().filter(|piece| !piece.is_empty()).map(GlobPiece::new).collect(),
            last: last.as_bytes().into(),
        });
        Self { text: pattern.into(), first, rest }
    }

    /// Returns the pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern matches the whole of `text`. O(text).
    pub fn matches(&self, text: &[u8]) -> bool {
        let Some(rest) = &self.rest else { return *text == *self.first };
        let Some(mut text) = text.strip_prefix(&*self.first).and_then(|text| text.strip_suffix(&*rest.last))
        else {
            return false;
        };
        for piece in &rest.between {
            match piece.end_in(text) {
                Some(end) => text = &text[end..],
                None => return false,
            }
        }
        true
    }
}

impl GlobPiece {
    fn new(piece: &str) -> Self {
        let bytes: Box<[u8]> = piece.as_bytes().into();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[at] == bytes[border]);
            borders[at] = border;
        }
        Self { bytes, borders: borders.into() }
    }

    /// Returns the end of the first occurrence in `text`.
    fn end_in(&self, text: &[u8]) -> Option<usize> {
        let mut matched = 0;
        for (at, byte) in text.iter().enumerate() {
            while matched > 0 && *byte != self.bytes[matched] {
                matched = self.borders[matched - 1];
            }
            matched += usize::from(*byte == self.bytes[matched]);
            if matched == self.bytes.len() {
                return Some(at + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn star_matches_any_run() {
        for (pattern, text, expected) in [
            ("/a", "/a", true),
            ("/a", "/ab", false),
            ("*", "", true),
            ("/cgi-bin/*", "/cgi-bin/", true),
            ("/cgi-bin/*", "/cgi-bin", false),
            ("*.php", "/a/b.php", true),
            ("*/db/*.asp*", "/x/db/y/z.aspx", true),
            ("a*a", "a", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "abb", false),
            ("**a**", "bab", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    /// Patterns on which backtracking takes exponential or quadratic time finish quickly.
    #[test]
    fn every_pattern_matches_in_linear_time() {
        let text = vec![b'a'; 1 << 20];
        let exponential = "*a".repeat(500) + "*b";
        let quadratic = format!("*{}b*", "a".repeat(1_000));
        assert!(!Glob::new(&exponential).matches(&text));
        assert!(!Glob::new(&quadratic).matches(&text));
        assert!(Glob::new(&"*a".repeat(500)).matches(&text));
    }

    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| naive(rest, &text[at..])),
            Some((byte, rest)) => text.first() == Some(byte) && naive(rest, &text[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn glob_agrees_with_backtracking(pattern in "[ab*]{0,7}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&pattern).matches(text.as_bytes()), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
