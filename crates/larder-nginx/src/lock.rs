//! A mutex that processes share. If its owner dies, the next one learns this.

#![expect(
    unsafe_code,
    reason = "mutexes of the C library, which the standard library does not offer between processes"
)]

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;

/// A robust mutex. It is initialized at its final address, in shared memory.
#[repr(transparent)]
pub(crate) struct SharedMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex of the C library may be used by several threads, and by several processes with the attributes that `init` sets.
unsafe impl Sync for SharedMutex {}
// SAFETY: as above. It is not moved after its initialization.
unsafe impl Send for SharedMutex {}

/// The result of taking a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The previous owner has released it.
    Clean,
    /// The previous owner has died, and may have left the protected data half changed.
    OwnerDied,
}

impl SharedMutex {
    /// Initializes a mutex.
    ///
    /// # Safety
    /// `place` is valid for writing, and no one uses a mutex there.
    ///
    /// # Errors
    /// The C library has no such mutexes.
    pub(crate) unsafe fn init(place: *mut Self) -> io::Result<()> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes are valid for writing.
        check(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: the attributes are initialized.
        check(unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) })?;
        // SAFETY: the attributes are initialized.
        check(unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) })?;
        // SAFETY: as the caller promises; the attributes are initialized.
        check(unsafe { libc::pthread_mutex_init(place.cast(), attributes) })
    }

    /// Waits for the mutex, and takes it.
    ///
    /// # Errors
    /// The memory is damaged.
    pub(crate) fn lock(&self) -> io::Result<Taken> {
        // SAFETY: the mutex is initialized.
        self.taken(unsafe { libc::pthread_mutex_lock(self.0.get()) })
    }

    /// Takes the mutex if no one has it; `None` if someone has.
    ///
    /// # Errors
    /// The memory is damaged.
    pub(crate) fn try_lock(&self) -> io::Result<Option<Taken>> {
        // SAFETY: the mutex is initialized.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            libc::EBUSY => Ok(None),
            result => self.taken(result).map(Some),
        }
    }

    /// Releases the mutex, which this thread has.
    pub(crate) fn unlock(&self) {
        // SAFETY: the mutex is initialized. The call has no effect if this thread does not have it.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }

    fn taken(&self, result: libc::c_int) -> io::Result<Taken> {
        if result == libc::EOWNERDEAD {
            // SAFETY: the mutex is initialized, and this thread has it.
            check(unsafe { libc::pthread_mutex_consistent(self.0.get()) })?;
            return Ok(Taken::OwnerDied);
        }
        check(result).map(|()| Taken::Clean)
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
