//! Path patterns: a pattern with stars, or a regular expression.

use super::error::{RuleError, RuleTextKind, TextFault, check_length, text_error};
use super::glob::Glob;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::ToString;
use regex::bytes::{Regex, RegexBuilder};

/// The largest size of a compiled expression, in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// A path pattern.
#[derive(Clone, Debug)]
pub(super) enum PathPattern {
    /// A pattern for the whole path.
    Glob(Glob),
    /// An expression that must be found in the path. The text is the expression with the `~` before it.
    Regex { text: Box<str>, expression: Regex },
}

impl PathPattern {
    /// Parses a pattern: a regular expression if it begins with `~`, else a pattern with stars.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        check_length(RuleTextKind::Path, text)?;
        if let Some(expression) = text.strip_prefix('~') {
            return Self::regex(text, expression);
        }
        super::error::check_sent(RuleTextKind::Path, text)?;
        if let Some(at) = text.find('?') {
            return Err(text_error(RuleTextKind::Path, text, at, TextFault::PathQuery));
        }
        if !text.starts_with(['/', '*']) {
            let shortened = super::error::shortened(text);
            return Err(text_error(RuleTextKind::Path, text, 0, TextFault::PathStart(shortened)));
        }
        Ok(Self::Glob(Glob::new(text)))
    }

    fn regex(text: &str, expression: &str) -> Result<Self, RuleError> {
        let expression = expression.trim_start();
        if let Some(rest) = expression.strip_prefix('*') {
            return Err(text_error(
                RuleTextKind::Path,
                text,
                1,
                TextFault::RegexCase(super::error::shortened(rest.trim_start())),
            ));
        }
        // A path is bytes, which need not be UTF-8.
        let built = RegexBuilder::new(expression).unicode(false).size_limit(COMPILED_BYTES_MAX).build();
        let wrong = |error: regex::Error| {
            // The last line contains the reason; the lines before it show the expression.
            let said = error.to_string();
            let reason = said.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            text_error(RuleTextKind::Path, text, 1, TextFault::Regex(reason))
        };
        Ok(Self::Regex { text: text.into(), expression: built.map_err(wrong)? })
    }

    /// Returns whether the pattern matches a path. Time is linear in the path for both kinds.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Glob(glob) => glob.matches(path),
            Self::Regex { expression, .. } => expression.is_match(path),
        }
    }

    /// Returns the pattern as written.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Glob(glob) => glob.as_str(),
            Self::Regex { text, .. } => text,
        }
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for PathPattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_matches_anywhere_unless_anchored() {
        for (pattern, path, found) in [
            ("~^/api/v[0-9]+/", "/api/v12/a", true),
            ("~^/api/v[0-9]+/", "/x/api/v12/a", false),
            ("~ \\.(png|jpe?g)$", "/a/b.jpeg", true),
            ("~\\.(png|jpe?g)$", "/a/b.jpeg.txt", false),
            ("~(?i)\\.PHP$", "/index.php", true),
            ("~\\.PHP$", "/index.php", false),
            ("~^/[^/]+$", "/\u{e9}", true),
            ("/a*", "/ab", true),
            ("/a", "/ab", false),
        ] {
            let read = PathPattern::parse(pattern).expect(pattern);
            assert_eq!(read.matches(path.as_bytes()), found, "{pattern} {path}");
            assert_eq!(read.as_str(), pattern);
        }
        assert!(PathPattern::parse("~^/.$").expect("an expression").matches(b"/\xff"));
    }

    #[test]
    fn unusable_expression_is_explained() {
        for (pattern, says) in [
            ("~^/(a", "unclosed group"),
            ("~[z-a]", "invalid character class range"),
            ("~*\\.php$", "write '~(?i)\\.php$'"),
            ("~(a{1000}){1000}", "size limit"),
            ("~a(?=b)", "look-around"),
        ] {
            let error = PathPattern::parse(pattern).expect_err(pattern).to_string();
            assert!(error.contains(says), "{error}");
        }
        let long = format!("~{}", "a".repeat(2_000));
        assert!(PathPattern::parse(&long).expect_err("too long").to_string().contains("1024"));
    }
}
