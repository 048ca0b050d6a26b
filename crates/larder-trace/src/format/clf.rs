//! Common and Combined Log Format, and the unmodified files of this family in the Internet Traffic Archive.
//!
//! A line is `client identity user [time] "request" status bytes`. Text after these fields is ignored;
//! Combined adds referrer and user agent. Real files deviate from the format:
//! - EPA-HTTP has no identity fields, and times like `[29:23:53:25]`. In other files, identity and user may
//!   contain spaces. Therefore the client is the first word, and the time is in the first brackets.
//! - Servers escape a quote as `\"` (Apache) or `\x22` (nginx). NCSA servers of 1995 do not escape quotes.
//!   Therefore the request ends at the first unescaped quote that a status follows. If there is none, it ends
//!   at the first escaped quote that a status follows.
//! - HTTP/0.9 requests have no protocol, and old targets contain spaces. Therefore the first word is the
//!   method, a last word `HTTP/...` is the protocol, and the target is the text between.
//! - The size is `-` or missing if no body was sent. It counts as 0.
//!
//! A line is parsed as bytes, without a UTF-8 check and without an allocation.

use std::ops::ControlFlow;

use memchr::{memchr, memchr_iter};

use super::log_format::LogFormat;
use super::timestamp::{self, CommonClock};
use super::words::{is_escaped, parse_body, parse_client, parse_decimal, split_request_line};
use crate::record::{Key, Reason, Record};

/// Parses one line, without its line end. `clock` is kept from line to line.
fn parse<'a>(line: &'a [u8], clock: &mut CommonClock) -> Result<Record<'a>, Reason> {
    let client_end = memchr(b' ', line).ok_or(Reason::NoTime)?;
    let open = client_end + memchr(b'[', &line[client_end..]).ok_or(Reason::NoTime)?;
    let (time_ns, rest) = split_time(&line[open + 1..], clock)?;
    let quoted = rest.strip_prefix(b" \"").ok_or(Reason::NoRequest)?;
    let (request, status, tail) = split_request(quoted)?;
    let (method, target) = split_request_line(request);
    let body = parse_size(tail)?;
    let client = parse_client(&line[..client_end]);
    Ok(Record { time_ns: Some(time_ns), client, method, target: Key::Name(target), status, body: Some(body) })
}

/// Parses the time after an opening bracket. Returns it with the text after the closing bracket.
fn split_time<'a>(text: &'a [u8], clock: &mut CommonClock) -> Result<(i64, &'a [u8]), Reason> {
    let parsed = if let Some((common, [b']', rest @ ..])) = text.split_first_chunk::<26>() {
        clock.read(common).map(|time| (time, rest))
    } else if let Some((epa, [b']', rest @ ..])) = text.split_first_chunk::<11>() {
        timestamp::parse_epa(epa).map(|time| (time, rest))
    } else {
        None
    };
    parsed.ok_or(Reason::NoTime)
}

/// Splits `request" status bytes...` into the request, the status and the text after it.
fn split_request(quoted: &[u8]) -> Result<(&[u8], u16, &[u8]), Reason> {
    let mut escaped_candidate = None;
    for quote in memchr_iter(b'"', quoted) {
        let Some((status, tail)) = split_status(&quoted[quote + 1..]) else { continue };
        let found = (&quoted[..quote], status, tail);
        if !is_escaped(found.0) {
            return Ok(found);
        }
        escaped_candidate.get_or_insert(found);
    }
    escaped_candidate.ok_or(Reason::NoStatus)
}

/// Parses ` 200`. Returns the status with the text after it; `None` unless it has three digits and ends
/// there.
fn split_status(text: &[u8]) -> Option<(u16, &[u8])> {
    let [b' ', a, b, c, rest @ ..] = text else { return None };
    if !matches!(rest, [] | [b' ', ..]) {
        return None;
    }
    Some((u16::try_from(parse_decimal(&[*a, *b, *c])?).ok()?, rest))
}

