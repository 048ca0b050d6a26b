//! SDSC-HTTP of the Internet Traffic Archive: the log of a GN server for one day of August 1995.
//!
//! A line is `net+host: DAY MON DD HH:MM:SS YYYY /file operation: remainder`. A failed operation has no file.
//! An operation that starts with `Sent` succeeded. There are no sizes. The archive does not describe the
//! separators. Therefore any run of spaces, tabs and colons is accepted.

use std::ops::ControlFlow;

use memchr::memchr;

use super::log_format::LogFormat;
use super::timestamp;
use crate::record::{Client, Key, Method, Reason, Record};
use crate::size_unit::SizeUnit;

/// Parses one line, without its line end.
fn parse(line: &[u8]) -> Result<Record<'_>, Reason> {
    let colon = memchr(b':', line).ok_or(Reason::NoTime)?;
    let client = &line[..colon];
    if client.is_empty() || !client.iter().all(|b| b.is_ascii_digit() || *b == b'+') {
        return Err(Reason::NoTime);
    }
    let rest = skip_separators(&line[colon + 1..]);
    let (time, rest) = rest.split_first_chunk::<24>().ok_or(Reason::NoTime)?;
    let time_ns = timestamp::parse_ctime(time).ok_or(Reason::NoTime)?;
    let rest = skip_separators(rest);
    let (file, operation) = if rest.first() == Some(&b'/') {
        let end = rest.iter().position(|b| matches!(b, b' ' | b'\t')).unwrap_or(rest.len());
        (rest[..end].strip_suffix(b":").unwrap_or(&rest[..end]), skip_separators(&rest[end..]))
    } else {
        (&rest[..0], rest)
    };
    if operation.is_empty() {
        return Err(Reason::NoRequest);
    }
    let sent = operation.starts_with(b"Sent") && !file.is_empty();
    let (_, remainder) = operation.split_at(memchr(b':', operation).unwrap_or(operation.len()));
    let method = if skip_separators(remainder).starts_with(b"HEAD ") { Method::Head } else { Method::Get };
    // The log records success or failure, but no status codes. 404 stands for every failure.
    let status = if sent { 200 } else { 404 };
    let client = Client::Name(client);
    Ok(Record { time_ns: Some(time_ns), client, method, target: Key::Name(file), status, body: None })
}

/// Removes leading spaces, tabs and colons.
fn skip_separators(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|b| !matches!(b, b' ' | b'\t' | b':')).unwrap_or(text.len());
    &text[start..]
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct SdscParser;

impl LogFormat for SdscParser {
    const NAME: &'static str = "sdsc";
    const SIZE_UNIT: SizeUnit = SizeUnit::Unknown;

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        take(parse(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn archive_lines_are_parsed() {
        let line = b"4319+2: Tue Aug 22 00:00:01 1995 /images/a.gif Sent binary: GET /images/a.gif HTTP/1.0";
        let record = parse(line).expect("a good line");
        assert_eq!(record.target, Key::Name(b"/images/a.gif"));
        assert_eq!((record.method, record.status, record.body), (Method::Get, 200, None));
        assert!(record.is_replayable());
        let tabs = b"4319+2:\tTue Aug 22 00:00:01 1995\t/a:\tSent text:\tHEAD /a HTTP/1.0";
        let record = parse(tabs).expect("a good line");
        assert_eq!((record.method, record.target), (Method::Head, Key::Name(b"/a")));
        let failed = b"77+1: Tue Aug 22 00:00:01 1995 Failed to open file: GET /none HTTP/1.0";
        assert!(!parse(failed).expect("a good line").is_replayable());
    }

    #[test]
    fn other_lines_are_refused() {
        assert_eq!(parse(b"h - - [x]"), Err(Reason::NoTime));
        assert_eq!(parse(b"1+1: yesterday"), Err(Reason::NoTime));
        assert_eq!(parse(b"1+1: Tue Aug 22 00:00:01 1995"), Err(Reason::NoRequest));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_record_or_an_error(tail in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&tail);
            let _ = parse(&[b"1+1: Tue Aug 22 00:00:01 1995".to_vec(), tail].concat());
        }
    }
}
