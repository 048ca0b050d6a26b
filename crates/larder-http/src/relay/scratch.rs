//! Read buffers that the connections of a thread share. An idle connection holds no buffer.

use bytes::Bytes;
use std::cell::RefCell;

/// Size of a read buffer in bytes: 64 KiB and the head of a message.
const BUFFER_BYTES: usize = 68 << 10;
/// Largest number of free buffers that a thread keeps for shared bytes.
const FREE_BUFFERS_MAX: usize = 16;

thread_local! {
    /// The buffer for bytes that do not outlive their read.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The free buffers for shared bytes. The buffer that was used last is taken first, because it is likely
    /// to be in the cache of the processor.
    static FREE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer for bytes that may outlive their read. It returns to its thread when it is dropped.
#[derive(Debug)]
pub(super) struct SharedBuffer {
    bytes: Vec<u8>,
    /// Number of bytes that were read.
    length: usize,
}

impl SharedBuffer {
    /// Takes a free buffer of the thread, or allocates one.
    pub(super) fn take() -> Self {
        let free = FREE_BUFFERS.with_borrow_mut(Vec::pop);
        Self { bytes: free.unwrap_or_else(|| vec![0; BUFFER_BYTES]), length: 0 }
    }

    /// Returns the whole buffer.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the first `length` bytes. Slices of them keep the buffer alive.
    pub(super) fn share(mut self, length: usize) -> Bytes {
        self.length = length;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // A thread that is ending keeps no buffer.
        let _ = FREE_BUFFERS.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < FREE_BUFFERS_MAX {
                free.push(bytes);
            }
        });
    }
}

/// Calls `act` with the buffer of the thread. A nested call uses a temporary buffer.
pub(super) fn with_buffer<R>(act: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            buffer.resize(BUFFER_BYTES, 0);
            act(&mut buffer)
        }
        Err(_) => act(&mut vec![0; BUFFER_BYTES]),
    })
}
