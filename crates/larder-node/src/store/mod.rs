//! Where contents come from: a directory, or a model of one.
//!
//! A store is asked three things: what a name stands for ([`Store::stat`]), the same with the contents if they are
//! short ([`Store::open_short`]), and a piece of contents ([`Store::read`]). The cache, the grouping of equal reads and
//! HTTP are not its matter.

mod beneath;
mod directory;
mod manifest;
mod model;

pub use directory::DirectoryError;
pub use manifest::{ManifestError, fuzz_manifest};

pub(crate) use directory::Directory;
pub(crate) use model::{Model, contents};

use bytes::Bytes;
use http::StatusCode;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What is known of contents without reading them. Two readings are of the same contents if all of it is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Length in bytes.
    pub(crate) size: u64,
    /// Time of the last change: seconds since 1970 and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Whether a further change could go unnoticed, because the last one is as recent as the clock is coarse.
    pub(crate) fresh: bool,
    /// What tells contents apart besides time and length. A directory has nothing (two nodes with equal copies must
    /// agree), a model the target's hash.
    pub(crate) tag: u64,
}

impl Meta {
    /// Whether this and `other` describe the same contents.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.size == other.size && self.modified == other.modified && self.tag == other.tag
    }
}

/// Why a store gave no contents. Shared by all requests that waited for the read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Nothing of this name can be served: it is absent, or lies outside of the root.
    #[error("not found")]
    NotFound,
    /// It is a directory and was asked for without a slash at the end.
    #[error("a directory")]
    IsDirectory,
    /// The operating system denies access.
    #[error("access denied")]
    Denied,
    /// It changed while it was read. Asking again helps.
    #[error("changed while it was read")]
    Changed,
    /// Too many reads wait already, or no file can be opened now. Asking again later helps.
    #[error("too many reads")]
    Busy,
    /// The operating system cannot read it.
    #[error("the store cannot be read: {0}")]
    Io(Arc<io::Error>),
    /// Replies under way hold as many chunks as they may. Asking again later helps.
    #[error("too many replies in chunks")]
    StreamsFull,
    /// The origin broke off in the middle of a reply, or sent nothing for too long.
    #[error("the origin broke off")]
    OriginBroke,
    /// The service node broke off in the middle of a reply.
    #[error("the service node broke off")]
    PeerBroke,
    /// A client lagged behind others that read the same reply, which is too long to be kept for it.
    #[error("too slow for a reply that is not kept")]
    Slow,
    /// It has more chunks than can be numbered.
    #[error("too long for the chunk size")]
    TooLong,
    /// The reading task ended without an answer: the program is ending, or has a fault of ours.
    #[error("the read was abandoned")]
    Abandoned,
}

impl StoreError {
    /// The status a client gets.
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

    /// The word for `Cache-Status` and the access log.
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
    /// `directory` or `model`, as reported in statistics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::Model(_) => "model",
        }
    }

    /// Fields for the log at the start.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Directory(directory) => directory.describe(),
            Self::Model(model) => model.describe(),
        }
    }

    /// What `name` stands for, without reading it.
    pub(crate) async fn stat(&self, name: &[u8]) -> Result<Meta, StoreError> {
        match self {
            Self::Directory(directory) => directory.stat(name).await,
            Self::Model(model) => model.stat(name),
        }
    }

    /// What `name` stands for, with its contents if they are at most `most` bytes long.
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

    /// The `len` bytes of `name` from `offset`. `before` of the bytes in front of them have just been read.
    /// [`StoreError::Changed`] if the contents are not those of `meta` any more.
    pub(crate) async fn read(&self, name: &[u8], meta: Meta, piece: Piece) -> Result<Bytes, StoreError> {
        match self {
            Self::Directory(directory) => directory.read(name, meta, piece).await,
            Self::Model(model) => model.read(name, piece).await,
        }
    }

    /// So many reads of a directory are done at one time from now on.
    pub(crate) fn set_reads_at_once(&self, most: usize) {
        if let Self::Directory(directory) = self {
            directory.set_at_once(most);
        }
    }

    /// Whether contents can change under a name.
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
    /// How many of the bytes in front of `offset` the same reply has just had read.
    pub(crate) before: u64,
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // XDEV: a link leads out of the root. LOOP: too many links, or one where none may be followed.
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
