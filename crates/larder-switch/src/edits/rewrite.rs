//! Rewriting of request paths for nodes.

use super::direct_reply::is_uri_byte;
use super::error::EditError;
use std::borrow::Cow;

/// Replacement of a path prefix. Whole segments are compared: `/api` is a prefix of `/api` and `/api/x`, but not of
/// `/apix`. Other paths and the query are not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRewrite {
    /// Prefix without a trailing slash.
    prefix: Box<str>,
    to: Box<str>,
    /// Whether the target key is made of the rewritten path. Otherwise it is made of the client's path.
    pub decides: bool,
}

impl PathRewrite {
    /// Creates a replacement of `prefix` by `to`. An empty `to` removes the prefix, and the prefix `/` adds `to`
    /// before every path.
    ///
    /// # Errors
    /// One of them is not a path, or nothing would change.
    pub fn new(prefix: &str, to: &str, decides: bool) -> Result<Self, EditError> {
        for (what, text) in [("prefix", prefix), ("to", to)] {
            let path = text.starts_with('/') || what == "to" && text.is_empty();
            if !path || text.bytes().any(|byte| !is_uri_byte(byte) || b"?#".contains(&byte)) {
                let right = "it begins with '/', and holds no '?', '#' or space: write '%20' for a space";
                return Err(
                    EditError::new(format!("'{}' is not a path", text.escape_debug()), right).at(what)
                );
            }
        }
        let (prefix, to) = (prefix.trim_end_matches('/'), to.trim_end_matches('/'));
        if prefix == to {
            return Err(EditError::new("changes nothing", "write another path in 'to'").at("to"));
        }
        Ok(Self { prefix: prefix.into(), to: to.into(), decides })
    }

    /// Returns the path for nodes.
    pub(crate) fn apply<'p>(&self, path: &'p [u8]) -> Cow<'p, [u8]> {
        let rest = match path.strip_prefix(self.prefix.as_bytes()) {
            Some(rest) if rest.is_empty() || rest[0] == b'/' => rest,
            _ => return Cow::Borrowed(path),
        };
        match (self.to.is_empty(), rest.is_empty()) {
            (true, true) => Cow::Borrowed(b"/"),
            (true, false) => Cow::Borrowed(rest),
            (false, _) => Cow::Owned([self.to.as_bytes(), rest].concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_segments_are_replaced() {
        for (prefix, to, path, expected) in [
            ("/api", "", "/api/v1/x", "/v1/x"),
            ("/api/", "/", "/api/v1/x", "/v1/x"),
            ("/api", "", "/api", "/"),
            ("/api", "", "/api/", "/"),
            ("/api", "", "/apix", "/apix"),
            ("/api", "/v2", "/api", "/v2"),
            ("/api", "/v2/", "/api/x", "/v2/x"),
            ("/", "/v2", "/x", "/v2/x"),
            ("/", "/v2", "/", "/v2/"),
            ("/api", "", "*", "*"),
            ("/", "/v2", "*", "*"),
            ("/api", "", "/api//x", "//x"),
        ] {
            let rewrite = PathRewrite::new(prefix, to, false).expect("a rewrite");
            assert_eq!(&*rewrite.apply(path.as_bytes()), expected.as_bytes(), "{prefix} {to} {path}");
        }
    }

    #[test]
    fn invalid_paths_are_refused() {
        for (prefix, to) in
            [("", "/a"), ("api", ""), ("/a?b", ""), ("/a b", ""), ("/a", "b"), ("/a", "/a/"), ("/", "")]
        {
            assert!(PathRewrite::new(prefix, to, false).is_err(), "{prefix} {to}");
        }
    }
}
