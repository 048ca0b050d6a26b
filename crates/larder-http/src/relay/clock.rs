//! The time, read about once per turn of a thread's event loop.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

/// Readings of the clock that may follow each other without asking the system. A thread that never waits must see time pass.
const READINGS_MAX: u32 = 64;
/// The patience in place of one that the clock cannot represent.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

thread_local! {
    /// The last reading, and how often it may be given again.
    static LAST: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
}

/// The clock of a thread whose runtime is made by [`runtime`]. Elsewhere it is read each time.
///
/// It is behind by as long as the tasks that were woken together have run for, which deadlines of seconds do not notice.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    /// The time at which the thread has woken, or a later one.
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

    /// The time after `patience`.
    pub(super) fn after(patience: Duration) -> Instant {
        let now = Self::now();
        now.checked_add(patience).unwrap_or(now + FAR)
    }

    /// Asks the system.
    pub(super) fn read() -> Instant {
        let now = Instant::now();
        LAST.set(Some((now, READINGS_MAX)));
        now
    }
}

/// A runtime for the thread that calls this, with the clock.
///
/// # Errors
/// The system refuses what an event loop needs.
pub fn runtime() -> std::io::Result<LocalRuntime> {
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(|| LAST.set(None))
        .on_thread_unpark(|| {
            Clock::read();
        })
        .build_local(LocalOptions::default())
}
