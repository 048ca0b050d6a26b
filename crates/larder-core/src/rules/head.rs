//! The head of a request, as rules see it.

use super::{CAPTURE_BYTES_MAX, ITEMS_MAX};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The fields of a request.
pub trait Headers {
    /// Returns the value of the field with this lower-case name, as sent, without surrounding whitespace. If there
    /// are several such fields, returns the first one.
    fn get(&self, name: &str) -> Option<&[u8]>;
}

/// A request without fields.
impl Headers for () {
    fn get(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

/// A list of names, in any case, and values.
impl<N: AsRef<str>, V: AsRef<[u8]>> Headers for Vec<(N, V)> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(known, _)| known.as_ref().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_ref())
    }
}

/// The head of a request. It may contain any bytes; bytes that a request cannot contain match nothing.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The method, as sent.
    pub method: &'a [u8],
    /// The host with its port, if one was sent; in any case.
    pub host: &'a [u8],
    /// The path: the request target up to its first `?`.
    pub path: &'a [u8],
    /// The part after that `?`; `None` if there is no `?`. `Some` of an empty query and `None` are different
    /// targets.
    pub query: Option<&'a [u8]>,
    /// The fields.
    pub headers: &'a dyn Headers,
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes);
        f.debug_struct("Head")
            .field("method", &text(self.method))
            .field("host", &text(self.host))
            .field("path", &text(self.path))
            .field("query", &self.query.map(text))
            .finish_non_exhaustive()
    }
}

impl<'a> Head<'a> {
    /// Creates the head of a GET request without fields. Host, path and query are as in the request line.
    pub fn get(host: &'a [u8], path_and_query: &'a [u8]) -> Self {
        Self::new(b"GET", host, path_and_query, &())
    }

    /// Creates a head from a path and query that are not separated yet.
    pub fn new(method: &'a [u8], host: &'a [u8], path_and_query: &'a [u8], headers: &'a dyn Headers) -> Self {
        let cut = path_and_query.iter().position(|&byte| byte == b'?');
        let (path, query) = match cut {
            Some(at) => (&path_and_query[..at], Some(&path_and_query[at + 1..])),
            None => (path_and_query, None),
        };
        Self { method, host, path, query, headers }
    }

    /// Returns the host without its port. The colons of an IPv6 address are in brackets (RFC 3986 section 3.2.2).
    pub fn host_name(&self) -> &'a [u8] {
        split_port(self.host).0
    }

    /// Returns the part after the last dot of the path's last segment, up to a `;`. `None` if the only dot is at the
    /// segment's beginning, or nothing follows the dot.
    pub fn extension(&self) -> Option<&'a [u8]> {
        let start = self.path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let segment = &self.path[start..];
        let end = segment.iter().position(|&byte| byte == b';').unwrap_or(segment.len());
        let segment = &segment[..end];
        let dot = segment.iter().rposition(|&byte| byte == b'.')?;
        let extension = &segment[dot + 1..];
        (dot > 0 && !extension.is_empty()).then_some(extension)
    }

    /// Returns the segments `from` to `to` (both included, from 1) of the path, each with the `/` before it, so that
    /// all segments together are the path. `to` of `None` is the end. Empty if there are not enough segments.
    pub fn segments(&self, from: u16, to: Option<u16>) -> &'a [u8] {
        // Segment k + 1 begins at the k-th slash after the first byte.
        let slash = |nth: usize| -> Option<usize> {
            let slashes = self.path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
            slashes.map(|(at, _)| at).nth(nth)
        };
        let start = match from {
            0 | 1 => Some(0),
            from => slash(usize::from(from) - 2),
        };
        let Some(start) = start else { return b"" };
        let end = to.and_then(|to| slash(usize::from(to).saturating_sub(1))).unwrap_or(self.path.len());
        self.path.get(start..end).unwrap_or(b"")
    }

    /// Returns the items of the query, between the `&`, at most the first [`ITEMS_MAX`]. There is no item if there
    /// is no query, or an empty one.
    pub fn query_items(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let items = self.query.filter(|query| !query.is_empty());
        items.into_iter().flat_map(|query| query.split(|&byte| byte == b'&')).take(ITEMS_MAX)
    }

    /// Returns the value of a field, at most its first [`CAPTURE_BYTES_MAX`] bytes.
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.get(name).map(captured)
    }

    /// Returns the value of a cookie (RFC 6265 section 4.2.1; quotes are part of it), at most its first
    /// [`CAPTURE_BYTES_MAX`] bytes. If several cookies have the name, returns the first one in the first `Cookie`
    /// field.
    pub fn cookie(&self, name: &[u8]) -> Option<&'a [u8]> {
        let pairs = self.headers.get("cookie")?.split(|&byte| byte == b';').take(ITEMS_MAX);
        let mut named = pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="));
        named.next().map(captured)
    }
}

