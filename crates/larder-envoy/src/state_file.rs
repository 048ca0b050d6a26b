//! The state file keeps the learned state of a cluster for Envoy's next start, and for the new process of a hot restart.
//!
//! ```text
//! file = snapshot  start of the writing process: 8 bytes, nanoseconds since 1970  "LRDSTATE"
//! ```
//!
//! The file is written every 10 s and when the cluster ends, into a temporary file that is renamed. During a hot restart two processes
//! have the cluster. The one that has started later keeps the file: the other one sees this in the file, and stops writing.

use crate::cluster::Cluster;
use crate::log;
use larder_embed::Embedded;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, SystemTime};

/// The time between two writes.
const INTERVAL: Duration = Duration::from_secs(10);

/// The largest file that is read: far above the state of any cluster.
const BYTES_MAX: u64 = 4 << 30;

/// The end of a file.
const MAGIC: &[u8; 8] = b"LRDSTATE";

/// The start of this process's use of state files. Nanoseconds since 1970.
static STARTED: LazyLock<u64> = LazyLock::new(nanos_since_1970);

fn nanos_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the learned state of a cluster; `None` if there is none that can be read.
pub(crate) fn read(cluster: &str, path: &Path) -> Option<Vec<u8>> {
    let _ = *STARTED;
    let read = || {
        let size = fs::metadata(path)?.len();
        if size > BYTES_MAX {
            return Err(io::Error::other(format!("it has {size} bytes: at most {BYTES_MAX}")));
        }
        let mut bytes = fs::read(path)?;
        let Some(end) = bytes.len().checked_sub(16).filter(|end| bytes[end + 8..] == *MAGIC) else {
            return Err(io::Error::other("it is no state file"));
        };
        bytes.truncate(end);
        Ok(bytes)
    };
    match read() {
        Ok(state) => Some(state),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            log::warn(&format!("cluster {cluster}: cannot read the state file {}: {error}", path.display()));
            None
        }
    }
}

/// Writes the learned state, unless a process that has started later has the file. Returns whether this process has it.
pub(crate) fn write(cluster: &str, path: &Path, state: &[u8]) -> bool {
    match writer(path) {
        Ok(start) if start > *STARTED && start <= nanos_since_1970() => {
            log::info(&format!(
                "cluster {cluster}: another process writes the state file {} now",
                path.display()
            ));
            return false;
        }
        // Another program's file is not replaced.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::error(&format!("cluster {cluster}: does not write {}: {error}", path.display()));
            return false;
        }
        Ok(_) | Err(_) => {}
    }
    if let Err(error) = replace(path, state) {
        log::limited_error!("cluster {cluster}: cannot write the state file {}: {error}", path.display());
    }
    true
}

/// Returns the start of the process that has written a file.
fn writer(path: &Path) -> io::Result<u64> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::End(-16))?;
    let mut end = [[0; 8]; 2];
    file.read_exact(end.as_flattened_mut())?;
    if end[1] == *MAGIC {
        Ok(u64::from_le_bytes(end[0]))
    } else {
        Err(io::Error::other("it is no state file"))
    }
}

fn replace(path: &Path, state: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    for part in [state, &STARTED.to_le_bytes(), MAGIC] {
        file.write_all(part)?;
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Starts a thread that writes the state file of a cluster until the cluster has gone, or another process has taken the file over.
pub(crate) fn keep(cluster: &Arc<Cluster>, path: &Path) {
    let (weak, path, name) = (Arc::downgrade(cluster), path.to_owned(), cluster.name().to_owned());
    let run = move || {
        while let Some(cluster) = weak.upgrade().filter(|cluster| cluster.is_current()) {
            let state = cluster.dispatcher().map(Embedded::save);
            drop(cluster);
            if state.is_some_and(|state| !write(&name, &path, &state)) {
                return;
            }
            thread::sleep(INTERVAL);
        }
    };
    let started = thread::Builder::new().name("larder-state".to_owned()).spawn(run);
    if let Err(error) = started {
        log::error(&format!("cluster {}: the state file is not written: {error}", cluster.name()));
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
        let path = folder.path().join("state");
        assert_eq!(read("c", &path), None);
        assert!(write("c", &path, b"one") && write("c", &path, b"two"));
        assert_eq!(read("c", &path).as_deref(), Some(&b"two"[..]));
        // A later process takes the file over. One that claims to start in the future is a clock that was set back.
        for (start, is_taken) in [(*STARTED + 1, true), (*STARTED - 1, false), (u64::MAX, false)] {
            fs::write(&path, file(b"other", start)).expect("written");
            assert_eq!(read("c", &path).as_deref(), Some(&b"other"[..]));
            assert_eq!(!write("c", &path, b"own"), is_taken);
        }
        assert_eq!(read("c", &path).as_deref(), Some(&b"own"[..]));
    }

    #[test]
    fn a_file_of_another_kind_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        for bytes in [&b""[..], b"short", b"0123456789abcdef and more"] {
            fs::write(&path, bytes).expect("written");
            assert_eq!(read("c", &path), None);
            assert!(!write("c", &path, b"own"));
            assert_eq!(fs::read(&path).expect("it is there"), bytes);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_loss_of_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(write("c", &folder.path().join("none/state"), b"state"));
    }
}
