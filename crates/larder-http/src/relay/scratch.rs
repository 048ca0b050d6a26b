//! A buffer for reading, one for all connections of a thread. A connection that waits holds none.

use std::cell::RefCell;

/// Bytes that one read takes at most.
pub(super) const SCRATCH: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends the buffer. Where it is lent already, there is another one for the time being.
pub(super) fn with<R>(act: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            buffer.resize(SCRATCH, 0);
            act(&mut buffer)
        }
        Err(_) => act(&mut vec![0; SCRATCH]),
    })
}
