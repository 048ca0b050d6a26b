//! Resolves a request's path to a name below the root.
//!
//! A name is the path without its leading slash, percent-decoded, with repeated slashes merged. If the path
//! ends in a slash, `index.html` is appended. The name is the cache key too, so two spellings of a path share
//! one copy.
//!
//! Malformed paths are refused. They lack the leading slash, or have a `%` without two hex digits. Paths that
//! decode to NUL, to a slash inside a segment, or to the segment `.` or `..` are malformed too; a client
//! resolves those segments before it sends the request. Segments that begin with a dot are not found, because
//! such files are configuration and no contents. The only exception is a leading `.well-known` (RFC 8615).

use std::borrow::Cow;

/// The reason why a path names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// The path is malformed: 400.
    Malformed,
    /// The path is well-formed and never served: 404.
    Hidden,
}

pub(crate) const INDEX: &[u8] = b"index.html";

/// Resolves a path to a name.
pub(crate) fn resolve(path: &str) -> Result<Cow<'_, [u8]>, PathError> {
    let rest = path.strip_prefix('/').ok_or(PathError::Malformed)?.as_bytes();
    if is_plain(rest) {
        return Ok(Cow::Borrowed(rest));
    }
    let mut name = Vec::with_capacity(rest.len() + INDEX.len());
    for segment in rest.split(|&b| b == b'/').filter(|segment| !segment.is_empty()) {
        if !name.is_empty() {
            name.push(b'/');
        }
        let start = name.len();
        decode(segment, &mut name)?;
        check(&name[start..], start == 0)?;
    }
    if rest.is_empty() || rest.ends_with(b"/") {
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(INDEX);
    }
    Ok(Cow::Owned(name))
}

/// Returns the path with a slash at its end, as the redirect target for a directory. The result never begins
/// with two slashes, which a client would take for another host.
pub(crate) fn with_slash(path: &str) -> String {
    let mut location = String::with_capacity(path.len() + 2);
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        location.push('/');
        location.push_str(segment);
    }
    location.push('/');
    location
}

/// Returns whether the path is its own name, with nothing to decode, merge, append or refuse. Nearly all paths
/// are.
fn is_plain(rest: &[u8]) -> bool {
    let mut previous = b'/';
    for &byte in rest {
        if byte == b'%' || byte == 0 || (previous == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        previous = byte;
    }
    previous != b'/'
}

fn decode(segment: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let mut bytes = segment.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|&b| (b as char).to_digit(16)).ok_or(PathError::Malformed);
        let (high, low) = (digit()?, digit()?);
        out.push((high << 4 | low) as u8);
    }
    Ok(())
}

fn check(segment: &[u8], first: bool) -> Result<(), PathError> {
    if matches!(segment, b"." | b"..") || segment.iter().any(|&b| matches!(b, 0 | b'/')) {
        return Err(PathError::Malformed);
    }
    if segment.starts_with(b".") && !(first && segment == b".well-known") {
        return Err(PathError::Hidden);
    }
    Ok(())
}

/// Entry point for the fuzz target: a resolved name never leaves the root.
#[doc(hidden)]
pub fn fuzz_resolve(path: &str) {
    let location = with_slash(path);
    assert!(location.starts_with('/') && !location.starts_with("//") && location.ends_with('/'));
    let Ok(name) = resolve(path) else { return };
    assert!(!name.is_empty() && !name.contains(&0));
    for segment in name.split(|&b| b == b'/') {
        assert!(!segment.is_empty() && segment != b"." && segment != b"..");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_become_names() {
        for (path, name) in [
            ("/a/b.html", "a/b.html"),
            ("/", "index.html"),
            ("/a/", "a/index.html"),
            ("//a///b", "a/b"),
            ("/a%20b", "a b"),
            ("/%61", "a"),
            ("/caf%C3%A9", "café"),
            ("/a..b/c.", "a..b/c."),
            ("/.well-known/x", ".well-known/x"),
            ("/a%5C..%5Cb", "a\\..\\b"),
        ] {
            assert_eq!(resolve(path).as_deref(), Ok(name.as_bytes()), "{path}");
        }
    }

    #[test]
    fn path_traversal_is_refused() {
        for path in [
            "",
            "a",
            "*",
            "/..",
            "/../etc/passwd",
            "/a/../b",
            "/./a",
            "/%2e%2e/x",
            "/%2E./x",
            "/.%2e",
            "/a%2fb",
            "/..%2f",
            "/a%00",
            "/%",
            "/%4",
            "/%zz",
            "/%+1",
            "/a%",
        ] {
            assert_eq!(resolve(path), Err(PathError::Malformed), "{path}");
        }
        for path in ["/.git/config", "/a/.env", "/%2egit/x", "/a/.well-known/x", "/...", "//.x"] {
            assert_eq!(resolve(path), Err(PathError::Hidden), "{path}");
        }
    }

    #[test]
    fn a_redirect_stays_on_this_host() {
        assert_eq!(with_slash("/a/b"), "/a/b/");
        assert_eq!(with_slash("//evil.example/x"), "/evil.example/x/");
        assert_eq!(with_slash("/"), "/");
    }

    proptest! {
        #[test]
        fn no_name_leaves_the_root(path in "(/|[.]|%2[eEfF]|%00|a|%|[a-z%/.\\\\]){0,24}") {
            fuzz_resolve(&path);
            fuzz_resolve(&format!("/{path}"));
        }

        #[test]
        fn plain_and_encoded_paths_give_one_name(path in "[a-z]{1,5}(/[a-z]{1,5}){0,3}") {
            let encoded: String = path.bytes().map(|b| if b == b'/' { "/".to_owned() } else { format!("%{b:02X}") }).collect();
            let encoded = format!("/{encoded}");
            let name = resolve(&encoded).map(Cow::into_owned);
            prop_assert_eq!(name, Ok(path.into_bytes()));
        }
    }
}
