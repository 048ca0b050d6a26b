//! Stores of contents: a directory, or a model of one.
//!
//! A store has three operations: the metadata of a name ([`Store::stat`]), the same with the contents if they
//! are short ([`Store::open_short`]), and a piece of contents ([`Store::read`]). The store knows nothing about
//! the cache, shared reads and HTTP.

mod directory;
mod manifest;
mod model;
mod root;

pub use directory::DirectoryError;
pub use manifest::{ManifestError, fuzz_manifest};

pub(crate) use directory::Directory;
pub(crate) use model::{Model, contents};

use bytes::Bytes;
use http::StatusCode;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The metadata of contents. Two readings have the same contents if all metadata are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Length in bytes.
    pub(crate) size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Whether another change could go unnoticed, because the last change is as recent as the clock is coarse.
    pub(crate) fresh: bool,
    /// Distinguishes contents besides time and length. A directory uses 0, because nodes with equal copies must
    /// agree. A model uses the target's hash.
    pub(crate) tag: u64,
}

impl Meta {
    /// Returns whether `self` and `other` describe the same contents.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.size == other.size && self.modified == other.modified && self.tag == other.tag
    }
}

/// The reason why a store returned no contents. All requests that waited for the read share it.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// No contents of this name can be served: the name is absent, or lies outside of the root.
    #[error("not found")]
    NotFound,
    /// The name is a directory, and was requested without a slash at the end.
    #[error("a directory")]
    IsDirectory,
    /// The operating system denies access.
    #[error("access denied")]
    Denied,
    /// The contents changed during the read. A retry helps.
    #[error("changed while it was read")]
    Changed,
    /// Too many reads wait, or no file can be opened now. A later retry helps.
    #[error("too many reads")]
    Busy,
    /// The operating system cannot read the contents.
    #[error("the store cannot be read: {0}")]
    Io(Arc<io::Error>),
    /// Replies in progress hold the maximum number of chunks. A later retry helps.
    #[error("too many replies in chunks")]
    StreamsFull,
    /// The origin aborted its reply, or was silent for too long.
    #[error("the origin broke off")]
    OriginBroke,
    /// The service node aborted its reply.
    #[error("the service node broke off")]
    PeerBroke,
    /// The client lagged behind other readers of a reply that is too long to be stored.
    #[error("too slow for a reply that is not kept")]
    Slow,
    /// The object has more chunks than can be numbered.
    #[error("too long for the chunk size")]
    TooLong,
    /// The reading task ended without a result: the program shuts down, or has a bug.
    #[error("the read was abandoned")]
    Abandoned,
}

impl StoreError {
    /// Returns the status for the client.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::IsDirectory => StatusCode::MOVED_PERMANENTLY,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::OriginBroke | Self::PeerBroke => StatusCode::BAD_GATEWAY,
            Self::Changed | Self::Busy | Self::StreamsFull | Self::Slow | Self::Abandoned => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Io(_) | Self::TooLong => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the detail for `Cache-Status` and the access log.
    pub(crate) fn detail(&self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::IsDirectory => "directory",
            Self::Denied => "denied",
            Self::Changed => "changed",
            Self::Busy => "reads-full",
            Self::StreamsFull => "streams-full",
            Self::OriginBroke => "origin-broke",
            Self::PeerBroke => "peer-broke",
            Self::Slow => "slow",
            Self::Abandoned => "abandoned",
            Self::Io(_) => "store-error",
            Self::TooLong => "too-long",
        }
    }
}

/// Counts of a store since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreStats {
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) busy: Duration,
}

/// A source of contents.
#[derive(Debug)]
pub(crate) enum Store {
    Directory(Directory),
    Model(Model),
}

impl Store {
    /// Returns `directory` or `model`, as reported in the statistics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::Model(_) => "model",
        }
    }

    /// Returns fields for the log line at the start.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Directory(directory) => directory.describe(),
            Self::Model(model) => model.describe(),
        }
    }

    /// Returns the metadata of `name`, without reading the contents.
    pub(crate) async fn stat(&self, name: &[u8]) -> Result<Meta, StoreError> {
        match self {
            Self::Directory(directory) => directory.stat(name).await,
            Self::Model(model) => model.stat(name),
        }
    }

    /// Returns the metadata of `name`, with its contents if they are at most `most` bytes long.
    pub(crate) async fn open_short(
        &self,
        name: &[u8],
        most: u64,
    ) -> Result<(Meta, Option<Bytes>), StoreError> {
        match self {
            Self::Directory(directory) => directory.open_short(name, most).await,
            Self::Model(model) => model.open_short(name, most).await,
        }
    }

    /// Reads a piece of `name`.
    ///
    /// # Errors
    /// Fails with [`StoreError::Changed`] if the contents no longer match `meta`.
    pub(crate) async fn read(&self, name: &[u8], meta: Meta, piece: Piece) -> Result<Bytes, StoreError> {
        match self {
            Self::Directory(directory) => directory.read(name, meta, piece).await,
            Self::Model(model) => model.read(name, piece).await,
        }
    }

    /// Changes the limit on concurrent reads of a directory.
    pub(crate) fn set_reads_at_once(&self, most: usize) {
        if let Self::Directory(directory) = self {
            directory.set_at_once(most);
        }
    }

    /// Returns whether the contents of a name can change.
    pub(crate) fn can_change(&self) -> bool {
        !matches!(self, Self::Model(_))
    }

    pub(crate) fn stats(&self) -> StoreStats {
        match self {
            Self::Directory(directory) => directory.stats(),
            Self::Model(model) => model.stats(),
        }
    }
}

/// A piece of contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Number of bytes in front of `offset` that the same reply has just read.
    pub(crate) before: u64,
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // XDEV: a link leads out of the root. LOOP: there are too many links, or a link where none may be
            // followed.
            Some(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG) => {
                Self::NotFound
            }
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Self::Busy,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

impl From<rustix::io::Errno> for StoreError {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}
