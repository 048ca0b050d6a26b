//! Locks of the standard library, and snapshots of arc-swap.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, PoisonError, TryLockError};

pub(crate) use arc_swap::{ArcSwap as Swap, ArcSwapOption as SwapOption, Guard};
pub(crate) use std::sync::MutexGuard;

/// A mutex that ignores poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lock, or `None` if another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A lock for one writer or many readers that ignores poisoning.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of this thread, counted in the order in which threads first ask. No decision depends on it.
pub(crate) fn thread_number() -> usize {
    NUMBER.with(|number| *number)
}
