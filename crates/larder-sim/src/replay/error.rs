//! Errors of a replay.

use larder_core::WireError;
use larder_core::dispatch::SettingsError;
use larder_core::read_log::RouteSequence;
use larder_core::record::{RecordError, ReplayStepError};
use std::io;

/// An error of a replay. The record is at fault unless stated otherwise. Only [`ReplayError::Io`] may be
/// temporary.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The record cannot be read. The machine is at fault.
    #[error("the record cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin with the magic bytes of a record.
    #[error("not a record of a switch: it does not begin with LARDEREC")]
    Magic,
    /// The record has an unsupported version.
    #[error("the record is of version {found}, this release reads version {expected}")]
    Version {
        /// The version of the record.
        found: u8,
        /// The supported version.
        expected: u8,
    },
    /// The header is invalid.
    #[error("the header: {0}")]
    Header(RecordError),
    /// The settings or nodes are invalid.
    #[error("the header: {0}")]
    Settings(#[from] SettingsError),
    /// A frame is invalid, or does not follow from the earlier frames.
    #[error("record {frame}: {cause}")]
    Frame {
        /// The number of the frame, from 1.
        frame: u64,
        /// The cause.
        cause: FrameError,
    },
}

/// The cause of an error in a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The file ends before or within the frame.
    #[error("the record has no end: the file was truncated, or the switch was killed")]
    NoEnd,
    /// The bytes are not a valid frame.
    #[error(transparent)]
    Bytes(#[from] WireError),
    /// The decision or change cannot be repeated.
    #[error(transparent)]
    Redo(#[from] ReplayStepError),
    /// The frame has the wrong generation.
    #[error("it is of generation {found} where {expected} is due")]
    Generation {
        /// The generation of the frame.
        found: u64,
        /// The expected generation.
        expected: u64,
    },
    /// No other frame takes the position before the frame's.
    #[error("missing record: {lane} never reaches position {place}")]
    Gap {
        /// The lane.
        lane: RouteSequence,
        /// The position that the lane must reach.
        place: u64,
    },
    /// Another frame has the same position.
    #[error("duplicate of record {other}: position {place} in {lane}")]
    Twice {
        /// The lane.
        lane: RouteSequence,
        /// The position.
        place: u64,
        /// The number of the other frame.
        other: u64,
    },
    /// Too many frames wait.
    #[error("too many records wait for what comes before record {0}")]
    TooManyWaiting(u64),
    /// The number of frames is wrong.
    #[error("the end says that there are {stated} records before it, and there are {found}")]
    Count {
        /// The number in the end frame.
        stated: u64,
        /// The actual number.
        found: u64,
    },
    /// Bytes follow the end frame.
    #[error("something follows the end of the record")]
    AfterEnd,
}

impl ReplayError {
    /// Creates an error of a frame.
    pub(super) fn at(frame: u64, cause: impl Into<FrameError>) -> Self {
        Self::Frame { frame, cause: cause.into() }
    }
}
