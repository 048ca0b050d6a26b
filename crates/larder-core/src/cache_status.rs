//! The `Cache-Status` field of a reply (RFC 9211): the caches that the reply has passed, and what each did.
//!
//! The field is a List of RFC 9651: `origin; fwd=uri-miss; stored, "node 2"; hit; ttl=9`. Each cache appends a member. So
//! the first member is the cache closest to the origin, and the last one is the cache closest to the client.
//!
//! Caches in use break the grammar, for example with a URL as the `key`. Reading therefore never fails: a member that
//! breaks the grammar is read as far as its delimiters allow, and [`CacheStatusMember::is_valid`] is false.

use crate::dispatch::CacheResult;

/// A member of the list: one cache, and what it did for the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatusMember<'a> {
    /// Name of the cache as in the field: a token, or a string with its quotes and escapes.
    pub name: &'a [u8],
    /// Whether the cache answered from its store.
    pub hit: bool,
    /// Reason for which the cache forwarded the request, if it did.
    pub fwd: Option<&'a [u8]>,
    /// Further information, as in the field.
    pub detail: Option<&'a [u8]>,
    /// Whether the member keeps the grammar of RFC 9651.
    pub is_valid: bool,
}

/// Returns the members of a field value in their order. An empty value has none.
pub fn members(value: &[u8]) -> impl Iterator<Item = CacheStatusMember<'_>> {
    Some(value).filter(|value| !value.trim_ascii().is_empty()).into_iter().flat_map(|value| {
        // Without an allocation, as this runs once for each reply.
        split_outside_quotes(value, b',').map(CacheStatusMember::read)
    })
}

impl<'a> CacheStatusMember<'a> {
    fn read(text: &'a [u8]) -> Self {
        let mut pieces = split_outside_quotes(text.trim_ascii(), b';');
        let name = pieces.next().unwrap_or_default();
        let is_valid = is_string(name) || is_token(name);
        let mut member = Self { name: name.trim_ascii(), hit: false, fwd: None, detail: None, is_valid };
        for piece in pieces {
            let spaces = piece.iter().take_while(|byte| **byte == b' ').count();
            let parameter = piece.trim_ascii();
            let (key, argument) = match parameter.iter().position(|byte| *byte == b'=') {
                Some(at) => (&parameter[..at], Some(&parameter[at + 1..])),
                None => (parameter, None),
            };
            member.is_valid &=
                spaces + parameter.len() == piece.len() && is_key(key) && argument.is_none_or(is_bare_item);
            // If a key occurs twice, the last one counts (RFC 9651 section 3.1.2).
            match key {
                b"hit" => member.hit = argument.is_none_or(|argument| argument == b"?1"),
                b"fwd" => member.fwd = argument,
                b"detail" => member.detail = argument,
                _ => {}
            }
        }
        member
    }

    /// Returns whether the cache had the target; `None` if the member does not contain this.
    pub fn found(&self) -> Option<CacheResult> {
        if self.hit { Some(CacheResult::Hit) } else { self.fwd.map(|_| CacheResult::Miss) }
    }

    /// Returns the bytes of the name without quotes and escapes.
    pub fn unquoted_name(&self) -> impl Iterator<Item = u8> + 'a {
        let inner = self.name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\""));
        let (is_string, mut escapes) = (inner.is_some(), false);
        inner.unwrap_or(self.name).iter().copied().filter(move |byte| {
            escapes = is_string && *byte == b'\\' && !escapes;
            !escapes
        })
    }
}

/// Splits at each `separator` that is not inside a quoted string.
pub fn split_outside_quotes(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value.split(move |&byte| {
        if escaped {
            escaped = false;
            return false;
        }
        match byte {
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
        !quoted && byte == separator
    })
}

fn is_key(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'*')
        && text
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte))
}

fn is_bare_item(text: &[u8]) -> bool {
    matches!(text, b"?0" | b"?1") || is_token(text) || is_string(text) || is_number(text) || is_bytes(text)
}

fn is_token(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'*')
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(byte))
}

fn is_string(text: &[u8]) -> bool {
    let Some(inner) = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")) else {
        return false;
    };
    let mut escaped = false;
    inner.iter().all(|byte| {
        let special = matches!(byte, b'"' | b'\\');
        let fits = if escaped { special } else { *byte != b'"' && matches!(byte, 0x20..=0x7e) };
        escaped = !escaped && *byte == b'\\';
        fits
    }) && !escaped
}

/// An integer of up to 15 digits, or a decimal with 12 digits before the point and 3 after it.
fn is_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut parts = digits.splitn(2, |byte| *byte == b'.');
    let (whole, fraction) = (parts.next().unwrap_or_default(), parts.next());
    let has = |part: &[u8], most| (1..=most).contains(&part.len()) && part.iter().all(u8::is_ascii_digit);
    fraction.map_or(has(whole, 15), |fraction| has(whole, 12) && has(fraction, 3))
}

