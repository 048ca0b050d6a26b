//! The time, read once per turn of a thread's event loop.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The clock of a thread whose runtime is made by [`runtime`]. Elsewhere it is read each time.
///
/// Between two waits for events the time stands still. It is behind by as long as the tasks that were woken together have run
/// for, which deadlines of seconds do not notice.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    /// The time at which the thread has woken.
    pub fn now() -> Instant {
        NOW.get().unwrap_or_else(Instant::now)
    }
}

/// A runtime for one thread, with the clock.
///
/// # Errors
/// The system refuses what an event loop needs.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(|| NOW.set(None))
        .on_thread_unpark(|| NOW.set(Some(Instant::now())))
        .build()
}
