//! The format oracleGeneral of libCacheSim: packed records of 24 bytes, with little-endian fields.
//!
//! The fields are time (u32, seconds), object (u64), bytes (u32) and next access (i64). The next access is
//! the number of the next record for this object, or -1 for never. Only reads are recorded. They count as GET
//! requests with status 200.

use std::ops::ControlFlow;

use super::log_format::LogFormat;
use crate::record::{Client, Key, Method, Reason, Record};

/// Size of a record in bytes.
const RECORD_BYTES: usize = 24;

/// Parses one record.
fn parse(record: &[u8]) -> Result<Record<'static>, Reason> {
    let (time, object, size, _) = fields(record).ok_or(Reason::Partial)?;
    Ok(Record {
        time_ns: Some(i64::from(time) * 1_000_000_000),
        client: Client::Unknown,
        method: Method::Get,
        target: Key::Number(object),
        status: 200,
        body: Some(u64::from(size)),
    })
}

/// Returns whether the first bytes of a file are such records: times never decrease, and each next access is
/// in the future.
fn fits(head: &[u8]) -> bool {
    let mut last = 0;
    let mut seen = 0_i64;
    for (time, _, _, next) in head.chunks_exact(RECORD_BYTES).filter_map(fields) {
        // Writers number records from 0 or 1, and some write the largest number for never.
        if time < last || !(next == -1 || next > seen) {
            return false;
        }
        last = time;
        seen += 1;
    }
    seen > 0
}

/// Splits a record into its fields.
fn fields(record: &[u8]) -> Option<(u32, u64, u32, i64)> {
    let (time, rest) = record.split_first_chunk::<4>()?;
    let (object, rest) = rest.split_first_chunk::<8>()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (next, []) = rest.split_first_chunk::<8>()? else { return None };
    Some((
        u32::from_le_bytes(*time),
        u64::from_le_bytes(*object),
        u32::from_le_bytes(*size),
        i64::from_le_bytes(*next),
    ))
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct OracleParser;

impl LogFormat for OracleParser {
    const NAME: &'static str = "oracle-general";
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

    fn record(time: u32, object: u64, size: u32, next: i64) -> Vec<u8> {
        [&time.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next.to_le_bytes()].concat()
    }

    #[test]
    fn fields_are_little_endian() {
        let bytes = [record(5, 1 << 40, 4_096, 2), record(5, 9, 1, -1), record(6, 1 << 40, 4_096, i64::MAX)];
        let parsed = parse(&bytes[0]).expect("a good record");
        assert_eq!((parsed.target, parsed.body), (Key::Number(1 << 40), Some(4_096)));
        assert!(parsed.is_replayable());
        assert!(fits(&bytes.concat()));
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(!fits(&[0; 48]));
        assert!(!fits(&[record(5, 1, 1, -1), record(4, 1, 1, -1)].concat()));
        assert!(!fits(&[record(5, 1, 1, 2), record(5, 1, 1, 1)].concat()));
        assert_eq!(parse(&[0; 23]), Err(Reason::Partial));
    }
}
