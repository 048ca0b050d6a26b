//! Pin directories of planes in the BPF file system, where maps and links outlive the process.
//!
//! They are `/sys/fs/bpf/larder/<name>` on most hosts ([`bpffs`]). The pins are in a subdirectory that is named for
//! their layout. Other layouts are removed, because nothing can read them. One process at a time runs an instance: it
//! holds a lock on the directory, which ends with the process.

use super::filter::{self, FILTER};
use super::syscalls;
use crate::bpffs;
use libbpf_rs::{MapCore as _, MapHandle};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Version of the pinned data; must change with their meaning. Sizes of keys and values are compared
/// separately.
const LAYOUT: &str = "layout-2";
/// The map of connections.
pub(super) const FLOWS: &str = "flows";
/// Prefix of the names of links.
const LINK: &str = "link-";
/// Directory of the planes.
pub(crate) const FAMILY: &str = "larder";
const NAME_BYTES_MAX: usize = 64;

/// The pins of one instance.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    /// Held while any clone lives.
    _lock: Arc<OwnedFd>,
}

/// Whether an instance of this name has left pins. `None` if this process may not look.
pub(crate) fn has_pins(name: &str) -> Option<bool> {
    if !bpffs::is_name(name, NAME_BYTES_MAX) {
        return Some(false);
    }
    is_there(fs::metadata(bpffs::existing_instance(FAMILY, name)))
}

fn is_there(looked: io::Result<fs::Metadata>) -> Option<bool> {
    match looked {
        Ok(found) => Some(found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

/// Most entries that are counted for a warning: counting takes a system call each, and a takeover waits for it.
const COUNTED_MAX: usize = 1 << 16;

/// Logs the number of connections in a table that is removed because of its layout, at most [`COUNTED_MAX`]. They may have
/// ended already.
fn warn_of_cut_connections(flows: &Path) {
    let Ok(flows) = MapHandle::from_pinned_path(flows) else { return };
    // Entries that change meanwhile can make the listing start again.
    let connections = flows.keys().take(COUNTED_MAX.min(flows.max_entries() as usize)).count();
    if connections > 0 {
        tracing::warn!(
            connections,
            "forwarding plane: tables of another layout removed, their connections are reset"
        );
    }
}

impl Pins {
    /// Opens the pins of the instance `name` and removes other layouts. `WouldBlock` if another process has them.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        if !bpffs::is_name(name, NAME_BYTES_MAX) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the name is not 1 to 64 of a-z, 0-9, - and _",
            ));
        }
        let instance = bpffs::instance(FAMILY, name)?;
        let directory = instance.join(LAYOUT);
        fs::create_dir_all(&directory)?;
        let lock = bpffs::lock_with_retry(&instance)?;
        for entry in fs::read_dir(&instance)? {
            let path = entry?.path();
            if path != directory {
                warn_of_cut_connections(&path.join(FLOWS));
                fs::remove_dir_all(path)?;
            }
        }
        Ok(Self { directory, _lock: Arc::new(lock) })
    }

    pub(crate) fn path(&self, of: &str) -> PathBuf {
        self.directory.join(of)
    }

    /// Whether there are no pins.
    pub(crate) fn is_empty(&self) -> bool {
        fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.next().is_none())
    }

    pub(crate) fn is_pinned(&self, of: &str) -> bool {
        self.path(of).exists()
    }

    /// Removes a pin, if it exists, and detaches its link or filter.
    pub(crate) fn remove(&self, of: &str) -> io::Result<()> {
        match syscalls::open_pin(&self.path(of)) {
            Ok(pinned) if of.starts_with(LINK) => {
                // Fails if the interface is gone, and with it the attachment.
                let _ = syscalls::link_detach(pinned.as_fd());
            }
            Ok(pinned) if of.starts_with(FILTER) => filter::detach(of, pinned.as_fd()),
            // Without its pin the filter could not be found again, and would stay attached.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
        match fs::remove_file(self.path(of)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the pins of maps, because their layout is another one. Programs that use the maps keep running.
    pub(crate) fn remove_maps(&self) -> io::Result<()> {
        warn_of_cut_connections(&self.path(FLOWS));
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with(LINK) && !name.starts_with(FILTER) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes all pins. Programs are detached; maps are freed once no process has them open.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // Links first: no program may run without the data that user space maintains.
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_by_key(|name| !name.starts_with(LINK) && !name.starts_with(FILTER));
        names.iter().try_for_each(|name| self.remove(name))
    }

    /// Removes all pins and the directories.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        self.clear()?;
        fs::remove_dir(&self.directory)?;
        match self.directory.parent() {
            Some(instance) => fs::remove_dir(instance),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_pins_are_not_reported_as_absent() {
        assert_eq!(is_there(fs::metadata("/")), Some(true));
        assert_eq!(is_there(Err(io::ErrorKind::NotFound.into())), Some(false));
        assert_eq!(is_there(Err(io::ErrorKind::PermissionDenied.into())), None);
    }
}
