//! The waker of an HTTP/2 connection, whose streams are served by one task.

use futures_util::task::AtomicWaker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};

/// Largest number of rounds in a turn. After it, other connections run.
const ROUNDS_MAX: u32 = 32;

/// A waker for the task of a connection. While the task runs, a wake-up only requests another round.
///
/// h2 and the streams wake each other with nearly every frame. Without this waker the task would be scheduled
/// again each time.
#[derive(Debug, Default)]
pub(super) struct TurnWaker {
    task: AtomicWaker,
    /// The task is running a round.
    is_running: AtomicBool,
    /// A wake-up was requested since the start of the round.
    woken: AtomicBool,
}

impl Wake for TurnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        if !self.is_running.load(SeqCst) {
            self.task.wake();
        }
    }
}

impl TurnWaker {
    /// Runs `round` until no work is left, or until it returns a result. `waker` is this waker.
    pub(super) fn run_turn<R>(
        &self,
        waker: &Waker,
        cx: &Context<'_>,
        mut round: impl FnMut(&mut Context<'_>) -> Option<R>,
    ) -> Option<R> {
        self.task.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            self.is_running.store(true, SeqCst);
            self.woken.store(false, SeqCst);
            let result = round(&mut Context::from_waker(waker));
            // A wake-up after this store schedules the task.
            self.is_running.store(false, SeqCst);
            if result.is_some() || !self.woken.load(SeqCst) {
                return result;
            }
        }
        cx.waker().wake_by_ref();
        None
    }
}
