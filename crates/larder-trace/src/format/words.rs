//! Parts of a line that several formats share: words and quoted fields, request lines, addresses and sizes.

use memchr::{memchr, memchr_iter, memrchr};

use crate::record::{Client, Key, Method, Reason, Record};

/// An iterator over the fields of a line: words between spaces, `"..."` or `[...]`, without quotes and
/// brackets.
///
/// A field in quotes or brackets ends at a closing mark. The mark is not escaped, and is followed by a space
/// or by the end of the line.
pub(crate) struct FieldIter<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for FieldIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.0;
        let closed = match *line {
            [] => return None,
            [b'"', ref rest @ ..] => find_closing(b'"', rest),
            [b'[', ref rest @ ..] => find_closing(b']', rest),
            _ => None,
        };
        let (field, rest) = match closed {
            Some(length) => (&line[1..=length], &line[length + 2..]),
            None => line.split_at(memchr(b' ', line).unwrap_or(line.len())),
        };
        self.0 = rest.strip_prefix(b" ").unwrap_or(rest);
        Some(field)
    }
}

/// Returns the position of the closing mark.
fn find_closing(mark: u8, text: &[u8]) -> Option<usize> {
    memchr_iter(mark, text).find(|&at| matches!(text[at + 1..], [] | [b' ', ..]) && !is_escaped(&text[..at]))
}

/// Returns whether a quote after `before` is escaped, because an odd number of backslashes precedes it.
pub(crate) fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
}

/// Splits a request line into the method and the target.
pub(crate) fn split_request_line(request: &[u8]) -> (Method, &[u8]) {
    let Some(space) = memchr(b' ', request) else { return (Method::Other, request) };
    let rest = &request[space + 1..];
    let target = match memrchr(b' ', rest) {
        Some(last) if rest[last + 1..].starts_with(b"HTTP/") => &rest[..last],
        _ => rest,
    };
    (Method::of(&request[..space]), target.trim_ascii())
}

/// Returns the path and the query of a target, which may be a whole URL.
pub(crate) fn origin_form(target: &[u8]) -> &[u8] {
    match target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://")) {
        None => target,
        Some(rest) => memchr(b'/', rest).map_or(b"/", |slash| &rest[slash..]),
    }
}

/// Joins a path and its query in `target`. Returns the path if there is no query.
pub(crate) fn join_query<'a>(path: &'a [u8], query: Option<&[u8]>, target: &'a mut Vec<u8>) -> &'a [u8] {
    let query = match query {
        None | Some(b"" | b"-") => return path,
        Some(query) => query.strip_prefix(b"?").unwrap_or(query),
    };
    target.clear();
    target.extend_from_slice(path);
    target.push(b'?');
    target.extend_from_slice(query);
    target
}

/// Parses a status code of up to three digits. Servers write 0 or 000 if the client disconnected before the
/// reply.
pub(crate) fn parse_status(word: &[u8]) -> Result<u16, Reason> {
    let code = parse_decimal(word).filter(|code| *code <= 999).ok_or(Reason::NoStatus)?;
    u16::try_from(code).map_err(|_| Reason::NoStatus)
}

/// Parses the size of a reply. `-` and an empty word mean that there was no body.
pub(crate) fn parse_body(word: &[u8]) -> Result<u64, Reason> {
    match word {
        b"-" | b"" => Ok(0),
        digits => parse_decimal(digits).ok_or(Reason::BadSize),
    }
}

/// Returns a client. `-` and an empty name mean that the client is unknown.
pub(crate) fn parse_client(name: &[u8]) -> Client<'_> {
    match name {
        b"-" | b"" => Client::Unknown,
        name => Client::Name(name),
    }
}

/// Returns the address in `address:port`. Brackets around the address are removed.
pub(crate) fn without_port(text: &[u8]) -> &[u8] {
    let address = memrchr(b':', text).map_or(text, |colon| &text[..colon]);
    address.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or(address)
}

/// Returns the address in a text with an optional port. Only brackets or a single colon show that there is a
/// port.
pub(crate) fn without_any_port(text: &[u8]) -> &[u8] {
    let has_port = text.first() == Some(&b'[') || memchr_iter(b':', text).count() == 1;
    if has_port { without_port(text) } else { text }
}

/// Creates a record with a time and a size from the fields of a line.
pub(crate) fn make_record<'a>(
    time_ns: i64,
    client: Client<'a>,
    request: &'a [u8],
    status: u16,
    body: u64,
) -> Record<'a> {
    let (method, target) = split_request_line(request);
    let target = Key::Name(origin_form(target));
    Record { time_ns: Some(time_ns), client, method, target, status, body: Some(body) }
}

/// Parses a decimal number. Returns `None` if there is a byte other than a digit, no digit, or a value beyond
/// 64 bits.
pub(crate) fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &b| {
        let digit = b.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(line: &str) -> Vec<String> {
        FieldIter(line.as_bytes()).map(|field| String::from_utf8_lossy(field).into_owned()).collect()
    }

    #[test]
    fn fields_are_words_quotes_and_brackets() {
        assert_eq!(fields(r#"a "b c" [d e] - f"#), ["a", "b c", "d e", "-", "f"]);
        assert_eq!(fields(r#""" "a \" b" "c\\" "d"e" x"#), ["", r#"a \" b"#, r"c\\", r#"d"e"#, "x"]);
        assert_eq!(fields(r#"a "never closed"#), ["a", "\"never", "closed"]);
        assert_eq!(fields("[2001:db8::1]:80 b"), ["[2001:db8::1]:80", "b"]);
        assert_eq!(fields("a  b "), ["a", "", "b"]);
        assert!(fields("").is_empty());
    }

    #[test]
    fn hosts_are_removed_from_targets() {
        for (target, expected) in [
            ("/a?b=http://c/d", "/a?b=http://c/d"),
            ("http://example.org:80/a?b", "/a?b"),
            ("https://example.org", "/"),
            ("-", "-"),
            ("", ""),
        ] {
            assert_eq!(origin_form(target.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn ports_are_removed_from_addresses() {
        for (text, expected) in [
            ("192.0.2.1:80", "192.0.2.1"),
            ("2001:db8::1:80", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("unix", "unix"),
        ] {
            assert_eq!(without_port(text.as_bytes()), expected.as_bytes());
        }
        for (text, expected) in [
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("192.0.2.1:80", "192.0.2.1"),
        ] {
            assert_eq!(without_any_port(text.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn decimals_are_checked() {
        assert_eq!(parse_decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"-", b"1x", b"18446744073709551616"] {
            assert_eq!(parse_decimal(bad), None);
        }
        assert_eq!(
            (parse_status(b"000"), parse_status(b"1000"), parse_status(b"-1")),
            (Ok(0), Err(Reason::NoStatus), Err(Reason::NoStatus))
        );
        assert_eq!(
            (parse_body(b"-"), parse_body(b"7"), parse_body(b"1k")),
            (Ok(0), Ok(7), Err(Reason::BadSize))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_split_into_fields(line in prop::collection::vec(prop::sample::select(&b"ab \"\\[]:"[..]), 0..40)) {
            let length: usize = FieldIter(&line).map(<[u8]>::len).sum();
            prop_assert!(length <= line.len());
            let _ = (origin_form(&line), without_port(&line), without_any_port(&line), split_request_line(&line));
        }
    }
}
