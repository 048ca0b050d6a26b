//! The end of a node: it drains, and then ends.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether a node drains, and whether it ends.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// Whether the node ends: how many connections there may be stays as it is.
    ending: Mutex<bool>,
    draining: AtomicBool,
}

impl Lifecycle {
    /// Makes the health path answer 503, or 200 again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Relaxed);
    }

    /// Whether the health path answers 503.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Whether the node ends.
    pub(crate) fn is_ending(&self) -> bool {
        *self.lock()
    }

    /// Does something unless the node ends, which does not begin meanwhile. `None` if it ends.
    pub(crate) fn unless_ending<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        let ending = self.lock();
        (!*ending).then(act)
    }

    /// The node ends from now on.
    pub(crate) fn begin_to_end(&self) {
        *self.lock() = true;
        self.set_draining(true);
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
