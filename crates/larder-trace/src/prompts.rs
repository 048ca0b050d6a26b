//! The prompts of a trace of LLM requests: chains of blocks with their times and lengths. Lines are those of Mooncake's traces, or
//! requests of OpenAI's API; see [`chat`].
//!
//! [`read`](crate::read()) passes on a block as a target of its own. A cluster of inference servers needs the chain: a
//! block is of use only with all blocks before it.

mod chat;

use std::path::Path;

use serde_json::{Map, Value};

use self::chat::ChatRequest;
use crate::compression::Compression;
use crate::error::TraceError;
use crate::format::Format;
use crate::format::mooncake::{BLOCK_TOKENS, RequestLine, parse};
use crate::line::{ReadItem, next_line};
use crate::read::Limits;
use crate::record::{Reason, TokenSums};
use crate::report::{ReadEnd, ReadReport};
use crate::source::Source;
use larder_prompts::{BLOCK_BYTES, TOKEN_BYTES};

/// Largest size of a line. A prompt of a million tokens fits.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Largest mean size of a token that is believed. The smallest is a byte.
const TOKEN_BYTES_MAX: f64 = 32.0;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts {
    prompts: Vec<Prompt>,
    blocks: Vec<u64>,
    block_tokens: u32,
}

/// Sums over the lines of a file that are requests of OpenAI's API.
#[derive(Clone, Copy, Debug, Default)]
struct ChatSums {
    /// Lines.
    lines: u64,
    /// Bytes and tokens of the prompts whose tokens are logged.
    bytes: u64,
    tokens: u64,
}

impl Prompts {
    /// Loads a trace, which may be compressed. At most [`Limits::requests_max`] blocks are kept. The prompts of one file have one form.
    ///
    /// Requests with equal times are spread evenly over the resolution of the clock, which is the smallest difference between two
    /// times. Mooncake's clock has 3 s: without this, ten requests would arrive at once.
    ///
    /// In a log of OpenAI's API, a token has as many bytes as on average in the prompts whose tokens are logged.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be read, or if no line is valid. Single malformed lines are counted in the
    /// report.
    pub fn load(path: &Path, limits: &Limits) -> Result<(Self, ReadReport), TraceError> {
        let mut source = Source::open(path)?;
        let mut prompts = Self { prompts: Vec::new(), blocks: Vec::new(), block_tokens: BLOCK_TOKENS as u32 };
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
                return Err(TraceError::NoPrompts { report: Box::new(report) });
            }
            Ok(()) => {}
        }
        prompts.prompts.sort_by_key(|prompt| prompt.time_ns);
        let begin = prompts.prompts.first().map_or(0, |prompt| prompt.time_ns);
        for prompt in &mut prompts.prompts {
            prompt.time_ns -= begin;
        }
        spread_equal_times(&mut prompts.prompts);
        Ok((prompts, report))
    }

    /// Returns the tokens of a block. The last block of a prompt may have fewer.
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
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
        let line_bytes_max = limits.line_bytes_max.max(LINE_BYTES_MAX);
        let mut chats = ChatSums::default();
        loop {
            let item = next_line(source, line_bytes_max)?;
            if matches!(item, ReadItem::End) {
                break;
            }
            report.lines += 1;
            let added = match item {
                ReadItem::Whole(b"") | ReadItem::End => Ok(()),
                ReadItem::Whole(line) => self.add(line, report.tokens.get_or_insert_default(), &mut chats),
                ReadItem::TooLong => Err(Reason::TooLong),
                ReadItem::Partial => Err(Reason::Partial),
            };
            if let Err(reason) = added {
                report.record_malformed(reason);
            }
            report.records = self.prompts.len() as u64;
            if self.blocks.len() >= limits.requests_max {
                report.ended = ReadEnd::RequestsMax;
                break;
            }
        }
        if chats.lines > 0 {
            self.convert_to_tokens(chats, report.tokens.get_or_insert_default());
        }
        Ok(())
    }

    /// Adds a line. The first valid line determines the form of all.
    fn add(&mut self, line: &[u8], sums: &mut TokenSums, chats: &mut ChatSums) -> Result<(), Reason> {
        match parse(line) {
            Ok(line) if chats.lines == 0 => self.add_mooncake(line, sums),
            Ok(_) => Err(Reason::NotJson),
            Err(reason) if chats.lines == 0 && !self.prompts.is_empty() => Err(reason),
            Err(_) => {
                let line: Map<String, Value> = serde_json::from_slice(line).map_err(|_| Reason::NotJson)?;
                self.add_chat(&chat::parse(&line)?, chats)
            }
        }
    }

    fn add_mooncake(&mut self, line: RequestLine, sums: &mut TokenSums) -> Result<(), Reason> {
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

    /// Adds a request of OpenAI's API. Its input is counted in bytes until all lines are read.
    fn add_chat(&mut self, request: &ChatRequest, chats: &mut ChatSums) -> Result<(), Reason> {
        let input_tokens = u32::try_from(request.bytes).map_err(|_| Reason::BadSize)?;
        let output_tokens = u32::try_from(request.reply_tokens).map_err(|_| Reason::BadSize)?;
        let (first, count) = (self.blocks.len(), request.blocks.len() as u32);
        self.prompts.push(Prompt { time_ns: request.time_ns, input_tokens, output_tokens, first, count });
        self.blocks.extend_from_slice(&request.blocks);
        chats.lines += 1;
        if let Some(tokens) = request.prompt_tokens {
            chats.bytes += request.bytes;
            chats.tokens = chats.tokens.saturating_add(tokens);
        }
        Ok(())
    }

    /// Converts the inputs of all prompts from bytes to tokens.
    fn convert_to_tokens(&mut self, chats: ChatSums, sums: &mut TokenSums) {
        let logged = chats.bytes as f64 / chats.tokens as f64;
        let token_bytes =
            if chats.tokens > 0 { logged.clamp(1.0, TOKEN_BYTES_MAX) } else { TOKEN_BYTES.into() };
        let tokens = |bytes: u32| ((f64::from(bytes) / token_bytes).round() as u32).max(1);
        const BLOCK: u32 = BLOCK_BYTES as u32;
        self.block_tokens = tokens(BLOCK);
        for prompt in &mut self.prompts {
            let full = prompt.count - 1;
            let rest = tokens(prompt.input_tokens - full * BLOCK).min(self.block_tokens);
            prompt.input_tokens = full.saturating_mul(self.block_tokens).saturating_add(rest);
            sums.input = sums.input.saturating_add(prompt.input_tokens.into());
            sums.output = sums.output.saturating_add(prompt.output_tokens.into());
        }
    }
}

