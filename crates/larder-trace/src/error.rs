//! What can go wrong with a whole file. A bad line is not an error: it is counted in the [`ReadReport`].

use std::io;
use std::path::PathBuf;

use crate::report::ReadReport;

/// Whose fault a [`TraceError`] is, for exit codes and advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file's content: reading it again gives the same.
    File,
    /// The system: a missing file, a permission, a disk. Trying again may help once that is mended.
    System,
    /// The caller's arguments.
    Caller,
}

/// A file that could not be read as a trace, or a trace that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened.
    #[error("{path}: cannot be opened")]
    Open {
        /// The path as given.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Reading failed on the way.
    #[error("reading failed after {} good and {} malformed records", report.records, report.malformed)]
    Io {
        /// What was read until then.
        report: Box<ReadReport>,
        /// The system's reason.
        source: io::Error,
    },
    /// The packed stream ends too early or is damaged.
    #[error(
        "the {} stream is cut short or damaged after {} unpacked bytes ({} good and {} malformed records until there)",
        report.compression, report.bytes_unpacked, report.records, report.malformed
    )]
    CutShort {
        /// What was read until there; its figures are right for the part before the damage.
        report: Box<ReadReport>,
        /// The decoder's reason.
        source: io::Error,
    },
    /// The file is packed in a way that is not unpacked here.
    #[error("the file is packed with {0}, which is not read here: unpack it first")]
    UnknownCompression(&'static str),
    /// No known format fits the first bytes.
    #[error("line {line} has no known format ({what}): \"{sample}\". Known are {known}. If the file has one of them, name \
        it (--format); for other JSON, name its keys (--json-fields)", known = crate::Format::names())]
    UnknownFormat {
        /// What the bytes look like.
        what: &'static str,
        /// Number of the first line that is not blank, from 1.
        line: u64,
        /// Its first bytes, escaped.
        sample: String,
    },
    /// The file holds no bytes.
    #[error("the file is empty")]
    Empty,
    /// A format was given, and not one record of the file fits it.
    #[error("none of {} records is valid {}; the first: {}", report.malformed, report.format,
        report.first_malformed.first().map_or_else(String::new, ToString::to_string))]
    NothingParsed {
        /// What was seen.
        report: Box<ReadReport>,
    },
    /// No trace format has this name.
    #[error("'{0}' is not a trace format; known are {known}", known = crate::Format::names())]
    NoSuchFormat(String),
    /// The keys of JSON lines are wrong, missing, or given for a format that has its own.
    #[error("the fields of JSON lines: {0}")]
    JsonFields(String),
}

impl TraceError {
    /// Whose fault it is.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Open { .. } | Self::Io { .. } => Fault::System,
            Self::NoSuchFormat(_) | Self::JsonFields(_) => Fault::Caller,
            Self::CutShort { .. }
            | Self::UnknownCompression(_)
            | Self::UnknownFormat { .. }
            | Self::Empty
            | Self::NothingParsed { .. } => Fault::File,
        }
    }

    /// What was read until the error, where anything was.
    pub fn report(&self) -> Option<&ReadReport> {
        match self {
            Self::Io { report, .. } | Self::CutShort { report, .. } | Self::NothingParsed { report } => {
                Some(report)
            }
            _ => None,
        }
    }
}
