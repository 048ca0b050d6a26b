//! Where maps and links outlive the process: a directory per instance in a bpffs.
//!
//! `/sys/fs/bpf/larder/<name>` on most hosts ([`bpffs`]). What is pinned lies in a directory named for its layout; another
//! layout's is removed, since nothing can read it. One process at a time has an instance: it holds a lock on the
//! directory, which ends with it.

use super::filter::{self, FILTER};
use super::syscalls;
use crate::bpffs;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Raised when the meaning of what is pinned changes; sizes are compared besides.
const LAYOUT: &str = "layout-2";
/// How names of links begin.
const LINK: &str = "link-";
/// Of the directories of planes.
pub(crate) const FAMILY: &str = "larder";
const NAME_BYTES_MAX: usize = 64;

/// The pins of one instance.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    /// Held while any copy of this lives.
    _lock: Arc<OwnedFd>,
}

/// Whether an instance of this name has left something; `None` if this process may not see it.
pub(crate) fn remain(name: &str) -> Option<bool> {
    if !bpffs::is_name(name, NAME_BYTES_MAX) {
        return Some(false);
    }
    is_there(fs::metadata(bpffs::instance_if_any(FAMILY, name)))
}

fn is_there(looked: io::Result<fs::Metadata>) -> Option<bool> {
    match looked {
        Ok(found) => Some(found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

impl Pins {
    /// The pins of the instance `name`; other layouts of it are removed. `WouldBlock` if another process has them.
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
        let lock = bpffs::lock_soon(&instance)?;
        for entry in fs::read_dir(&instance)? {
            let path = entry?.path();
            if path != directory {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(Self { directory, _lock: Arc::new(lock) })
    }

    pub(crate) fn path(&self, of: &str) -> PathBuf {
        self.directory.join(of)
    }

    /// Whether nothing is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.next().is_none())
    }

    pub(crate) fn is_pinned(&self, of: &str) -> bool {
        self.path(of).exists()
    }

    /// Removes a pin, if it is there. What a link or filter attached is off its interface then.
    pub(crate) fn remove(&self, of: &str) -> io::Result<()> {
        match syscalls::open_pin(&self.path(of)) {
            Ok(pinned) if of.starts_with(LINK) => {
                // Fails if the interface is gone, and with it what was attached.
                let _ = syscalls::link_detach(pinned.as_fd());
            }
            Ok(pinned) if of.starts_with(FILTER) => filter::detach(of, pinned.as_fd()),
            // Without its pin a filter would be found no more, and go on.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
        match fs::remove_file(self.path(of)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the pins of maps: programs that use them go on.
    pub(crate) fn forget_maps(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with(LINK) && !name.starts_with(FILTER) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes every pin: programs are off; maps are freed once no process has them open.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // Links first: no program may run without what user space keeps up.
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_by_key(|name| !name.starts_with(LINK) && !name.starts_with(FILTER));
        names.iter().try_for_each(|name| self.remove(name))
    }

    /// Removes the directories too.
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
    fn what_may_not_be_seen_is_not_taken_for_nothing() {
        assert_eq!(is_there(fs::metadata("/")), Some(true));
        assert_eq!(is_there(Err(io::ErrorKind::NotFound.into())), Some(false));
        assert_eq!(is_there(Err(io::ErrorKind::PermissionDenied.into())), None);
    }
}
