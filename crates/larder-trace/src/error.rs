//! Errors that concern a whole file. A malformed line is not an error: it is counted in the [`ReadReport`].

use std::io;
use std::path::PathBuf;

use crate::report::ReadReport;

/// The cause of a [`TraceError`], for exit codes and advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The content of the file. Reading it again gives the same error.
    File,
    /// The system, for example a missing file, a permission or a disk. Reading may succeed after a repair.
    System,
    /// The arguments of the caller.
    Caller,
}

/// Reason why a file could not be read as a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The path, as given.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Reading failed before the end of the file.
    #[error("reading failed after {} valid and {} malformed records", report.records, report.malformed)]
    Io {
        /// The report of the part that was read.
        report: Box<ReadReport>,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The compressed stream is incomplete or damaged.
    #[error(
        "the {} stream is truncated or damaged after {} decompressed bytes ({} valid and {} malformed records before)",
        report.compression, report.bytes_unpacked, report.records, report.malformed
    )]
    CutShort {
        /// The report of the part before the damage.
        report: Box<ReadReport>,
        /// The error of the decoder.
        source: io::Error,
    },
    /// The file has a compression format that is not supported.
    #[error("the file is compressed with {0}, which is not supported: decompress it first")]
    UnknownCompression(&'static str),
    /// The first bytes have no known format.
    #[error("line {line} has no known format ({what}): \"{sample}\". Known are {known}. If the file has one of them, name \
        it (--format); for other JSON, name its keys (--json-fields)", known = crate::Format::names())]
    UnknownFormat {
        /// The kind of the bytes.
        what: &'static str,
        /// Number of the first line that is not blank, from 1.
        line: u64,
        /// The first bytes of this line, escaped.
        sample: String,
    },
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// A format was given, and no record of the file has it.
    #[error("none of {} records is valid {}; the first: {}", report.malformed, report.format,
        report.first_malformed.first().map_or_else(String::new, ToString::to_string))]
    NothingParsed {
        /// The report of the file.
        report: Box<ReadReport>,
    },
    /// No line of the file is a prompt.
    #[error("none of {} lines is a prompt, neither of Mooncake's format nor a request of OpenAI's API; the first: {}",
        report.malformed, report.first_malformed.first().map_or_else(String::new, ToString::to_string))]
    NoPrompts {
        /// The report of the file.
        report: Box<ReadReport>,
    },
    /// No format has this name.
    #[error("'{0}' is not a trace format; known are {known}", known = crate::Format::names())]
    NoSuchFormat(String),
    /// The keys of JSON lines are invalid or missing, or given for a format with its own keys.
    #[error("the fields of JSON lines: {0}")]
    JsonFields(String),
}

impl TraceError {
    /// Returns the cause of the error.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Open { .. } | Self::Io { .. } => Fault::System,
            Self::NoSuchFormat(_) | Self::JsonFields(_) => Fault::Caller,
            Self::CutShort { .. }
            | Self::UnknownCompression(_)
            | Self::UnknownFormat { .. }
            | Self::Empty
            | Self::NothingParsed { .. }
            | Self::NoPrompts { .. } => Fault::File,
        }
    }

    /// Returns the report of the part that was read, if there is one.
    pub fn report(&self) -> Option<&ReadReport> {
        match self {
            Self::Io { report, .. } | Self::CutShort { report, .. } | Self::NothingParsed { report } => {
                Some(report)
            }
            _ => None,
        }
    }
}
