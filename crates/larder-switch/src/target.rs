//! Target keys of requests: the host in lower case, then path and query as they were sent.
//!
//! Hosts are compared without regard to case (RFC 9110 section 4.2.3), and the port is kept. Path and query are
//! compared byte for byte: two spellings of the same path are two targets, which costs only locality. A target in
//! absolute form (`GET http://host/path`, RFC 9112 section 3.2.2) equals its origin form.

use larder_core::TargetId;
use larder_core::rules::{Head, Headers};

/// Target key, in two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetKey<'a> {
    /// Host as sent.
    pub host: &'a [u8],
    /// Path, `?` and query.
    pub path: &'a [u8],
}

/// Length of the longest host that is lowered on the stack. No DNS name with a port is longer.
const HOST_ON_STACK: usize = 264;

impl TargetKey<'_> {
    /// Returns the id that the dispatcher uses for the target.
    pub fn id(&self) -> TargetId {
        if !self.host.iter().any(u8::is_ascii_uppercase) {
            return TargetId::of_parts(&[self.host, self.path]);
        }
        let mut buffer = [0; HOST_ON_STACK];
        match buffer.get_mut(..self.host.len()) {
            Some(lowered) => {
                lowered.copy_from_slice(self.host);
                lowered.make_ascii_lowercase();
                TargetId::of_parts(&[lowered, self.path])
            }
            None => TargetId::of_parts(&[&self.host.to_ascii_lowercase(), self.path]),
        }
    }
}

/// Returns the key of a request with this `Host` field (empty if there is none) and this request target as sent.
pub fn target_key<'a>(host_field: &'a [u8], request_target: &'a [u8]) -> TargetKey<'a> {
    if request_target.first() == Some(&b'/') {
        return TargetKey { host: host_field, path: request_target };
    }
    let Some(scheme_end) = find(request_target, b"://") else {
        return TargetKey { host: host_field, path: request_target };
    };
    let rest = &request_target[scheme_end + 3..];
    let path_start = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path_start);
    let host = authority.iter().rposition(|&byte| byte == b'@').map_or(authority, |at| &authority[at + 1..]);
    TargetKey { host, path: if path.is_empty() { b"/" } else { path } }
}

/// Returns the request head that rules and key templates read. `host_field` is empty if there is none. Relay and
/// handoff both use it, so that they find the same route and target.
pub(crate) fn rule_head<'a>(
    method: &'a [u8],
    host_field: &'a [u8],
    request_target: &'a [u8],
    headers: &'a dyn Headers,
) -> Head<'a> {
    let key = target_key(host_field, request_target);
    Head::new(method, key.host, key.path, headers)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::rules::KeyTemplate;
    use proptest::prelude::*;

    fn id(host: &str, target: &str) -> TargetId {
        target_key(host.as_bytes(), target.as_bytes()).id()
    }

    #[test]
    fn the_key_is_host_path_and_query() {
        assert_eq!(id("example.org:8080", "/a?b=C"), TargetId::of(b"example.org:8080/a?b=C"));
        assert_eq!(id("", "/"), TargetId::of(b"/"));
        assert_eq!(id("h", "*"), TargetId::of(b"h*"));
    }

    #[test]
    fn case_counts_in_the_path_only() {
        assert_eq!(id("Example.ORG", "/a"), id("example.org", "/a"));
        assert_ne!(id("example.org", "/A"), id("example.org", "/a"));
        let long = "H".repeat(HOST_ON_STACK + 1);
        assert_eq!(id(&long, "/"), id(&long.to_lowercase(), "/"));
    }

    #[test]
    fn the_absolute_form_is_the_same_target() {
        assert_eq!(id("example.org", "http://EXAMPLE.org/a?b"), id("example.org", "/a?b"));
        assert_eq!(id("h", "http://h"), id("h", "/"));
        assert_eq!(id("h", "http://user@h/x"), id("h", "/x"));
        assert_eq!(id("h", "http://h?q"), TargetId::of(b"h?q"));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_key(host in prop::collection::vec(any::<u8>(), 0..400),
                                target in prop::collection::vec(any::<u8>(), 0..400)) {
            let key = target_key(&host, &target);
            let joined = [&key.host.to_ascii_lowercase(), key.path].concat();
            prop_assert_eq!(key.id(), TargetId::of(&joined));
            // The default template computes the same id.
            let rule_head = Head::new(b"GET", key.host, key.path, &());
            prop_assert_eq!(KeyTemplate::default().id(&rule_head), key.id());
        }
    }
}
