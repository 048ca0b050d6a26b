//! The prompts of a trace of LLM requests: chains of blocks with their times and lengths.
//!
//! [`read`](crate::read()) passes on a block as a target of its own. A cluster of inference servers needs the chain: a
//! block is of use only with all blocks before it.

use std::path::Path;

use crate::compression::Compression;
use crate::error::TraceError;
use crate::format::Format;
use crate::format::mooncake::{BLOCK_TOKENS, parse};
use crate::line::{ReadItem, next_line};
use crate::read::Limits;
use crate::record::{Reason, TokenSums};
use crate::report::{ReadEnd, ReadReport};
use crate::source::Source;

/// A request for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Time in ns since the first request.
    pub time_ns: u64,
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens of the reply.
    pub output_tokens: u32,
    /// Position of the first block in [`Prompts::blocks`].
    first: usize,
    /// Number of blocks, at least 1.
    count: u32,
}

/// The prompts of a trace, in the order of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    prompts: Vec<Prompt>,
    blocks: Vec<u64>,
}

impl Prompts {
    /// Tokens of a block; the last block of a prompt may have fewer.
    pub const BLOCK_TOKENS: u32 = BLOCK_TOKENS as u32;

    /// Loads a trace of Mooncake's format, which may be compressed. At most [`Limits::requests_max`] blocks are kept.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be read, or if no line is valid. Single malformed lines are counted in the
    /// report.
    pub fn load(path: &Path, limits: &Limits) -> Result<(Self, ReadReport), TraceError> {
        let mut source = Source::open(path)?;
        let mut prompts = Self::default();
        let mut report = ReadReport::new(Format::Mooncake, source.compression);
        let read = prompts.drain(&mut source, limits, &mut report);
        report.bytes_unpacked = source.bytes_unpacked();
        match read {
            Err(error) if report.compression == Compression::None => {
                return Err(TraceError::Io { report: Box::new(report), source: error });
            }
            Err(error) => return Err(TraceError::CutShort { report: Box::new(report), source: error }),
            Ok(()) if report.lines == 0 => return Err(TraceError::Empty),
            Ok(()) if prompts.prompts.is_empty() => {
                return Err(TraceError::NothingParsed { report: Box::new(report) });
            }
            Ok(()) => {}
        }
        prompts.prompts.sort_by_key(|prompt| prompt.time_ns);
        let begin = prompts.prompts.first().map_or(0, |prompt| prompt.time_ns);
        for prompt in &mut prompts.prompts {
            prompt.time_ns -= begin;
        }
        Ok((prompts, report))
    }

    /// Returns the prompts.
    pub fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    /// Returns the ids of a prompt's blocks, from its start to its end.
    pub fn blocks(&self, prompt: &Prompt) -> &[u64] {
        &self.blocks[prompt.first..prompt.first + prompt.count as usize]
    }

    fn drain(
        &mut self,
        source: &mut Source<'_>,
        limits: &Limits,
        report: &mut ReadReport,
    ) -> std::io::Result<()> {
        loop {
            let item = next_line(source, limits.line_bytes_max)?;
            if matches!(item, ReadItem::End) {
                return Ok(());
            }
            report.lines += 1;
            let added = match item {
                ReadItem::Whole(b"") | ReadItem::End => Ok(()),
                ReadItem::Whole(line) => self.add(line, report.tokens.get_or_insert_default()),
                ReadItem::TooLong => Err(Reason::TooLong),
                ReadItem::Partial => Err(Reason::Partial),
            };
            if let Err(reason) = added {
                report.record_malformed(reason);
            }
            report.records = self.prompts.len() as u64;
            if self.blocks.len() >= limits.requests_max {
                report.ended = ReadEnd::RequestsMax;
                return Ok(());
            }
        }
    }

    fn add(&mut self, line: &[u8], sums: &mut TokenSums) -> Result<(), Reason> {
        let line = parse(line)?;
        let ms = u64::try_from(line.timestamp).map_err(|_| Reason::NoTime)?;
        let input_tokens = u32::try_from(line.input_length).map_err(|_| Reason::BadSize)?;
        let output_tokens = u32::try_from(line.output_length).map_err(|_| Reason::BadSize)?;
        let blocks = line.input_length.div_ceil(BLOCK_TOKENS);
        if input_tokens == 0 || blocks != line.hash_ids.len() as u64 {
            return Err(Reason::BadBlocks);
        }
        let (first, count) = (self.blocks.len(), line.hash_ids.len() as u32);
        let time_ns = ms.saturating_mul(1_000_000);
        self.prompts.push(Prompt { time_ns, input_tokens, output_tokens, first, count });
        self.blocks.extend(line.hash_ids);
        sums.input = sums.input.saturating_add(line.input_length);
        sums.output = sums.output.saturating_add(line.output_length);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, limits: &Limits) -> Result<(Prompts, ReadReport), TraceError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        Prompts::load(file.path(), limits)
    }

    const LINES: &str = "\
        {\"timestamp\": 30, \"input_length\": 513, \"output_length\": 5, \"hash_ids\": [0, 7]}\n\
        {\"timestamp\": 27, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0]}\n\
        {\"timestamp\": 28, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [0, 1]}\n\
        {\"timestamp\": 28, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}\n\
        {\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n";

    #[test]
    fn prompts_are_in_the_order_of_their_times() {
        let (prompts, report) = load(LINES, &Limits::default()).expect("two lines are valid");
        let found: Vec<_> = prompts.prompts().iter().map(|p| (p.time_ns, prompts.blocks(p))).collect();
        assert_eq!(found, [(0, &[0][..]), (3_000_000, &[0, 7][..])]);
        assert_eq!((report.records, report.malformed), (2, 3));
        assert_eq!(report.first_malformed[0].reason, Reason::BadBlocks);
        assert_eq!(report.tokens, Some(TokenSums { input: 1_025, output: 5 }));
    }

    #[test]
    fn limits_and_other_files_are_named() {
        let limits = Limits { requests_max: 2, ..Limits::default() };
        let (prompts, report) = load(LINES, &limits).expect("the first line is valid");
        assert_eq!((prompts.prompts().len(), report.ended), (1, ReadEnd::RequestsMax));
        assert_eq!(report.records, 1);
        assert!(matches!(load("GET /\n", &Limits::default()), Err(TraceError::NothingParsed { .. })));
        assert!(matches!(load("", &Limits::default()), Err(TraceError::Empty)));
    }
}
