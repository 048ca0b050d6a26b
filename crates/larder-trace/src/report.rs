//! The account of one pass over a trace file.

use std::fmt;

use serde::Serialize;

use crate::compression::Compression;
use crate::format::Format;
use crate::record::Reason;

/// Malformed lines that are named; further ones are only counted.
const MALFORMED_NAMED_MAX: usize = 5;

/// A line or record that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MalformedLine {
    /// Number of the line or record, from 1.
    pub line: u64,
    /// The reason.
    pub reason: Reason,
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// The end of reading, where that is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// At the end of the file.
    EndOfFile,
    /// The receiver of the records wanted no more.
    Stopped,
    /// [`Limits::requests_max`](crate::Limits::requests_max) requests were kept; the rest of the file was not read.
    RequestsMax,
}

/// Token sums of an LLM trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenSums {
    /// Input tokens of all requests.
    pub input: u64,
    /// Output tokens of all requests.
    pub output: u64,
}

/// The account of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadReport {
    /// The format, as given or told.
    pub format: Format,
    /// The packing of the file.
    pub compression: Compression,
    /// Unpacked bytes read.
    pub bytes_unpacked: u64,
    /// Lines (or binary records) seen, blank and malformed ones included.
    pub lines: u64,
    /// Requests handed over. In Mooncake traces a line holds many.
    pub records: u64,
    /// Requests that are replayable: GET, status 200, a body. Counted by [`Trace`](crate::Trace) and statistics.
    pub replayable: u64,
    /// Replayable requests dropped because their target came after [`Limits::targets_max`](crate::Limits::targets_max) others.
    pub over_targets_max: u64,
    /// Malformed lines (or records).
    pub malformed: u64,
    /// The first few of them.
    pub first_malformed: Vec<MalformedLine>,
    /// Token sums, in formats that have them.
    pub tokens: Option<TokenSums>,
    /// The end of reading.
    pub ended: Ended,
}

impl ReadReport {
    pub(crate) const fn new(format: Format, compression: Compression) -> Self {
        Self {
            format,
            compression,
            bytes_unpacked: 0,
            lines: 0,
            records: 0,
            replayable: 0,
            over_targets_max: 0,
            malformed: 0,
            first_malformed: Vec::new(),
            tokens: None,
            ended: Ended::EndOfFile,
        }
    }

    pub(crate) fn note_malformed(&mut self, reason: Reason) {
        self.malformed += 1;
        if self.first_malformed.len() < MALFORMED_NAMED_MAX {
            self.first_malformed.push(MalformedLine { line: self.lines, reason });
        }
    }
}
