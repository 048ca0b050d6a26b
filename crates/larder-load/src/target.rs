//! Conversion of names from logs and traces into request targets.

use std::borrow::Cow;

/// Converts a name from a log into a request target: in origin form, with all bytes escaped that a URL may not contain.
///
/// Existing escapes are kept. The result depends on the name only, so the server of a trace can compute its targets with
/// this function too.
pub fn request_target(name: &str) -> Cow<'_, str> {
    if name.starts_with('/') && name.bytes().all(allowed) {
        return Cow::Borrowed(name);
    }
    let mut target = String::with_capacity(name.len() + 8);
    if !name.starts_with('/') {
        target.push('/');
    }
    for byte in name.bytes() {
        if allowed(byte) {
            target.push(char::from(byte));
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            target.push('%');
            target.push(char::from(HEX[usize::from(byte >> 4)]));
            target.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    Cow::Owned(target)
}

/// Whether RFC 3986 allows a byte unescaped in a path or query.
fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_forbidden_bytes_are_escaped() {
        for (name, sent) in [
            ("/a/b.html?q=1&r=%20", "/a/b.html?q=1&r=%20"),
            ("/a b\"#c", "/a%20b%22%23c"),
            ("/ü", "/%C3%BC"),
            ("http://h/x", "/http://h/x"),
            ("", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(request_target(name), sent);
        }
    }

    proptest! {
        #[test]
        fn any_name_gives_a_target_that_is_its_own_target(name in any::<String>()) {
            let sent = request_target(&name).into_owned();
            prop_assert!(sent.starts_with('/'));
            prop_assert!(sent.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
            prop_assert_eq!(request_target(&sent), sent.as_str());
        }
    }
}
