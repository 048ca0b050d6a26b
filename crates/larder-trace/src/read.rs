//! One pass over a trace file: each request is handed over, each bad line is counted.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use crate::compression::Compression;
use crate::error::TraceError;
use crate::format::json_fields::JsonFields;
use crate::format::parser::Parser;
use crate::format::{DETECT_BYTES, Format};
use crate::line::{Piece, next_line, next_record};
use crate::record::{Reason, Record};
use crate::report::{Ended, ReadReport};
use crate::source::{Source, cannot_start};

/// How many lines or records pass between two progress reports.
const PROGRESS_EVERY: u64 = 1 << 15;

/// What a reader may use at most. What happens beyond is named in the [`ReadReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest line in bytes; a longer one is skipped and counted as [`Reason::TooLong`]. Default 64 KiB.
    pub line_bytes_max: usize,
    /// Most distinct targets; requests for further ones are counted in [`ReadReport::over_targets_max`] and dropped.
    /// Default 16,777,216.
    pub targets_max: usize,
    /// Most bytes of all target names together, with the same outcome. Default 1 GiB.
    pub target_name_bytes_max: usize,
    /// Most distinct clients; further ones are taken as unknown. Default 4,194,304.
    pub clients_max: usize,
    /// Most requests kept in memory by [`Trace::load`](crate::Trace::load); reading then ends with
    /// [`Ended::RequestsMax`]. Default 100,000,000 (3.2 GB).
    pub requests_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            line_bytes_max: 64 << 10,
            targets_max: 1 << 24,
            target_name_bytes_max: 1 << 30,
            clients_max: 1 << 22,
            requests_max: 100_000_000,
        }
    }
}

/// How to read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The format; told from the first bytes (and for bare keys from the file name) if `None`.
    pub format: Option<Format>,
    /// The keys of JSON lines; the format is [`Format::Json`] then.
    pub json_fields: Option<JsonFields>,
    /// What may be used at most.
    pub limits: Limits,
}

impl ReadOptions {
    /// The format, if the options say it.
    fn format(&self) -> Result<Option<Format>, TraceError> {
        match (self.format, &self.json_fields) {
            (None | Some(Format::Json), Some(_)) => Ok(Some(Format::Json)),
            (Some(Format::Json), None) => {
                Err(TraceError::JsonFields("the format 'json' needs them: give path=KEY at least".to_owned()))
            }
            (Some(other), Some(_)) => Err(TraceError::JsonFields(format!(
                "the format '{other}' has its own: leave one of the two out"
            ))),
            (format, None) => Ok(format),
        }
    }
}

/// How far reading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file taken so far, as packed.
    pub bytes: u64,
    /// Bytes of the whole file, where known.
    pub bytes_total: Option<u64>,
    /// Lines or records so far.
    pub lines: u64,
}

/// Reads a file: `on_record` gets every well-formed request in file order and may stop the reading, `on_progress` is
/// called every few thousand lines.
///
/// # Errors
/// [`TraceError`] when the file cannot be opened, is packed in an unknown way or damaged, or holds no known format.
/// Malformed lines are no error as long as there is one good line.
pub fn read(
    path: &Path,
    options: &ReadOptions,
    on_record: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<ReadReport, TraceError> {
    let by_name = path.file_name().and_then(|name| name.to_str()).and_then(Format::of_file_name);
    run(Source::open(path)?, options.format()?.or(by_name), options, on_record, on_progress)
}

/// [`read`] from any reader, packed or not: a pipe, a test's bytes.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    reader: impl Read,
    options: &ReadOptions,
    on_record: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<ReadReport, TraceError> {
    run(Source::new(reader, None)?, options.format()?, options, on_record, on_progress)
}

fn run(
    mut source: Source<'_>,
    format: Option<Format>,
    options: &ReadOptions,
    on_record: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<ReadReport, TraceError> {
    let mut filled = source.fill_to(DETECT_BYTES);
    let format = match format {
        Some(format) => format,
        None => match (Format::detect(source.window(), source.window().len() < DETECT_BYTES), filled) {
            (Err(TraceError::Empty), Err(error)) => return Err(cannot_start(error)),
            (detected, before) => {
                filled = before;
                detected?
            }
        },
    };
    let mut pass = Pass {
        sink: Sink { report: ReadReport::new(format, source.compression), on_record },
        line_bytes_max: options.limits.line_bytes_max,
        parser: Parser::new(format, options.json_fields.as_ref()),
        on_progress,
    };
    // A stream cut within the first bytes has a format only by what came before the cut.
    let outcome = pass.drain(&mut source).and(filled);
    let mut report = pass.sink.report;
    report.tokens = pass.parser.tokens;
    report.bytes_unpacked = source.bytes_unpacked();
    match outcome {
        Err(error) if report.compression == Compression::None => {
            Err(TraceError::Io { report: Box::new(report), source: error })
        }
        Err(error) => Err(TraceError::CutShort { report: Box::new(report), source: error }),
        Ok(()) if report.lines == 0 => Err(TraceError::Empty),
        Ok(()) if report.malformed > 0 && report.records == 0 => {
            Err(TraceError::NothingParsed { report: Box::new(report) })
        }
        Ok(()) => Ok(report),
    }
}

/// The state of one pass.
struct Pass<'p, F> {
    sink: Sink<F>,
    line_bytes_max: usize,
    parser: Parser,
    on_progress: &'p mut dyn FnMut(Progress),
}

impl<F: FnMut(&Record<'_>) -> ControlFlow<()>> Pass<'_, F> {
    fn drain(&mut self, source: &mut Source<'_>) -> io::Result<()> {
        let record_bytes = self.parser.record_bytes();
        let Self { sink, parser, .. } = self;
        loop {
            if sink.report.lines.is_multiple_of(PROGRESS_EVERY) {
                let (bytes, bytes_total) = (source.bytes_packed(), source.packed_bytes);
                (self.on_progress)(Progress { bytes, bytes_total, lines: sink.report.lines });
            }
            let piece = match record_bytes {
                None => next_line(source, self.line_bytes_max)?,
                Some(size) => next_record(source, size)?,
            };
            if matches!(piece, Piece::End) {
                return Ok(());
            }
            sink.report.lines += 1;
            let flow = match piece {
                Piece::Whole(b"") | Piece::End => ControlFlow::Continue(()),
                Piece::Whole(bytes) => parser.parse(bytes, |parsed| sink.take(parsed)),
                Piece::TooLong => sink.take(Err(Reason::TooLong)),
                Piece::Partial => sink.take(Err(Reason::Partial)),
            };
            if flow.is_break() {
                sink.report.ended = Ended::Stopped;
                return Ok(());
            }
        }
    }
}

/// The receiver of the records, and the report.
struct Sink<F> {
    report: ReadReport,
    on_record: F,
}

impl<F: FnMut(&Record<'_>) -> ControlFlow<()>> Sink<F> {
    fn take(&mut self, parsed: Result<Record<'_>, Reason>) -> ControlFlow<()> {
        match parsed {
            Ok(record) => {
                self.report.records += 1;
                (self.on_record)(&record)
            }
            Err(reason) => {
                self.report.note_malformed(reason);
                ControlFlow::Continue(())
            }
        }
    }
}
