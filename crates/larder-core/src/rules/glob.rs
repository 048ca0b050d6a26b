//! Patterns with `*`.
//!
//! `*` stands for any run of bytes, also an empty one, also one with `/` in it; every other byte stands for itself. A
//! pattern is cut at its stars into pieces. The first piece must begin the text and the last must end it; those
//! between are looked for one after the other, each at the first place where it occurs, which is never worse than a
//! later one, since it leaves more text to the rest. So nothing is ever tried twice. A piece is looked for by the
//! method of Knuth, Morris and Pratt (SIAM J. Computing 6, 1977), which never goes back in the text: matching takes
//! at most two comparisons per byte of text, whatever the pattern and whatever the text.

/// A pattern. Its length is limited by who makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    first: Box<[u8]>,
    /// `None` if there is no star: `first` is then the whole.
    rest: Option<Rest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest {
    between: Box<[Piece]>,
    last: Box<[u8]>,
}

/// A piece between two stars; not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    bytes: Box<[u8]>,
    /// For each byte: how long the longest prefix of the piece is that ends there and is not the piece up to there.
    borders: Box<[usize]>,
}

impl Glob {
    /// The pattern as written.
    pub fn new(pattern: &str) -> Self {
        let mut pieces = pattern.split('*');
        let first = pieces.next().unwrap_or_default().as_bytes().into();
        let mut pieces: Vec<&str> = pieces.collect();
        let rest = pieces.pop().map(|last| Rest {
            between: pieces.into_iter().filter(|piece| !piece.is_empty()).map(Piece::new).collect(),
            last: last.as_bytes().into(),
        });
        Self { text: pattern.into(), first, rest }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `text` is one that the pattern stands for. O(text).
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

impl Piece {
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

    /// Where the first occurrence in `text` ends.
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
    fn a_star_is_any_run() {
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

    /// Patterns on which backtracking takes exponential or quadratic time end at once.
    #[test]
    fn no_pattern_is_slow() {
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
        fn it_agrees_with_trying_everything(pattern in "[ab*]{0,7}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&pattern).matches(text.as_bytes()), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
