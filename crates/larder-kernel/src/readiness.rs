//! Waiting in a tokio task until the kernel's programs have something to tell.

#![expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that its type keeps")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Says when a descriptor, such as that of a ring of events, becomes readable.
#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Watches a duplicate of `fd`.
    ///
    /// # Errors
    /// If there is no descriptor left, or it is none that can be waited for.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open until it is dropped, always the same, and here nobody else has it.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Returns when something may have come since the last return; then all of it is to be read. May be dropped half-way.
    ///
    /// # Errors
    /// If the runtime ends.
    pub async fn readable(&self) -> io::Result<()> {
        // Forgotten before it is read: what comes in between counts as new.
        self.0.readable().await.map(|mut ready| ready.clear_ready())
    }
}
