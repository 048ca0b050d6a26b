//! Other paths towards nodes than the client asks for.

use super::answer::is_of_uri;
use super::error::EditError;
use std::borrow::Cow;

/// A prefix of the path is replaced by another one. Whole segments are compared: `/api` is a prefix of `/api` and `/api/x`, not
/// of `/apix`. Paths that do not begin so, and the query, stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRewrite {
    /// Without a slash at its end.
    prefix: Box<str>,
    to: Box<str>,
    /// What counts as the same target is read from the rewritten path. Else from what the client sent.
    pub decides: bool,
}

impl PathRewrite {
    /// Replaces `prefix` by `to`; an empty `to` takes it away, and the prefix `/` puts `to` before every path.
    ///
    /// # Errors
    /// One of them is no path, or nothing would change.
    pub fn new(prefix: &str, to: &str, decides: bool) -> Result<Self, EditError> {
        for (what, text) in [("prefix", prefix), ("to", to)] {
            let path = text.starts_with('/') || what == "to" && text.is_empty();
            if !path || text.bytes().any(|byte| !is_of_uri(byte) || b"?#".contains(&byte)) {
                let right = "it begins with '/', and holds no '?', '#' or space: write '%20' for a space";
                return Err(EditError::new(format!("{what} = '{}' is no path", text.escape_debug()), right));
            }
        }
        let (prefix, to) = (prefix.trim_end_matches('/'), to.trim_end_matches('/'));
        if prefix == to {
            return Err(EditError::new("changes nothing", "write another path in 'to'"));
        }
        Ok(Self { prefix: prefix.into(), to: to.into(), decides })
    }

    /// The path that nodes are asked for.
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
    fn what_is_no_path_is_refused() {
        for (prefix, to) in
            [("", "/a"), ("api", ""), ("/a?b", ""), ("/a b", ""), ("/a", "b"), ("/a", "/a/"), ("/", "")]
        {
            assert!(PathRewrite::new(prefix, to, false).is_err(), "{prefix} {to}");
        }
    }
}
