//! Reader of a BPF ring buffer (kernel: kernel/bpf/ringbuf.c, Documentation/bpf/ringbuf.rst).
//!
//! First page: the consumer position, which this side writes. Second page: the producer position, which the kernel
//! writes. Then the data, mapped twice in a row, so that a record that wraps is contiguous. A record is its length with
//! two flags, a page offset, the bytes, and padding to 8.

use super::mapping::Mapping;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: usize = 8;

/// A reader. At most one at a time per ring.
#[derive(Debug)]
pub(crate) struct Ring {
    ours: Mapping,
    kernels: Mapping,
    page: usize,
    mask: u64,
}

impl Ring {
    /// Maps the ring `fd` with `bytes` of data, a power of two.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let ours = Mapping::new(fd, 0, page, true)?;
        let kernels = Mapping::new(fd, page as u64, page + 2 * bytes as usize, false)?;
        Ok(Self { ours, kernels, page, mask: u64::from(bytes) - 1 })
    }

    /// Passes pending records to `visit` in order, at most `limit`. Returns their number.
    pub(crate) fn read(&mut self, limit: usize, mut visit: impl FnMut(&[u8])) -> usize {
        let (Some(ours), Some(kernels)) = (self.ours.u64_at(0), self.kernels.u64_at(0)) else { return 0 };
        let mut read = ours.load(Ordering::Relaxed);
        let mut records = 0;
        while records < limit && read < kernels.load(Ordering::Acquire) {
            let at = self.page + usize::try_from(read & self.mask).unwrap_or(0);
            let Some(header) = self.kernels.u32_at(at) else { break };
            let header = header.load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let bytes = (header & !DISCARDED) as usize;
            if header & DISCARDED == 0
                && let Some(record) = self.kernels.published(at + HEADER_BYTES, bytes)
            {
                visit(record);
                records += 1;
            }
            read += (bytes + HEADER_BYTES).next_multiple_of(8) as u64;
            ours.store(read, Ordering::Release);
            // The kernel wakes the reader only if everything before its record has been read. So the consumer position
            // must be visible before the check for more.
            fence(Ordering::SeqCst);
        }
        records
    }
}
