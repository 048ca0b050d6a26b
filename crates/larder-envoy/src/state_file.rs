//! The state file of a cluster, for Envoy's next start and for the new process of a hot restart; see [`larder_embed::state_file`].
//!
//! The file is written every 10 s and when the cluster ends.

use crate::cluster::Cluster;
use crate::log;
use larder_embed::Embedded;
use larder_embed::state_file::{INTERVAL, Owner, StateFile, StateFileError, nanos_since_1970};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread;

/// The start of this process's use of state files.
static STARTED: LazyLock<u64> = LazyLock::new(nanos_since_1970);

/// Reads the learned state of a cluster; `None` if there is none that can be read.
pub(crate) fn read(cluster: &str, path: &Path) -> Option<Vec<u8>> {
    StateFile::new(path, *STARTED).read().unwrap_or_else(|error| {
        log::warn(&format!("cluster {cluster}: cannot read the state file {}: {error}", path.display()));
        None
    })
}

/// Writes the learned state, unless a process that has started later has the file. Returns whether this process goes on writing.
pub(crate) fn write(cluster: &str, path: &Path, state: &[u8]) -> bool {
    match StateFile::new(path, *STARTED).write(state) {
        Ok(Owner::This) => true,
        Ok(Owner::Later) => {
            log::info(&format!(
                "cluster {cluster}: another process writes the state file {} now",
                path.display()
            ));
            false
        }
        Err(error @ StateFileError::Foreign { .. }) => {
            log::error(&format!("cluster {cluster}: {error}"));
            false
        }
        Err(error @ StateFileError::Write { .. }) => {
            log::limited_error!("cluster {cluster}: {error}");
            true
        }
    }
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
