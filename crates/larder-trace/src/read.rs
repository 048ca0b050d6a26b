//! Reading of a trace file in one pass. Each request is passed on, and each malformed line is counted.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use crate::compression::Compression;
use crate::error::TraceError;
use crate::format::json_fields::JsonFields;
use crate::format::{DETECT_BYTES, Format, FormatParser};
use crate::line::{ReadItem, next_line, next_record};
use crate::record::{Reason, Record};
use crate::report::{ReadEnd, ReadReport};
use crate::source::{Source, cannot_start};

/// Number of lines or records between two progress reports.
const PROGRESS_EVERY: u64 = 1 << 15;

/// Limits on the resources of a reader. The [`ReadReport`] states what was dropped because of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest line in bytes. A longer line is skipped and counted as [`Reason::TooLong`]. Default: 64 KiB.
    pub line_bytes_max: usize,
    /// Largest number of distinct targets. Requests for further targets are dropped and counted in
    /// [`ReadReport::over_targets_max`]. Default: 16,777,216.
    pub targets_max: usize,
    /// Largest total size of all target names in bytes, with the same effect. Default: 1 GiB.
    pub target_name_bytes_max: usize,
    /// Largest number of distinct clients. Further clients count as unknown. Default: 4,194,304.
    pub clients_max: usize,
    /// Largest number of requests that [`Trace::load`](crate::Trace::load) keeps in memory. Reading then ends
    /// with [`ReadEnd::RequestsMax`]. Default: 100,000,000 (3.2 GB).
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

/// Options for reading a file.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The format. `None`: it is detected from the first bytes, or for bare keys from the file name.
    pub format: Option<Format>,
    /// The keys of JSON lines. They imply [`Format::Json`].
    pub json_fields: Option<JsonFields>,
    /// Limits on resources.
    pub limits: Limits,
}

impl ReadOptions {
    /// Returns the format, if the options determine it.
    fn format(&self) -> Result<Option<Format>, TraceError> {
        match (self.format, &self.json_fields) {
            (None | Some(Format::Json), Some(_)) => Ok(Some(Format::Json)),
            (Some(Format::Json), None) => Err(TraceError::JsonFields(
                "the format 'json' needs --json-fields: give path=KEY at least".to_owned(),
            )),
            (Some(other), Some(_)) => Err(TraceError::JsonFields(format!(
                "the format '{other}' has its own fields: omit --format or --json-fields"
            ))),
            (format, None) => Ok(format),
        }
    }
}

/// The progress of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file that were read, compressed.
    pub bytes: u64,
    /// Size of the file in bytes, if it is known.
    pub bytes_total: Option<u64>,
    /// Number of lines or records that were read.
    pub lines: u64,
}

/// Reads a file. `on_record` gets every valid request in file order, and may stop the reading. `on_progress`
/// is called every few thousand lines.
///
/// # Errors
/// [`TraceError`] if the file cannot be opened, has an unsupported compression or an unknown format, or is
/// damaged. Malformed lines are no error if there is at least one valid line.
pub fn read(
    path: &Path,
    options: &ReadOptions,
    on_record: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<ReadReport, TraceError> {
    let by_name = path.file_name().and_then(|name| name.to_str()).and_then(Format::of_file_name);
    run(Source::open(path)?, options.format()?.or(by_name), options, on_record, on_progress)
}

/// Reads as [`read`] does, but from any reader, for example a pipe. The bytes may be compressed.
///
/// # Errors
/// As for [`read`].
pub fn read_from(
    reader: impl Read + Send,
    options: &ReadOptions,
    on_record: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<ReadReport, TraceError> {
    run(Source::new(reader, None)?, options.format()?, options, on_record, on_progress)
}

/// Reads a source in the given format, or in the detected one.
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
    let mut pass = ReadPass {
        sink: RecordSink { report: ReadReport::new(format, source.compression), on_record },
        line_bytes_max: options.limits.line_bytes_max,
        parser: FormatParser::new(format, options.json_fields.as_ref()),
        on_progress,
    };
    // If a stream is incomplete within its first bytes, the format is detected from the bytes before the end.
    let outcome = pass.drain(&mut source).and(filled);
    let mut report = pass.sink.report;
    report.tokens = pass.parser.tokens();
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

/// The state of one pass over a file.
struct ReadPass<'p, F> {
    sink: RecordSink<F>,
    line_bytes_max: usize,
    parser: FormatParser,
    on_progress: &'p mut dyn FnMut(Progress),
}

impl<F: FnMut(&Record<'_>) -> ControlFlow<()>> ReadPass<'_, F> {
    /// Reads to the end of the source, or until the receiver stops the reading.
    fn drain(&mut self, source: &mut Source<'_>) -> io::Result<()> {
        let record_bytes = self.sink.report.format.record_bytes();
        let Self { sink, parser, .. } = self;
        loop {
            if sink.report.lines.is_multiple_of(PROGRESS_EVERY) {
                let (bytes, bytes_total) = (source.bytes_packed(), source.packed_bytes);
                (self.on_progress)(Progress { bytes, bytes_total, lines: sink.report.lines });
            }
            let item = match record_bytes {
                None => next_line(source, self.line_bytes_max)?,
                Some(size) => next_record(source, size)?,
            };
            if matches!(item, ReadItem::End) {
                return Ok(());
            }
            sink.report.lines += 1;
            let flow = match item {
                ReadItem::Whole(b"") | ReadItem::End => ControlFlow::Continue(()),
                ReadItem::Whole(bytes) => parser.parse(bytes, |parsed| sink.take(parsed)),
                ReadItem::TooLong => sink.take(Err(Reason::TooLong)),
                ReadItem::Partial => sink.take(Err(Reason::Partial)),
            };
            if flow.is_break() {
                sink.report.ended = ReadEnd::Stopped;
                return Ok(());
            }
        }
    }
}

/// The receiver of the records, and the report.
struct RecordSink<F> {
    report: ReadReport,
    on_record: F,
}

impl<F: FnMut(&Record<'_>) -> ControlFlow<()>> RecordSink<F> {
    fn take(&mut self, parsed: Result<Record<'_>, Reason>) -> ControlFlow<()> {
        match parsed {
            Ok(record) => {
                self.report.records += 1;
                (self.on_record)(&record)
            }
            Err(reason) => {
                self.report.record_malformed(reason);
                ControlFlow::Continue(())
            }
        }
    }
}
