//! Opens files below a directory, and no others.
//!
//! Linux 5.6 and later resolve a whole path in the kernel under `openat2` with `RESOLVE_BENEATH`. Links inside
//! the directory are followed. Whatever would leave the directory (`..`, an absolute link, a magic link of
//! /proc) fails, without races with renames. If the call is missing or forbidden, the path is walked by
//! component, and no link is followed.

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Attempts of a resolution. A rename during the resolution makes the kernel return EAGAIN.
const ATTEMPTS: usize = 8;

/// A directory whose files may be opened.
#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
    /// Whether paths are walked by component because `openat2` is not available.
    walk: AtomicBool,
}

impl Root {
    /// Opens the directory.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(rustix::fs::CWD, path, flags, Mode::empty())?;
        let root = Self { directory, walk: AtomicBool::new(false) };
        // This detects now whether paths must be walked, so that the start message can say so.
        root.open_file(b".", OFlags::DIRECTORY)?;
        Ok(root)
    }

    /// Returns whether links are refused because `openat2` is not available.
    pub(super) fn refuses_links(&self) -> bool {
        self.walk.load(Relaxed)
    }

    /// Opens the file with the relative path `name` for reading. Opening a pipe does not block, and a terminal
    /// is not acquired.
    pub(super) fn open_file(&self, name: &[u8], extra: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | extra;
        let name = if name.is_empty() { b"." } else { name };
        if !self.walk.load(Relaxed) {
            match self.resolve(name, flags) {
                // A seccomp filter that does not know the call returns EPERM.
                Err(Errno::NOSYS | Errno::PERM) => {}
                result => return result,
            }
            let file = self.walk(name, flags)?;
            self.walk.store(true, Relaxed);
            return Ok(file);
        }
        self.walk(name, flags)
    }

    fn resolve(&self, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            result = openat2(&self.directory, name, flags, Mode::empty(), how);
            if !matches!(result, Err(Errno::AGAIN)) {
                break;
            }
        }
        result
    }

    fn walk(&self, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut parts = name.split(|&b| b == b'/').filter(|part| !part.is_empty()).peekable();
        let mut above: Option<OwnedFd> = None;
        while let Some(part) = parts.next() {
            if part == b".." {
                return Err(Errno::XDEV);
            }
            let directory = above.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
            let last = parts.peek().is_none();
            let flags = if last { flags } else { OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC };
            above = Some(openat(directory, part, flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        above.ok_or(Errno::NOENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn test_root() -> (tempfile::TempDir, Root) {
        let outer = tempfile::tempdir().unwrap();
        let inside = outer.path().join("root");
        fs::create_dir_all(inside.join("sub")).unwrap();
        fs::write(outer.path().join("secret"), "s").unwrap();
        fs::write(inside.join("sub/file"), "f").unwrap();
        symlink("sub/file", inside.join("inner")).unwrap();
        symlink("../secret", inside.join("outer")).unwrap();
        symlink(outer.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("..", inside.join("up")).unwrap();
        let root = Root::open(&inside).unwrap();
        (outer, root)
    }

    const OUTSIDE_NAMES: [&[u8]; 6] =
        [b"outer", b"absolute", b"up/secret", b"../secret", b"sub/../../secret", b"/etc/passwd"];

    #[test]
    fn nothing_outside_the_root_opens() {
        let (_outer, root) = test_root();
        for name in OUTSIDE_NAMES {
            assert!(root.open_file(name, OFlags::empty()).is_err(), "{}", name.escape_ascii());
        }
        assert!(root.open_file(b"sub/file", OFlags::empty()).is_ok());
        if !root.refuses_links() {
            assert!(root.open_file(b"inner", OFlags::empty()).is_ok());
        }
    }

    #[test]
    fn the_walk_follows_no_link() {
        let (_outer, root) = test_root();
        root.walk.store(true, Relaxed);
        for name in OUTSIDE_NAMES {
            assert!(root.open_file(name, OFlags::empty()).is_err(), "{}", name.escape_ascii());
        }
        assert!(root.open_file(b"inner", OFlags::empty()).is_err());
        assert!(root.open_file(b"sub/file", OFlags::empty()).is_ok());
        assert!(root.open_file(b"sub//file", OFlags::empty()).is_ok());
        assert!(root.open_file(b"", OFlags::DIRECTORY).is_ok());
    }
}
