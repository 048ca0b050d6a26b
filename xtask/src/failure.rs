//! Why a task ends without success.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The reason why a task or a step of the gate did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are wrong.
    Usage(String),
    /// A program or file that the task needs is absent.
    Missing(String),
    /// A command could not be started or did not succeed.
    Command { line: String, outcome: String },
    /// A file, directory or pipe could not be used.
    File { path: PathBuf, error: io::Error },
    /// A result is not as it must be.
    Check(String),
    /// The task has printed the reason already.
    Reported,
}

impl Failure {
    /// The failure of an operation on `path`, for `map_err`.
    pub(crate) fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::File { path: path.as_ref().to_owned(), error }
    }

    /// 2 for wrong arguments, 77 where something is missing, as test drivers have it for skips, otherwise 1.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Missing(_) => 77,
            Failure::Command { .. } | Failure::File { .. } | Failure::Check(_) | Failure::Reported => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Missing(text) | Failure::Check(text) => f.write_str(text),
            Failure::Command { line, outcome } => write!(f, "command failed ({outcome}): {line}"),
            Failure::File { path, error } => write!(f, "{}: {error}", path.display()),
            Failure::Reported => f.write_str("failed"),
        }
    }
}
