//! Targets from logs and traces, made fit for a request line.

use std::borrow::Cow;

/// A name from a log as it can be sent: in origin form, with every byte escaped that a URL may not hold.
///
/// Escapes that are there already are kept. The same name always gives the same target, so that whoever serves a
/// trace can list its targets with this function too.
pub fn wire(name: &str) -> Cow<'_, str> {
    if name.starts_with('/') && name.bytes().all(allowed) {
        return Cow::Borrowed(name);
    }
    let mut sent = String::with_capacity(name.len() + 8);
    if !name.starts_with('/') {
        sent.push('/');
    }
    for byte in name.bytes() {
        if allowed(byte) {
            sent.push(char::from(byte));
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            sent.push('%');
            sent.push(char::from(HEX[usize::from(byte >> 4)]));
            sent.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    Cow::Owned(sent)
}

/// Whether RFC 3986 lets a byte stand in a path or query as it is.
fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_must_be_escaped_is() {
        for (name, sent) in [
            ("/a/b.html?q=1&r=%20", "/a/b.html?q=1&r=%20"),
            ("/a b\"#c", "/a%20b%22%23c"),
            ("/ü", "/%C3%BC"),
            ("http://h/x", "/http://h/x"),
            ("", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(wire(name), sent);
        }
    }

    proptest! {
        #[test]
        fn any_name_becomes_a_target_and_stays_one(name in any::<String>()) {
            let sent = wire(&name).into_owned();
            prop_assert!(sent.starts_with('/'));
            prop_assert!(sent.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
            prop_assert_eq!(wire(&sent), sent.as_str());
        }
    }
}
