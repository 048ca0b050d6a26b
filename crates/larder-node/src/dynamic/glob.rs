//! Patterns for request targets.
//!
//! `*` stands for any run of bytes, also an empty one and one with slashes; every other byte for itself. A pattern
//! without `?` is held against the path, one with `?` against path and query.

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    text: Box<[u8]>,
    query: bool,
}

impl Glob {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.as_bytes().into(), query: text.contains('?') }
    }

    /// Whether a request target fits. Takes time in proportion to the product of both lengths at worst.
    pub(crate) fn fits(&self, path: &str, target: &str) -> bool {
        fits(&self.text, if self.query { target } else { path }.as_bytes())
    }
}

/// The last `*` takes one byte more whenever what follows it does not fit: earlier ones never need to be taken up
/// again.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_fit_whole_targets() {
        for (pattern, path, query, fit) in [
            ("/cgi-bin/*", "/cgi-bin/a/b", "", true),
            ("/cgi-bin/*", "/cgi-bin", "", false),
            ("/cgi-bin/*", "/x/cgi-bin/", "", false),
            ("*.asp", "/a/b.asp", "x=1", true),
            ("*.asp", "/a/b.aspx", "", false),
            ("/*.nsf/*?OpenView*", "/a.nsf/v", "OpenView&Start=2", true),
            ("/*.nsf/*?OpenView*", "/a.nsf/v", "OpenDocument", false),
            ("/*.nsf/*?OpenView*", "/a.nsf/v", "", false),
            ("*", "/", "", true),
            ("/a", "/a", "q", true),
            ("", "/", "", false),
        ] {
            let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
            assert_eq!(Glob::new(pattern).fits(path, &target), fit, "{pattern} {target}");
        }
    }

    /// The definition: a star takes some run of the text.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|n| slow(rest, &text[n..])),
            Some((byte, rest)) => text.first() == Some(byte) && slow(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn it_is_what_the_definition_says(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
