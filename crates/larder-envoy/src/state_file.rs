//! The state file keeps the learned state of a cluster for Envoy's next start, and for the new process of a hot restart.
//!
//! The file is written every 10 s and when the cluster ends, into a temporary file that is renamed. During a hot restart two processes
//! have the cluster. The new process reads the file and writes it at once. The old process sees that the file is not its own any more,
//! and stops writing.

use crate::cluster::Cluster;
use crate::log;
use larder_embed::Embedded;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The time between two writes.
const INTERVAL: Duration = Duration::from_secs(10);

/// The largest file that is read: far above the state of any cluster.
const BYTES_MAX: u64 = 4 << 30;

/// The file that this process has written last: device and inode.
type Identity = (u64, u64);

/// The files that this process has written; `None` after another process has taken a file over.
static WRITTEN: Mutex<BTreeMap<PathBuf, Option<Identity>>> = Mutex::new(BTreeMap::new());

/// Reads the learned state of a cluster; `None` if there is none that can be read.
pub(crate) fn read(cluster: &str, path: &Path) -> Option<Vec<u8>> {
    let read = || {
        let size = fs::metadata(path)?.len();
        if size > BYTES_MAX {
            return Err(io::Error::other(format!("it has {size} bytes: at most {BYTES_MAX}")));
        }
        fs::read(path)
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

/// Writes the learned state, unless another process has taken the file over. Returns whether this process still has the file.
pub(crate) fn write(cluster: &str, path: &Path, state: &[u8]) -> bool {
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let own = written.get(path).copied();
    let is_taken = match own {
        None => false,
        Some(None) => true,
        Some(Some(identity)) => fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) != identity),
    };
    if is_taken {
        written.insert(path.to_owned(), None);
        return false;
    }
    match replace(path, state) {
        Ok(identity) => {
            written.insert(path.to_owned(), Some(identity));
        }
        Err(error) => {
            log::limited_error!("cluster {cluster}: cannot write the state file {}: {error}", path.display());
        }
    }
    true
}

fn replace(path: &Path, state: &[u8]) -> io::Result<Identity> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(state)?;
    let now = file.as_file().metadata()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok((now.dev(), now.ino()))
}

/// Starts a thread that writes the state file of a cluster until the cluster has gone, or another process has taken the file over.
pub(crate) fn keep(cluster: &Arc<Cluster>, path: &Path) {
    let (weak, path, name) = (Arc::downgrade(cluster), path.to_owned(), cluster.name().to_owned());
    let run = move || {
        while let Some(cluster) = weak.upgrade() {
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

    #[test]
    fn a_file_that_another_process_has_replaced_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        assert_eq!(read("c", &path), None);
        assert!(write("c", &path, b"one") && write("c", &path, b"two"));
        assert_eq!(read("c", &path).as_deref(), Some(&b"two"[..]));
        let other = folder.path().join("other");
        fs::write(&other, b"three").expect("written");
        fs::rename(&other, &path).expect("renamed");
        assert!(!write("c", &path, b"four") && !write("c", &path, b"five"));
        assert_eq!(read("c", &path).as_deref(), Some(&b"three"[..]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_loss_of_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(write("c", &folder.path().join("none/state"), b"state"));
    }
}
