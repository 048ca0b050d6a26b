//! Where programs and tables stay while no process holds them: a directory in a bpffs.
//!
//! `/sys/fs/bpf/larder-guard/<name>/node<version>`; on a host without a bpffs there, one is mounted at `/run/larder/bpf`.
//! The version is that of the tables' meaning: another version is never adopted, only removed.

use super::GuardError;
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::mount::{MountFlags, mount};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const SYSTEM: &str = "/sys/fs/bpf";
const PRIVATE: &str = "/run/larder/bpf";
/// `BPF_FS_MAGIC`, include/uapi/linux/magic.h.
const MAGIC: u64 = 0xcafe_4a11;
const PREFIX: &str = "node";
const VERSION: u32 = 2;
const NAME_BYTES_MAX: usize = 32;

/// Directory of the instance `name`, made if it is not there, and a lock on it: one process at a time has an instance.
pub(super) fn directory(name: &str) -> Result<(PathBuf, File), GuardError> {
    let instance = instance(name)?;
    let directory = instance.join(format!("{PREFIX}{VERSION}"));
    fs::create_dir_all(&directory).map_err(GuardError::io("make a directory in the bpffs"))?;
    let lock = File::open(&instance).map_err(GuardError::io("open a directory in the bpffs"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(GuardError::io("have a guard of this name, as another process has it"))?;
    Ok((directory, lock))
}

/// Removes the directories of the instance `name`, of any version, but for `keep`. Calls `forget` with each before.
pub(super) fn remove(
    name: &str,
    keep: Option<&Path>,
    mut forget: impl FnMut(&Path),
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
            forget(&path);
            fs::remove_dir_all(&path).map_err(GuardError::io("remove what is pinned in the bpffs"))?;
        }
    }
    // Others may still have something there.
    let _ = fs::remove_dir(&base);
    Ok(())
}

fn instance(name: &str) -> Result<PathBuf, GuardError> {
    let sound = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(sound) {
        return Err(GuardError::Config("a name has 1 to 32 letters, digits, - and _"));
    }
    Ok(bpffs().map_err(GuardError::io("find or mount a bpffs"))?.join("larder-guard").join(name))
}

fn bpffs() -> io::Result<PathBuf> {
    if is_bpffs(SYSTEM) {
        return Ok(SYSTEM.into());
    }
    fs::create_dir_all(PRIVATE)?;
    // Two that start at once must not mount one over the other.
    let lock = File::create(format!("{PRIVATE}.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if !is_bpffs(PRIVATE) {
        mount(
            "bpf",
            PRIVATE,
            "bpf",
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
            Some(c"mode=0700"),
        )?;
    }
    Ok(PRIVATE.into())
}

fn is_bpffs(path: &str) -> bool {
    statfs(path).is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|magic| magic == MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_directory() {
        for name in ["", "..", "a/b", "a b", &"x".repeat(33)] {
            assert!(matches!(instance(name), Err(GuardError::Config(_))), "{name:?}");
        }
    }
}
