//! Bare 64-bit big-endian keys, without times and sizes.

use crate::record::{Client, Key, Method, Reason, Record};

/// Size of a record in bytes.
pub(crate) const RECORD_BYTES: usize = 8;

/// Parses one key.
pub(crate) fn parse(record: &[u8]) -> Result<Record<'static>, Reason> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_big_endian() {
        assert_eq!(parse(&[0, 0, 0, 0, 0, 0, 1, 2]).map(|r| r.target), Ok(Key::Number(258)));
        assert_eq!(parse(&[0; 7]), Err(Reason::Partial));
    }
}
