//! Mooncake's traces of LLM serving.
//!
//! A JSON line has a timestamp (ms), input and output length (tokens) and the ids of the 512-token prefix
//! blocks of the input. A block id is a target. A request needs each of its blocks, and the node that still
//! holds them need not compute them again. The size of a target is counted in tokens.

use std::ops::ControlFlow;

use serde::Deserialize;

use super::log_format::LogFormat;
use crate::record::{Client, Key, Method, Reason, Record, TokenSums};
use crate::size_unit::SizeUnit;

/// Tokens per block.
pub(crate) const BLOCK_TOKENS: u64 = 512;

/// A request line. Unknown fields are ignored, because later traces of this family add some.
#[derive(Debug, Deserialize)]
pub(crate) struct RequestLine {
    pub(crate) timestamp: i64,
    pub(crate) input_length: u64,
    pub(crate) output_length: u64,
    pub(crate) hash_ids: Vec<u64>,
}

impl RequestLine {
    /// Returns a record for each block of the request.
    fn records(&self) -> impl Iterator<Item = Record<'static>> + '_ {
        self.hash_ids.iter().map(|&block| Record {
            time_ns: Some(self.timestamp.saturating_mul(1_000_000)),
            client: Client::Unknown,
            method: Method::Get,
            target: Key::Number(block),
            status: 200,
            body: Some(BLOCK_TOKENS),
        })
    }
}

/// Parses one line, without its line end.
pub(crate) fn parse(line: &[u8]) -> Result<RequestLine, Reason> {
    if line.first() != Some(&b'{') {
        return Err(Reason::NotJson);
    }
    serde_json::from_slice(line).map_err(|_| Reason::NotJson)
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct MooncakeParser {
    /// Token sums of the valid lines; `None` before the first of them.
    tokens: Option<TokenSums>,
}

impl LogFormat for MooncakeParser {
    const NAME: &'static str = "mooncake";
    const NUMBERED_TARGETS: bool = true;
    const SIZE_UNIT: SizeUnit = SizeUnit::Tokens;

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match parse(bytes) {
            Err(reason) => take(Err(reason)),
            Ok(line) => {
                let sums = self.tokens.get_or_insert_default();
                sums.input = sums.input.saturating_add(line.input_length);
                sums.output = sums.output.saturating_add(line.output_length);
                line.records().try_for_each(|record| take(Ok(record)))
            }
        }
    }

    fn tokens(&self) -> Option<TokenSums> {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_block_is_a_record() {
        let line =
            parse(br#"{"timestamp": 27, "input_length": 700, "output_length": 5, "hash_ids": [0, 14]}"#);
        let line = line.expect("a good line");
        let targets: Vec<_> = line.records().map(|r| (r.target, r.time_ns)).collect();
        assert_eq!(targets, [(Key::Number(0), Some(27_000_000)), (Key::Number(14), Some(27_000_000))]);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [&b""[..], b"{", b"{}", b"[1]", br#"{"timestamp": "x"}"#] {
            assert!(matches!(parse(line), Err(Reason::NotJson)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_line_or_an_error(tail in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&[b"{".to_vec(), tail].concat());
        }
    }
}
