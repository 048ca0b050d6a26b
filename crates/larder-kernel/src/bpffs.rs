//! Directories in a BPF file system, where programs and maps stay while no process has them open. Each instance of a
//! plane or guard has one: `<root>/<family>/<name>`. The root is `/sys/fs/bpf`. If no BPF file system is mounted there,
//! a private one is mounted at `/run/larder/bpf` (`CAP_SYS_ADMIN`).

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, statfs};
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const SYSTEM: &str = "/sys/fs/bpf";
const OWN: &str = "/run/larder/bpf";
/// Maximum wait for a child process that holds an inherited lock.
const FORK_RETRY_TIMEOUT: Duration = Duration::from_millis(200);
/// `BPF_FS_MAGIC` of linux/magic.h.
const MAGIC: u32 = 0xcafe_4a11;

fn is_bpffs(path: &str) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u32 == MAGIC)
}

/// Whether a BPF file system is mounted at the standard place.
pub(crate) fn is_at_the_standard_path() -> bool {
    is_bpffs(SYSTEM)
}

/// Returns the root. Mounts a private file system if none is there.
fn root() -> io::Result<&'static str> {
    if is_bpffs(SYSTEM) {
        return Ok(SYSTEM);
    }
    fs::create_dir_all(OWN)?;
    // The lock lets one process mount while the others wait, so that no second file system hides the first.
    let lock = open(
        format!("{OWN}.lock"),
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if !is_bpffs(OWN) {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("larder", OWN, "bpf", flags, Some(c"mode=0700"))?;
    }
    Ok(OWN)
}

/// Whether `name` is a valid instance name: 1 to `bytes_max` letters, digits, `-` and `_`. Such a name cannot leave its
/// directory.
pub(crate) fn is_name(name: &str, bytes_max: usize) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=bytes_max).contains(&name.len()) && name.bytes().all(sound)
}

/// Returns the directory of the instance `name` (see [`is_name`]) of a family. It may not exist.
pub(crate) fn instance(family: &str, name: &str) -> io::Result<PathBuf> {
    Ok(Path::new(root()?).join(family).join(name))
}

/// Returns the directory of an instance without mounting anything.
pub(crate) fn existing_instance(family: &str, name: &str) -> PathBuf {
    existing_family(family).join(name)
}

/// Returns the directory of a family without mounting anything.
pub(crate) fn existing_family(family: &str) -> PathBuf {
    Path::new(if is_at_the_standard_path() { SYSTEM } else { OWN }).join(family)
}

/// Locks the instance with this directory for as long as the descriptor is open. `WouldBlock` if another process has
/// it.
pub(crate) fn lock(instance: &Path) -> io::Result<OwnedFd> {
    let lock = open(instance, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Does the same as [`lock`], but waits briefly: a child of a process that has released the lock may hold it between
/// fork and exec.
pub(crate) fn lock_with_retry(instance: &Path) -> io::Result<OwnedFd> {
    let until = Instant::now() + FORK_RETRY_TIMEOUT;
    loop {
        match lock(instance) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(Duration::from_millis(2));
            }
            locked => return locked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_stays_in_its_directory() {
        for name in ["", ".", "..", "a/b", "a b", "\u{e4}", &"x".repeat(33)] {
            assert!(!is_name(name, 32), "{name:?}");
        }
        assert!(is_name("switch-1_A", 32) && is_name(&"x".repeat(32), 32));
    }

    /// Both families, wherever the file system is mounted.
    #[test]
    fn instance_belongs_to_one_process() {
        if !larder_testkit::needs_root("a BPF file system") {
            return;
        }
        let name = format!("bpffs-test-{}", std::process::id());
        let (plane, guard) =
            ["larder", "larder-guard"].map(|family| instance(family, &name).expect("a path")).into();
        assert_ne!(plane, guard, "a plane and a guard may have the same name");
        fs::create_dir_all(&plane).expect("made");
        assert!(is_bpffs(plane.to_str().expect("text")));
        let held = lock(&plane).expect("free");
        assert_eq!(lock(&plane).map_err(|error| error.kind()).err(), Some(io::ErrorKind::WouldBlock));
        drop(held);
        lock(&plane).expect("free again");
        fs::remove_dir(&plane).expect("removed");
    }
}
