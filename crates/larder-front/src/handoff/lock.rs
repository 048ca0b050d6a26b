//! Locks that a panic does not spoil.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. What it holds is used on after a panic: each change of it is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
