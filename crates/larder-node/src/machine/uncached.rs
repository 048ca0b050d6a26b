//! Reads files past the operating system's page cache.
//!
//! The node's own cache decides about hits only if the page cache does not answer first. `O_DIRECT` bypasses
//! the page cache on file systems that support it. It needs offsets, lengths and memory aligned to 4 KiB, the
//! largest logical block in use. Elsewhere a file is read through the page cache, and its pages are dropped
//! right after by `posix_fadvise(DONTNEED)`. Pages that another process uses may stay.

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, pread};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

/// Alignment for `O_DIRECT`, in bytes.
pub(crate) const ALIGN: usize = 4_096;

/// The mode in which a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// Through the page cache.
    Cached,
    /// Past the page cache: the file is open with `O_DIRECT`.
    Direct,
    /// Through the page cache, with the pages dropped after the read.
    DropAfter,
}

/// Reads `len` bytes of the file from `offset`, which is a multiple of 4 KiB for [`ReadMode::Direct`]. Returns
/// fewer bytes if the file ends before.
pub(crate) fn read(file: &OwnedFd, offset: u64, len: usize, mode: ReadMode) -> Result<Bytes, Errno> {
    match mode {
        ReadMode::Cached => read_plain(file, offset, len),
        ReadMode::Direct => read_direct(file, offset, len),
        ReadMode::DropAfter => {
            let bytes = read_plain(file, offset, len)?;
            if let Some(len) = NonZeroU64::new(len as u64) {
                fadvise(file, offset, Some(len), Advice::DontNeed)?;
            }
            Ok(bytes)
        }
    }
}

fn read_plain(file: &OwnedFd, offset: u64, len: usize) -> Result<Bytes, Errno> {
    let mut buffer = vec![0; len];
    let filled = fill(file, offset, &mut buffer)?;
    buffer.truncate(filled);
    Ok(buffer.into())
}

fn read_direct(file: &OwnedFd, offset: u64, len: usize) -> Result<Bytes, Errno> {
    let whole = len.next_multiple_of(ALIGN);
    let mut buffer = vec![0; whole + ALIGN];
    let start = buffer.as_ptr().align_offset(ALIGN);
    let filled = fill(file, offset, &mut buffer[start..start + whole])?.min(len);
    // A short object would keep up to two blocks alive that the cache does not count.
    if (buffer.len() - filled) > filled / 8 {
        return Ok(Bytes::copy_from_slice(&buffer[start..start + filled]));
    }
    Ok(Bytes::from(buffer).slice(start..start + filled))
}

/// Reads until the buffer is full or the file ends. Under `O_DIRECT`, a read that ends off a block boundary has
/// reached the end of the file. The next read would be unaligned and fail with EINVAL, or find nothing.
fn fill(file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pread(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) if !filled.is_multiple_of(ALIGN) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, openat};

    #[test]
    fn every_read_mode_gives_the_same_bytes() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        let contents: Vec<u8> = (0..100_001_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &contents).expect("the file is written");
        let open = |extra| openat(CWD, &path, OFlags::RDONLY | extra, Mode::empty());
        let plain = open(OFlags::empty()).expect("the file opens");
        let mut modes = vec![(&plain, ReadMode::Cached), (&plain, ReadMode::DropAfter)];
        let direct = open(OFlags::DIRECT);
        modes.extend(direct.as_ref().ok().map(|file| (file, ReadMode::Direct)));
        for (file, mode) in modes {
            for (offset, len) in
                [(0, 1), (0, 4_096), (0, 100_001), (4_096, 95_905), (98_304, 1_697), (98_304, 9_000)]
            {
                let end = contents.len().min(offset + len);
                let bytes = read(file, offset as u64, len, mode).expect("the file is read");
                assert_eq!(bytes, contents[offset..end], "{mode:?} {offset} {len}");
            }
        }
    }
}
