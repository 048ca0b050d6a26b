//! Pin directories of guards in the BPF file system.
//!
//! They are `/sys/fs/bpf/larder-guard/<name>/node<version>` on most hosts ([`bpffs`]). The version is that of the maps'
//! layout: maps of another version are never adopted, only removed.

use super::GuardError;
use crate::bpffs;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Directory of the guards.
pub(crate) const FAMILY: &str = "larder-guard";
const PREFIX: &str = "node";
const VERSION: u32 = 3;
const NAME_BYTES_MAX: usize = 32;

/// Creates the directory of the instance `name` and locks it: only one process at a time can run an instance.
pub(super) fn directory(name: &str) -> Result<(PathBuf, OwnedFd), GuardError> {
    let instance = instance(name)?;
    let directory = instance.join(format!("{PREFIX}{VERSION}"));
    fs::create_dir_all(&directory).map_err(GuardError::io("make a directory in the bpffs"))?;
    let lock = bpffs::lock_with_retry(&instance)
        .map_err(GuardError::io("lock the guard's directory, because another process uses this name"))?;
    Ok((directory, lock))
}

/// Removes the directories of the instance `name`, of any version, except `keep`. Calls `detach` with each before.
pub(super) fn remove(
    name: &str,
    keep: Option<&Path>,
    mut detach: impl FnMut(&Path),
) -> Result<(), GuardError> {
    let base = instance(name)?;
    let entries = match fs::read_dir(&base) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(GuardError::Io { doing: "read the bpffs", source: e }),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| {
            name.strip_prefix(PREFIX).is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit()))
        });
        if ours && keep != Some(&path) {
            detach(&path);
            fs::remove_dir_all(&path).map_err(GuardError::io("remove what is pinned in the bpffs"))?;
        }
    }
    // Others may still have something there.
    let _ = fs::remove_dir(&base);
    Ok(())
}

fn instance(name: &str) -> Result<PathBuf, GuardError> {
    if !bpffs::is_name(name, NAME_BYTES_MAX) {
        return Err(GuardError::Config("a name must have 1 to 32 letters, digits, - and _"));
    }
    bpffs::instance(FAMILY, name).map_err(GuardError::io("find or mount a bpffs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_stays_in_its_directory() {
        for name in ["", "..", "a/b", "a b", &"x".repeat(33)] {
            assert!(matches!(instance(name), Err(GuardError::Config(_))), "{name:?}");
        }
    }
}
