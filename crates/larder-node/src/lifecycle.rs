//! The node's lifecycle: it serves, drains, and shuts down.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the node drains, and whether it shuts down.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// Whether the node shuts down. Once it does, the limit on connections no longer changes.
    ending: Mutex<bool>,
    draining: AtomicBool,
}

impl Lifecycle {
    /// Makes the health path answer 503, or 200 again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Relaxed);
    }

    /// Returns whether the health path answers 503.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Returns whether the node shuts down.
    pub(crate) fn is_ending(&self) -> bool {
        *self.lock()
    }

    /// Runs `act` unless the node shuts down. The shutdown cannot begin while `act` runs. Returns `None` if the
    /// node shuts down.
    pub(crate) fn run_unless_ending<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        let ending = self.lock();
        (!*ending).then(act)
    }

    /// Begins the shutdown.
    pub(crate) fn begin_to_end(&self) {
        *self.lock() = true;
        self.set_draining(true);
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
