//! Buffers for reading, which the connections of a thread share. A connection that waits holds none.

use bytes::Bytes;
use std::cell::RefCell;

/// Bytes that one read takes at most: 64 KiB with the head of a message.
const BYTES: usize = 68 << 10;
/// Buffers for bytes that outlive their read which a thread keeps.
const KEPT_MAX: usize = 16;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The buffer that was used last comes first: the processor has it at hand.
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer for bytes that perhaps outlive their read. It goes back to its thread when it is dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Bytes that were read.
    length: usize,
}

impl Buffer {
    pub(super) fn take() -> Self {
        let kept = KEPT.with_borrow_mut(Vec::pop);
        Self { bytes: kept.unwrap_or_else(|| vec![0; BYTES]), length: 0 }
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The first `length` bytes, in parts that may outlive each other.
    pub(super) fn share(mut self, length: usize) -> Bytes {
        self.length = length;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // A thread that ends keeps nothing.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(bytes);
            }
        });
    }
}

/// Lends the buffer of the thread. Where it is lent already, there is another one for the time being.
pub(super) fn with<R>(act: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            buffer.resize(BYTES, 0);
            act(&mut buffer)
        }
        Err(_) => act(&mut vec![0; BYTES]),
    })
}
