//! Why a record cannot be replayed.

use larder_core::WireError;
use larder_core::dispatch::SettingsError;
use larder_core::record::{RecordError, RedoError};
use larder_core::tape::Track;
use std::io;

/// Why a record cannot be replayed. Fault of the record unless it says otherwise; only [`ReplayError::Io`] may go away
/// by itself.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The record cannot be read. Fault of the machine.
    #[error("the record cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It does not begin as a record does.
    #[error("this is no record of a switch: it does not begin with LARDEREC")]
    Magic,
    /// It is of another version.
    #[error("the record is of version {found}, this release reads version {expected}")]
    Version {
        /// Its version.
        found: u8,
        /// The one that can be read.
        expected: u8,
    },
    /// The header makes no sense.
    #[error("the header: {0}")]
    Header(RecordError),
    /// The settings or nodes make no sense.
    #[error("the header: {0}")]
    Settings(#[from] SettingsError),
    /// A frame makes no sense, or does not follow from what came before.
    #[error("record {frame}: {trouble}")]
    Frame {
        /// The frame, counted from 1.
        frame: u64,
        /// What is wrong.
        trouble: Trouble,
    },
}

/// What is wrong with a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The file ends before or in the middle of it.
    #[error("the file ends here without saying that the record does: it was cut, or the switch was killed")]
    NoEnd,
    /// Its bytes are no frame.
    #[error(transparent)]
    Bytes(#[from] WireError),
    /// It cannot be made anew.
    #[error(transparent)]
    Redo(#[from] RedoError),
    /// It is of a generation that it cannot be of.
    #[error("it is of generation {found} where {expected} is due")]
    Generation {
        /// Its generation.
        found: u64,
        /// The one due.
        expected: u64,
    },
    /// Nothing else takes the place before it.
    #[error("it needs {lane} at {place}, and no record brings it there")]
    Gap {
        /// The lane.
        lane: Track,
        /// The place it must come to.
        place: u64,
    },
    /// Another frame has the same place.
    #[error("it is visit {place} to {lane}, and so is record {other}")]
    Twice {
        /// The lane.
        lane: Track,
        /// The place.
        place: u64,
        /// The other frame.
        other: u64,
    },
    /// Too many frames wait.
    #[error("too many records wait for what comes before record {0}")]
    TooManyWaiting(u64),
    /// The number of frames is wrong.
    #[error("the end says that there are {said} records before it, and there are {found}")]
    Count {
        /// What the end says.
        said: u64,
        /// How many there are.
        found: u64,
    },
    /// Something follows the end.
    #[error("something follows the end of the record")]
    AfterEnd,
}

impl ReplayError {
    /// A trouble with a frame.
    pub(super) fn at(frame: u64, trouble: impl Into<Trouble>) -> Self {
        Self::Frame { frame, trouble: trouble.into() }
    }
}
