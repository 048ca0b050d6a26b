//! Memory shared with the kernel: the gates, and the pages of the ring buffer.
#![expect(unsafe_code, reason = "mapped memory has no safe interface")]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A mapping of a BPF map's memory. Offsets out of range give `None`.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory lives as long as the mapping and is accessed through atomics, or through `published`, whose caller
// guarantees that it is not written.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `fd` from `offset` on, shared.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, bytes: usize, write: bool) -> io::Result<Self> {
        let rights = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED, fd, offset) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: `offset` is within the mapping.
        Some(unsafe { self.start.add(offset) })
    }

    /// Returns the number at `offset`, a multiple of 8.
    pub(crate) fn u64_at(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: within the mapping, aligned (mappings begin at a page), and alive as long as `self`.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// Returns the number at `offset`, a multiple of 4.
    pub(crate) fn u32_at(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: as in `u64_at`.
        Some(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }

    /// Returns bytes that the kernel has published and does not write again before the caller releases them.
    pub(crate) fn published(&self, offset: usize, bytes: usize) -> Option<&[u8]> {
        let at = self.at(offset, bytes)?;
        // SAFETY: within the mapping and alive as long as `self`; the kernel does not write a published record.
        Some(unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and all references into it have ended.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
