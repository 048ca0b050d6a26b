//! The format of the WorldCup98 logs (Arlitt and Jin): records of 20 bytes, with big-endian fields.
//!
//! The fields are time (u32, seconds since 1970 UTC), client (u32), object (u32), bytes (u32), method (u8),
//! status (u8), type (u8) and server (u8). The status has two bits for the HTTP version and six bits for an
//! index into a table of codes. Times may decrease slightly
//! between servers, because their logs follow one another.

use std::ops::ControlFlow;

use super::log_format::LogFormat;
use crate::record::{Client, Key, Method, Reason, Record};

/// Size of a record in bytes.
const RECORD_BYTES: usize = 20;

/// The status codes by their index. A larger index means "other".
const STATUS: [u16; 37] = [
    100, 101, 200, 201, 202, 203, 204, 205, 206, 300, 301, 302, 303, 304, 305, 400, 401, 402, 403, 404, 405,
    406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 500, 501, 502, 503, 504, 505,
];

/// The year 1998 in seconds since 1970. A valid time lies in this range.
const YEAR_1998: std::ops::Range<u32> = 883_612_800..915_148_800;

/// Parses one record.
fn parse(record: &[u8]) -> Result<Record<'static>, Reason> {
    let &[t0, t1, t2, t3, c0, c1, c2, c3, o0, o1, o2, o3, b0, b1, b2, b3, method, status, _, _] = record
    else {
        return Err(Reason::Partial);
    };
    let time = u32::from_be_bytes([t0, t1, t2, t3]);
    if !YEAR_1998.contains(&time) {
        return Err(Reason::NoTime);
    }
    let size = u32::from_be_bytes([b0, b1, b2, b3]);
    let method = match method {
        0 => Method::Get,
        1 => Method::Head,
        2 => Method::Post,
        _ => Method::Other,
    };
    Ok(Record {
        time_ns: Some(i64::from(time) * 1_000_000_000),
        client: Client::Number(u32::from_be_bytes([c0, c1, c2, c3])),
        method,
        target: Key::Number(u64::from(u32::from_be_bytes([o0, o1, o2, o3]))),
        status: STATUS.get(usize::from(status & 0x3F)).copied().unwrap_or(0),
        // The largest number means that no size was logged.
        body: Some(if size == u32::MAX { 0 } else { u64::from(size) }),
    })
}

/// Returns whether the first bytes of a file are such records.
fn fits(head: &[u8]) -> bool {
    let mut records = head.chunks_exact(RECORD_BYTES).take(100).peekable();
    records.peek().is_some()
        && records.all(|record| parse(record).is_ok() && record[16] <= 8 && record[18] <= 13)
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct WorldCupParser;

impl LogFormat for WorldCupParser {
    const NAME: &'static str = "worldcup98";
    const RECORD_BYTES: Option<usize> = Some(RECORD_BYTES);
    const NUMBERED_TARGETS: bool = true;

    fn fits(head: &[u8]) -> bool {
        fits(head)
    }

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
    use super::*;

    fn record(status: u8, size: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [893_964_653_u32, 7, 4_711, size] {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes.extend_from_slice(&[0, status, 2, 0x41]);
        bytes
    }

    #[test]
    fn fields_are_big_endian() {
        // The status 0x82 is HTTP/1.1 with index 2, which is status 200.
        let bytes = record(0x82, 1_234);
        let parsed = parse(&bytes).expect("a good record");
        assert_eq!(parsed.target, Key::Number(4_711));
        assert_eq!((parsed.status, parsed.body, parsed.client), (200, Some(1_234), Client::Number(7)));
        assert_eq!(parsed.time_ns, Some(893_964_653_000_000_000));
        assert!(fits(&bytes.repeat(3)));
        assert_eq!(parse(&record(0x3F, u32::MAX)).map(|r| (r.status, r.body)), Ok((0, Some(0))));
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(!fits(&[0; 40]));
        assert!(!fits(b"short"));
        assert_eq!(parse(&[0; 20]), Err(Reason::NoTime));
    }
}