fn is_bytes(text: &[u8]) -> bool {
    let inner = text.strip_prefix(b":").and_then(|text| text.strip_suffix(b":"));
    inner.is_some_and(|inner| inner.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn first(value: &str) -> Option<(String, bool, bool)> {
        let member = members(value.as_bytes()).next()?;
        let name = String::from_utf8(member.unquoted_name().collect()).expect("names are ASCII here");
        Some((name, member.hit, members(value.as_bytes()).all(|member| member.is_valid)))
    }

    #[test]
    fn the_first_member_is_closest_to_the_origin() {
        for (value, name, hit, count) in [
            ("node-1; hit", "node-1", true, 1),
            ("node-1;hit;ttl=-412", "node-1", true, 1),
            ("node-2; fwd=uri-miss; stored", "node-2", false, 1),
            ("node-2; hit=?0; fwd=stale; fwd-status=304", "node-2", false, 1),
            ("n; hit=?1", "n", true, 1),
            ("n; hit; hit=?0", "n", false, 1),
            ("n; hit=1", "n", false, 1),
            (r#""node 3; hit \"x\""; fwd=miss; detail="a, b; hit""#, r#"node 3; hit "x""#, false, 1),
            ("origin; hit , edge; fwd=miss;key=:aGk=:", "origin", true, 2),
            ("a; fwd=miss,b; hit;x=1.5", "a", false, 2),
            ("*w/eird:1", "*w/eird:1", false, 1),
        ] {
            assert_eq!(first(value), Some((name.into(), hit, true)), "{value}");
            assert_eq!(members(value.as_bytes()).count(), count, "{value}");
        }
        assert_eq!(first(""), None);
        assert_eq!(first(" "), None);
    }

    #[test]
    fn a_member_that_breaks_the_grammar_is_not_valid() {
        for value in [
            ",",
            "a,",
            "a,,b",
            "a; Hit",
            "a; hit=?2",
            "\"open",
            "\"bad\\n\"",
            "a; hit b",
            "a ; hit",
            "1x",
            "a; ttl=1.",
            "a;",
            "a; ttl=1.2345",
            "a; x=:zz",
            "a; detail=\"\u{7f}\"",
            "(a b)",
            "a; =1",
        ] {
            assert_eq!(first(value).map(|(.., is_valid)| is_valid), Some(false), "{value}");
        }
    }

    #[test]
    fn the_last_member_is_closest_to_the_client() {
        for (value, expected) in [
            ("n1; hit", Some(CacheResult::Hit)),
            ("n1;hit;ttl=30", Some(CacheResult::Hit)),
            ("n1; fwd=uri-miss; stored", Some(CacheResult::Miss)),
            ("origin; hit, n1; fwd=uri-miss", Some(CacheResult::Miss)),
            ("origin; fwd=miss, n1; hit", Some(CacheResult::Hit)),
            ("\"a; hit, b\"; fwd=stale", Some(CacheResult::Miss)),
            ("\"a\\\"; hit\"; fwd=miss", Some(CacheResult::Miss)),
            ("n1; hit=?0; fwd=miss", Some(CacheResult::Miss)),
            // Not valid, but parsed.
            ("10.0.0.1:80; hit", Some(CacheResult::Hit)),
            ("n1; fwd=miss; key=GET-/a?b=c", Some(CacheResult::Miss)),
            ("n1", None),
            ("", None),
            ("hit", None),
            ("n1; hits", None),
            ("n1; hit,", None),
        ] {
            let found = members(value.as_bytes()).last().and_then(|member| member.found());
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn parameters_are_read() {
        let value = b"\"a; hit\"; fwd=stale; detail=\"x, y\"; stored";
        let name = &b"\"a; hit\""[..];
        let (fwd, detail) = (Some(&b"stale"[..]), Some(&b"\"x, y\""[..]));
        let member = CacheStatusMember { name, hit: false, fwd, detail, is_valid: true };
        assert_eq!(members(value).collect::<Vec<_>>(), [member]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(value in prop::collection::vec(any::<u8>(), 0..200)) {
            for member in members(&value) {
                prop_assert!(member.name.len() >= member.unquoted_name().count());
            }
        }

        #[test]
        fn a_quoted_name_comes_back_as_it_was(name in "[ -~]{0,60}", hit: bool) {
            let quoted = name.replace('\\', r"\\").replace('"', "\\\"");
            let value = format!("\"{quoted}\"{}, other; fwd=miss", if hit { "; hit" } else { "" });
            prop_assert_eq!(first(&value), Some((name, hit, true)));
        }
    }
}
