//! The state file keeps the learned state of a dispatcher for the program's next start.
//!
//! ```text
//! file = snapshot  start of the writer: 8 bytes, nanoseconds since 1970  "LRDSTATE"
//! ```
//!
//! The file is written into a temporary file that is renamed. While a program replaces itself, two processes have the dispatcher. The
//! one that has started later keeps the file: the other one sees this in the file, and stops writing.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The time between two writes.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// The largest file that is read: far above the state of any dispatcher.
const BYTES_MAX: u64 = 4 << 30;

/// The end of a file.
const MAGIC: &[u8; 8] = b"LRDSTATE";

/// A state file, as one writer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    path: PathBuf,
    started: u64,
}

/// The process that writes a file from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This writer.
    This,
    /// Another one that has started later. Do not write again.
    Later,
}

/// The reason why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The file belongs to another program, which must not lose it. Writing again fails again.
    #[error("{path} is no state file: remove it, or name another file")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written now. A later attempt may succeed.
    #[error("cannot write the state file {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns the time of the system's clock, as writers note their start.
pub fn nanos_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl StateFile {
    /// Creates the view of a writer that has started at `started`; see [`nanos_since_1970`].
    pub fn new(path: impl Into<PathBuf>, started: u64) -> Self {
        Self { path: path.into(), started }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the snapshot; `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is no state file.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let size = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?.len(),
        };
        if size > BYTES_MAX {
            return Err(io::Error::other(format!("it has {size} bytes: at most {BYTES_MAX}")));
        }
        let mut bytes = fs::read(&self.path)?;
        let Some(end) = bytes.len().checked_sub(16).filter(|end| bytes[end + 8..] == *MAGIC) else {
            return Err(io::Error::other("it is no state file"));
        };
        bytes.truncate(end);
        Ok(Some(bytes))
    }

    /// Writes a snapshot, unless a process that has started later has the file.
    ///
    /// # Errors
    /// The file is another program's, or it cannot be written.
    pub fn write(&self, snapshot: &[u8]) -> Result<Owner, StateFileError> {
        match self.writer() {
            Ok(Some(start)) if start > self.started && start <= nanos_since_1970() => {
                return Ok(Owner::Later);
            }
            Ok(None) => return Err(StateFileError::Foreign { path: self.path.clone() }),
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StateFileError::Write { path: self.path.clone(), source });
            }
            Ok(_) | Err(_) => {}
        }
        let written = self.replace(snapshot);
        written.map_err(|source| StateFileError::Write { path: self.path.clone(), source })?;
        Ok(Owner::This)
    }

    /// Returns the start of the process that has written the file; `None` if it is no state file.
    fn writer(&self) -> io::Result<Option<u64>> {
        let mut file = fs::File::open(&self.path)?;
        if file.metadata()?.len() < 16 {
            return Ok(None);
        }
        file.seek(SeekFrom::End(-16))?;
        let mut end = [[0; 8]; 2];
        file.read_exact(end.as_flattened_mut())?;
        Ok((end[1] == *MAGIC).then(|| u64::from_le_bytes(end[0])))
    }

    fn replace(&self, snapshot: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        for part in [snapshot, &self.started.to_le_bytes(), MAGIC] {
            file.write_all(part)?;
        }
        // After a power loss there is the old file or the new one, and no empty file.
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that a process with this start writes.
    fn file(state: &[u8], start: u64) -> Vec<u8> {
        [state, &start.to_le_bytes(), MAGIC].concat()
    }

    #[test]
    fn the_process_that_has_started_last_keeps_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = nanos_since_1970() - 10;
        let state = StateFile::new(folder.path().join("state"), started);
        assert_eq!(state.read().expect("no file is no error"), None);
        for text in [b"one", b"two"] {
            assert_eq!(state.write(text).expect("written"), Owner::This);
        }
        assert_eq!(state.read().expect("read").as_deref(), Some(&b"two"[..]));
        // A later process takes the file over. One that claims to start in the future is a clock that was set back.
        let [this, later] = [Owner::This, Owner::Later];
        for (start, owner) in [(started + 1, later), (started - 1, this), (u64::MAX, this)] {
            fs::write(state.path(), file(b"other", start)).expect("written");
            assert_eq!(state.write(b"mine").expect("written"), owner);
            let kept = if owner == later { b"other" } else { &b"mine"[..] };
            assert_eq!(state.read().expect("read").as_deref(), Some(kept));
        }
    }

    #[test]
    fn the_file_of_another_program_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateFile::new(folder.path().join("notes"), 1);
        for bytes in [&b""[..], b"short", b"a longer file of another program"] {
            fs::write(state.path(), bytes).expect("written");
            assert!(state.read().is_err());
            assert!(matches!(state.write(b"state"), Err(StateFileError::Foreign { .. })));
            assert_eq!(fs::read(state.path()).expect("it is there"), bytes);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_that_may_pass() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateFile::new(folder.path().join("none/state"), 1);
        assert!(matches!(state.write(b"state"), Err(StateFileError::Write { .. })));
    }
}
