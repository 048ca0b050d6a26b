//! The report of one pass over a trace file.

use std::fmt;

use serde::Serialize;

use crate::compression::Compression;
use crate::format::Format;
use crate::record::{Reason, TokenSums};

/// Largest number of malformed lines that are listed. Further ones are only counted.
const MALFORMED_NAMED_MAX: usize = 5;

/// A malformed line or record.
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

/// Reason why reading has ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadEnd {
    /// The end of the file was reached.
    EndOfFile,
    /// The receiver of the records has stopped the reading.
    Stopped,
    /// [`Limits::requests_max`](crate::Limits::requests_max) requests were kept. The rest of the file was not
    /// read.
    RequestsMax,
}

/// The report of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadReport {
    /// The format, given or detected.
    pub format: Format,
    /// The compression format of the file.
    pub compression: Compression,
    /// Number of decompressed bytes that were read.
    pub bytes_unpacked: u64,
    /// Number of lines or binary records, including blank and malformed ones.
    pub lines: u64,
    /// Number of requests that were passed on. In Mooncake traces a line has many.
    pub records: u64,
    /// Number of replayable requests: GET, status 200, with a body. [`Trace`](crate::Trace) and the
    /// statistics set it.
    pub replayable: u64,
    /// Number of replayable requests that were dropped, because the trace had
    /// [`Limits::targets_max`](crate::Limits::targets_max) other targets before.
    pub over_targets_max: u64,
    /// Number of malformed lines or records.
    pub malformed: u64,
    /// The first malformed lines.
    pub first_malformed: Vec<MalformedLine>,
    /// Token sums, in formats that have them.
    pub tokens: Option<TokenSums>,
    /// Reason why reading has ended.
    pub ended: ReadEnd,
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
            ended: ReadEnd::EndOfFile,
        }
    }

    pub(crate) fn record_malformed(&mut self, reason: Reason) {
        self.malformed += 1;
        if self.first_malformed.len() < MALFORMED_NAMED_MAX {
            self.first_malformed.push(MalformedLine { line: self.lines, reason });
        }
    }
}