/// Spreads requests with equal times, which are sorted, over the smallest difference between two times.
fn spread_equal_times(prompts: &mut [Prompt]) {
    let differences = prompts.windows(2).map(|pair| pair[1].time_ns - pair[0].time_ns);
    let Some(resolution) = differences.filter(|ns| *ns > 0).min() else { return };
    for equal in prompts.chunk_by_mut(|one, other| one.time_ns == other.time_ns) {
        let count = equal.len() as u64;
        for (at, prompt) in (0..).zip(equal) {
            prompt.time_ns +=
                u64::try_from(u128::from(resolution) * at / u128::from(count)).unwrap_or(resolution);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// The clock of this trace has 3 s: the smallest difference is 2,999 ms.
    #[test]
    fn requests_with_equal_times_are_spread_over_the_resolution() {
        let line = |ms: u64| {
            format!("{{\"timestamp\": {ms}, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}}\n")
        };
        let text: String = [0, 0, 0, 3_000, 5_999, 5_999, 30_000, 30_000].map(line).concat();
        let (prompts, _) = load(&text, &Limits::default()).expect("all lines are valid");
        let times: Vec<u64> = prompts.prompts().iter().map(|prompt| prompt.time_ns / 1_000).collect();
        assert_eq!(times, [0, 999_666, 1_999_333, 3_000_000, 5_999_000, 7_498_500, 30_000_000, 31_499_500]);
    }

    #[test]
    fn limits_and_other_files_are_named() {
        let limits = Limits { requests_max: 2, ..Limits::default() };
        let (prompts, report) = load(LINES, &limits).expect("the first line is valid");
        assert_eq!((prompts.prompts().len(), report.ended), (1, ReadEnd::RequestsMax));
        assert_eq!(report.records, 1);
        assert!(matches!(load("GET /\n", &Limits::default()), Err(TraceError::NoPrompts { .. })));
        assert!(matches!(load("", &Limits::default()), Err(TraceError::Empty)));
    }

    /// A conversation of two turns, with the usage of one of them: 8,192 bytes are 4,096 tokens.
    #[test]
    fn requests_of_openais_api_are_prompts() {
        let content = |bytes: usize| "a".repeat(bytes - "user".len() - 2);
        let line = |time: u64, bytes: usize, usage: &str| {
            let message = format!("{{\"role\": \"user\", \"content\": \"{}\"}}", content(bytes));
            format!("{{\"time\": {time}, \"body\": {{\"messages\": [{message}]}}{usage}}}\n")
        };
        let usage = ", \"usage\": {\"prompt_tokens\": 4096, \"completion_tokens\": 3}";
        let text = line(2_000_000_001, 8_192, usage) + &line(2_000_000_000, 3_000, "") + "{}\n" + LINES;
        let (prompts, report) = load(&text, &Limits::default()).expect("two lines are valid");
        assert_eq!(prompts.block_tokens(), 128);
        let found: Vec<_> = prompts.prompts().iter().map(|p| (p.time_ns, p.input_tokens, p.count)).collect();
        assert_eq!(found, [(0, 1_500, 12), (1_000_000_000, 4_096, 32)]);
        let [short, long] = prompts.prompts() else { panic!("two prompts") };
        assert_eq!(prompts.blocks(short)[0], prompts.blocks(long)[0]);
        assert_eq!(report.tokens, Some(TokenSums { input: 5_596, output: 3 }));
        // A file has one form of lines, and the others are malformed.
        assert_eq!((report.records, report.malformed), (2, 6));
        assert_eq!(report.first_malformed[0].reason, Reason::NoTime);
    }

    proptest! {
        /// Any text is prompts or an error, and the blocks of a prompt are as long as its tokens.
        #[test]
        fn any_lines_give_prompts_or_an_error(lines in prop::collection::vec(prop_oneof![
            any::<String>(),
            any::<(u32, String)>().prop_map(|(ts, prompt)| serde_json::json!({ "ts": ts, "prompt": prompt }).to_string()),
            any::<(i64, String, Option<u64>)>().prop_map(|(ts, text, tokens)| serde_json::json!({
                "time": ts, "messages": [{ "role": text, "content": text.repeat(60) }], "usage": { "prompt_tokens": tokens },
            }).to_string()),
        ], 0..8)) {
            if let Ok((prompts, report)) = load(&(lines.join("\n") + "\n"), &Limits::default()) {
                prop_assert_eq!(report.records, prompts.prompts().len() as u64);
                for prompt in prompts.prompts() {
                    let blocks = prompts.blocks(prompt).len() as u32;
                    prop_assert!(prompt.input_tokens > (blocks - 1).saturating_mul(prompts.block_tokens()));
                    prop_assert!(prompt.input_tokens <= blocks.saturating_mul(prompts.block_tokens()));
                }
            }
        }
    }
}