/// Splits a host into its name and its port, if it has one.
pub(super) fn split_port(host: &[u8]) -> (&[u8], Option<&[u8]>) {
    match host.iter().rposition(|&byte| byte == b':' || byte == b']') {
        Some(at) if host[at] == b':' => (&host[..at], Some(&host[at + 1..])),
        _ => (host, None),
    }
}

fn captured(value: &[u8]) -> &[u8] {
    &value[..value.len().min(CAPTURE_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> &str {
        core::str::from_utf8(bytes).expect("text")
    }

    #[test]
    fn target_is_split_at_its_first_question_mark() {
        let head = |target: &'static str| Head::get(b"h", target.as_bytes());
        assert_eq!((head("/a?b?c").path, head("/a?b?c").query), (&b"/a"[..], Some(&b"b?c"[..])));
        assert_eq!((head("/a").query, head("/a?").query), (None, Some(&b""[..])));
    }

    #[test]
    fn host_is_separated_from_its_port() {
        for (host, name) in [
            ("a.example", "a.example"),
            ("a.example:80", "a.example"),
            ("a.example:", "a.example"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(text(Head::get(host.as_bytes(), b"/").host_name()), name);
        }
    }

    #[test]
    fn extension_is_that_of_the_last_segment() {
        for (path, extension) in [
            ("/a.PHP", Some("PHP")),
            ("/a.tar.gz", Some("gz")),
            ("/a.jsp;jsessionid=1.2", Some("jsp")),
            ("/a.b/c", None),
            ("/.profile", None),
            ("/a.", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(Head::get(b"", path.as_bytes()).extension().map(text), extension, "{path}");
        }
    }

    #[test]
    fn segments_are_counted_from_one() {
        let head = Head::get(b"", b"/a/bc/d?x/y");
        for (from, to, expected) in [
            (1, Some(1), "/a"),
            (1, Some(2), "/a/bc"),
            (2, Some(3), "/bc/d"),
            (2, None, "/bc/d"),
            (3, Some(9), "/d"),
            (4, None, ""),
            (1, None, "/a/bc/d"),
        ] {
            assert_eq!(text(head.segments(from, to)), expected, "{from}..{to:?}");
        }
        // A directory and its index have the same key at the directory's depth.
        assert_eq!(Head::get(b"", b"/a/").segments(1, Some(1)), b"/a");
        assert_eq!(Head::get(b"", b"/a/").segments(1, Some(2)), b"/a/");
    }

    #[test]
    fn cookie_is_found_by_its_complete_name() {
        let headers = vec![("Cookie", "asid=0; sid=abc; sid=d;  user=\"x\"")];
        let head = Head::new(b"GET", b"h", b"/", &headers);
        assert_eq!(head.cookie(b"sid").map(text), Some("abc"));
        assert_eq!(head.cookie(b"user").map(text), Some("\"x\""));
        assert_eq!(head.cookie(b"si"), None);
        assert_eq!(Head::get(b"h", b"/").cookie(b"sid"), None);
    }

    #[test]
    fn captured_field_bytes_are_limited() {
        let headers = vec![("a", vec![b'x'; CAPTURE_BYTES_MAX + 1])];
        let head = Head::new(b"GET", b"h", b"/", &headers);
        assert_eq!(head.field("a").map(<[u8]>::len), Some(CAPTURE_BYTES_MAX));
        let query = "&".repeat(2 * ITEMS_MAX);
        let head = Head { query: Some(query.as_bytes()), ..head };
        assert_eq!(head.query_items().count(), ITEMS_MAX);
    }

    proptest! {
        /// All segments together are the path, and a range of them agrees with splitting by hand.
        #[test]
        fn segments_make_up_the_path(path in "[a/]{0,12}", from in 1..6_u16, more in 0..6_u16) {
            let mut naive: Vec<String> = Vec::new();
            for (at, c) in path.char_indices() {
                if naive.is_empty() || at > 0 && c == '/' {
                    naive.push(String::new());
                }
                if let Some(last) = naive.last_mut() { last.push(c); }
            }
            let head = Head::get(b"", path.as_bytes());
            let to = from + more;
            let wanted = naive.iter().skip(usize::from(from) - 1).take(usize::from(more) + 1);
            prop_assert_eq!(text(head.segments(from, Some(to))), wanted.cloned().collect::<String>());
            let rest = naive.iter().skip(usize::from(from) - 1);
            prop_assert_eq!(text(head.segments(from, None)), rest.cloned().collect::<String>());
        }
    }
}
