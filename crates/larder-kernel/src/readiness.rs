//! Waits in a tokio task for events of the kernel programs.

#![expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that its type keeps")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Readiness of a descriptor, such as that of an event ring.
#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Watches a duplicate of `fd`.
    ///
    /// # Errors
    ///
    /// If no file descriptor is free, or this one cannot be waited for.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` stays open and unchanged until it is dropped, and nothing else owns it.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Waits until the descriptor may have become readable since the last return. The caller must then read everything.
    /// Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        // Cleared before the read, so that events that arrive in between count as new.
        self.0.readable().await.map(|mut ready| ready.clear_ready())
    }
}
