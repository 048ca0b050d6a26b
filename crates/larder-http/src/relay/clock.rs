//! A clock that is read about once per turn of the event loop of a thread.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

/// Largest number of calls that return the same reading. It limits the delay on a thread that never waits.
const READINGS_MAX: u32 = 64;
/// The timeout in place of one that the clock cannot represent.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

thread_local! {
    /// The last reading, and the number of further calls that may return it.
    static LAST: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
}

/// The clock of a thread whose runtime was made by [`runtime`]. On other threads, each call reads the system
/// clock.
///
/// The clock is late by the time for which the current batch of tasks has run. Deadlines of seconds are not
/// affected.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    /// Returns the time at which the thread was woken, or a later time.
    pub fn now() -> Instant {
        match LAST.get() {
            Some((at, left @ 1..)) => {
                LAST.set(Some((at, left - 1)));
                at
            }
            Some((_, 0)) => Self::read(),
            None => Instant::now(),
        }
    }

    /// Returns the time after `timeout`.
    pub(super) fn after(timeout: Duration) -> Instant {
        let now = Self::now();
        now.checked_add(timeout).unwrap_or(now + LONGEST_TIMEOUT)
    }

    /// Reads the system clock.
    pub(super) fn read() -> Instant {
        let now = Instant::now();
        LAST.set(Some((now, READINGS_MAX)));
        now
    }
}

/// Creates a runtime with this clock, for the current thread.
///
/// # Errors
/// The operating system refuses a resource of the event loop.
pub fn runtime() -> std::io::Result<LocalRuntime> {
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(|| LAST.set(None))
        .on_thread_unpark(|| {
            Clock::read();
        })
        .build_local(LocalOptions::default())
}
