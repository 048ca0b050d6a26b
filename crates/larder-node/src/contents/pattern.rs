//! Patterns for request targets.
//!
//! `*` matches any run of bytes, including an empty run and slashes. Every other byte matches itself. A pattern
//! without `?` is compared with the path; a pattern with `?` is compared with path and query.

use larder_core::rules::Glob;

/// A pattern for request targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    glob: Glob,
    query: bool,
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        Self { glob: Glob::new(text), query: text.contains('?') }
    }

    /// Returns whether a request target matches. O(target).
    pub(crate) fn matches(&self, path: &str, target: &str) -> bool {
        self.glob.matches(if self.query { target } else { path }.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_targets() {
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
            assert_eq!(Pattern::new(pattern).matches(path, &target), fit, "{pattern} {target}");
        }
    }
}
