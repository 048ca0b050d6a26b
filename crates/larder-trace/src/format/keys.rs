//! Bare 64-bit big-endian keys, without times and sizes.

use std::ops::ControlFlow;

use super::log_format::LogFormat;
use crate::record::{Client, Key, Method, Reason, Record};
use crate::size_unit::SizeUnit;

/// Size of a record in bytes.
const RECORD_BYTES: usize = 8;

/// Parses one key.
fn parse(record: &[u8]) -> Result<Record<'static>, Reason> {
    let key = u64::from_be_bytes(record.try_into().map_err(|_| Reason::Partial)?);
    Ok(Record {
        time_ns: None,
        client: Client::Unknown,
        method: Method::Get,
        target: Key::Number(key),
        status: 200,
        body: None,
    })
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct KeysParser;

impl LogFormat for KeysParser {
    const NAME: &'static str = "u64be";
    const RECORD_BYTES: Option<usize> = Some(RECORD_BYTES);
    const NUMBERED_TARGETS: bool = true;
    const SIZE_UNIT: SizeUnit = SizeUnit::Unknown;
    const FILE_EXTENSION: Option<&'static str> = Some(".u64be");

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

    #[test]
    fn keys_are_big_endian() {
        assert_eq!(parse(&[0, 0, 0, 0, 0, 0, 1, 2]).map(|r| r.target), Ok(Key::Number(258)));
        assert_eq!(parse(&[0; 7]), Err(Reason::Partial));
    }
}