/// Parses ` 1497 ...`, ` -`, or nothing.
fn parse_size(tail: &[u8]) -> Result<u64, Reason> {
    let Some(text) = tail.strip_prefix(b" ") else { return Ok(0) };
    parse_body(&text[..memchr(b' ', text).unwrap_or(text.len())])
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct ClfParser {
    clock: CommonClock,
}

impl LogFormat for ClfParser {
    const NAME: &'static str = "clf";

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        take(parse(bytes, &mut self.clock))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Method;

    fn parse(line: &[u8]) -> Result<Record<'_>, Reason> {
        super::parse(line, &mut CommonClock::default())
    }

    fn read_target(line: &str) -> (Method, String, u16, u64) {
        let record = parse(line.as_bytes()).expect("a good line");
        let Key::Name(name) = record.target else { panic!("logs have names") };
        (
            record.method,
            String::from_utf8_lossy(name).into_owned(),
            record.status,
            record.body.expect("a size"),
        )
    }

    #[test]
    fn server_lines_are_parsed() {
        let get = |target: &str, status, size| (Method::Get, target.to_owned(), status, size);
        for (line, expected) in [
            // Apache, Common.
            (
                r#"c6d2 - - [20/Feb/2016:00:00:45 -0500] "GET /robots.txt?a=1 HTTP/1.1" 200 187"#,
                get("/robots.txt?a=1", 200, 187),
            ),
            // nginx, Combined: a user name with a space, and an IPv6 address.
            (
                r#"::1 - John Doe [20/Feb/2016:00:00:45 -0500] "GET / HTTP/2.0" 304 0 "http://e.org/\"x\" 200 5" "M (X; \"Y\")""#,
                get("/", 304, 0),
            ),
            // EPA, as archived.
            (
                r#"141.243.1.172 [29:23:53:25] "GET /Software.html HTTP/1.0" 200 1497"#,
                get("/Software.html", 200, 1497),
            ),
            // NASA: HTTP/0.9, spaces in the target, and quotes that are not escaped.
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /a b.html" 200 -"#, get("/a b.html", 200, 0)),
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /a/"" HTTP/1.0" 404 -"#, get("/a/\"\"", 404, 0)),
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /" HTTP/1.0" 200 7"#, get("/\"", 200, 7)),
            // Apache escapes, also a backslash of the target before the closing quote.
            (
                r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /\" 200 9 HTTP/1.1" 200 3"#,
                get("/\\\" 200 9", 200, 3),
            ),
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /a\\" 200 3"#, get("/a\\\\", 200, 3)),
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /a\" 200 3"#, get("/a\\", 200, 3)),
            // The size is missing.
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "GET /x HTTP/1.0" 500"#, get("/x", 500, 0)),
            // Malformed requests.
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "-" 408 -"#, (Method::Other, "-".into(), 408, 0)),
            (r#"h - - [01/Jul/1995:00:00:01 -0400] "" 400 0"#, (Method::Other, String::new(), 400, 0)),
            (
                r#"h - - [01/Jul/1995:00:00:01 -0400] "HEAD / HTTP/1.0" 200 -"#,
                (Method::Head, "/".into(), 200, 0),
            ),
        ] {
            assert_eq!(read_target(line), expected, "{line}");
        }
    }

    #[test]
    fn malformed_lines_give_the_missing_part() {
        for (line, reason) in [
            ("", Reason::NoTime),
            ("word", Reason::NoTime),
            ("h - - 20/Feb/2016", Reason::NoTime),
            ("h - - [yesterday] \"GET / HTTP/1.0\" 200 1", Reason::NoTime),
            ("h - - [20/Feb/2016:00:00:45 -0500]", Reason::NoRequest),
            ("h - - [20/Feb/2016:00:00:45 -0500] GET / 200 1", Reason::NoRequest),
            ("h - - [20/Feb/2016:00:00:45 -0500] \"GET / HTTP/1.0", Reason::NoStatus),
            ("h - - [20/Feb/2016:00:00:45 -0500] \"GET / HTTP/1.0\" 2x0 1", Reason::NoStatus),
            ("h - - [20/Feb/2016:00:00:45 -0500] \"GET / HTTP/1.0\" 200 1k", Reason::BadSize),
            (
                "h - - [20/Feb/2016:00:00:45 -0500] \"GET / HTTP/1.0\" 200 99999999999999999999",
                Reason::BadSize,
            ),
        ] {
            assert_eq!(parse(line.as_bytes()), Err(reason), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_record_or_an_error(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..80, byte: u8, cut in 0_usize..90) {
            let mut line = br#"c6d2 - - [20/Feb/2016:00:00:45 -0500] "GET /robots.txt HTTP/1.1" 200 187"#.to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            line.truncate(cut);
            let _ = parse(&line);
        }

        #[test]
        fn written_text_is_parsed_unchanged(path in "/[!#-~]{0,60}", status in 100_u16..600, size: u64) {
            prop_assume!(!path.ends_with('\\'));
            let line = format!("c - - [20/Feb/2016:00:00:45 -0500] \"GET {path} HTTP/1.1\" {status} {size}");
            prop_assert_eq!(read_target(&line), (Method::Get, path, status, size));
        }
    }
}
