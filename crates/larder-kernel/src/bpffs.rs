//! Where programs and tables stay while no process holds them: directories in a BPF file system, one for each instance of a
//! plane or guard, `<root>/<family>/<name>`. The root is `/sys/fs/bpf`; on a host that has none mounted there, one of our own
//! is, at `/run/larder/bpf` (`CAP_SYS_ADMIN`).

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, statfs};
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const SYSTEM: &str = "/sys/fs/bpf";
const OURS: &str = "/run/larder/bpf";
/// Longest wait for a child that holds a lock without knowing.
const CHILD_PATIENCE: Duration = Duration::from_millis(200);
/// `BPF_FS_MAGIC` of linux/magic.h.
const MAGIC: u32 = 0xcafe_4a11;

fn is_bpffs(path: &str) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u32 == MAGIC)
}

/// Whether the host has one mounted where all look for it.
pub(crate) fn is_at_its_place() -> bool {
    is_bpffs(SYSTEM)
}

/// Where it is mounted, by us if need be.
fn root() -> io::Result<&'static str> {
    if is_bpffs(SYSTEM) {
        return Ok(SYSTEM);
    }
    fs::create_dir_all(OURS)?;
    // One process mounts, the others wait and see it: two must not mount one over the other.
    let lock = open(
        format!("{OURS}.lock"),
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if !is_bpffs(OURS) {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("larder", OURS, "bpf", flags, Some(c"mode=0700"))?;
    }
    Ok(OURS)
}

/// Whether `name` can name an instance: 1 to `bytes_max` letters, digits, `-` and `_`. So it stays in its directory.
pub(crate) fn is_name(name: &str, bytes_max: usize) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=bytes_max).contains(&name.len()) && name.bytes().all(sound)
}

/// Directory of the instance `name`, which [`is_name`], of a family; it may not be there.
pub(crate) fn instance(family: &str, name: &str) -> io::Result<PathBuf> {
    Ok(Path::new(root()?).join(family).join(name))
}

/// Where the instance would be, without mounting anything.
pub(crate) fn instance_if_any(family: &str, name: &str) -> PathBuf {
    family_if_any(family).join(name)
}

/// Where the instances of a family would be.
pub(crate) fn family_if_any(family: &str) -> PathBuf {
    Path::new(if is_at_its_place() { SYSTEM } else { OURS }).join(family)
}

/// Has the instance whose directory this is for as long as the descriptor is open: one process at a time. `WouldBlock` if
/// another one has it.
pub(crate) fn lock(instance: &Path) -> io::Result<OwnedFd> {
    let lock = open(instance, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// The same, and waits for a moment: what a process has let go of, its children may hold between fork and exec.
pub(crate) fn lock_soon(instance: &Path) -> io::Result<OwnedFd> {
    let until = Instant::now() + CHILD_PATIENCE;
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
    fn a_name_stays_in_its_directory() {
        for name in ["", ".", "..", "a/b", "a b", "\u{e4}", &"x".repeat(33)] {
            assert!(!is_name(name, 32), "{name:?}");
        }
        assert!(is_name("switch-1_A", 32) && is_name(&"x".repeat(32), 32));
    }

    /// Both families, wherever the file system is.
    #[test]
    fn an_instance_is_had_by_one_process() {
        if !crate::netns::root_or_skip("a BPF file system") {
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
