//! Primitives for targets without an operating system: locks that spin.

use alloc::sync::Arc;

pub(crate) use spin::MutexGuard;

/// A mutex that spins.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(spin::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(spin::Mutex::new(value))
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// Returns the lock, or `None` if another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// A lock for one writer or many readers that spins.
pub(crate) type RwLock<T> = spin::RwLock<T>;

/// A loaded snapshot.
pub(crate) struct Guard<T>(T);

impl<T> core::ops::Deref for Guard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// An `Arc` that is replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Swap<T>(spin::RwLock<Arc<T>>);

impl<T> Swap<T> {
    pub(crate) fn from_pointee(value: T) -> Self {
        Self(spin::RwLock::new(Arc::new(value)))
    }

    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        Guard(self.0.read().clone())
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        *self.0.write() = value;
    }
}

/// An `Arc` or nothing, replaced as a whole.
#[derive(Debug)]
pub(crate) struct SwapOption<T>(spin::RwLock<Option<Arc<T>>>);

impl<T> SwapOption<T> {
    pub(crate) const fn new(value: Option<Arc<T>>) -> Self {
        Self(spin::RwLock::new(value))
    }

    pub(crate) const fn empty() -> Self {
        Self::new(None)
    }

    pub(crate) fn load(&self) -> Guard<Option<Arc<T>>> {
        Guard(self.0.read().clone())
    }

    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        *self.0.write() = value;
    }

    pub(crate) fn swap(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
        core::mem::replace(&mut *self.0.write(), value)
    }
}

/// Returns 0: threads are not known here, so all of them share one stripe of each counter.
pub(crate) const fn thread_number() -> usize {
    0
}
