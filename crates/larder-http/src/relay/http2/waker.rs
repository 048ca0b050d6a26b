//! The waker of a connection of HTTP/2, whose streams are served by the same task.

use futures_util::task::AtomicWaker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};

/// Rounds of a turn, after which other connections have theirs.
const ROUNDS_MAX: u32 = 32;

/// Wakes the task of a connection; while that runs, only notes that there is more to do. h2 and the streams wake each other with
/// nearly every frame, and each time the task would run once more for nothing.
#[derive(Debug, Default)]
pub(super) struct TurnWaker {
    task: AtomicWaker,
    /// The task runs.
    inside: AtomicBool,
    woken: AtomicBool,
}

impl Wake for TurnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        if !self.inside.load(SeqCst) {
            self.task.wake();
        }
    }
}

impl TurnWaker {
    /// Runs `round` until nothing is left to do, or it has a result. `waker` is this waker.
    pub(super) fn turn<R>(
        &self,
        waker: &Waker,
        cx: &Context<'_>,
        mut round: impl FnMut(&mut Context<'_>) -> Option<R>,
    ) -> Option<R> {
        self.task.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            self.inside.store(true, SeqCst);
            self.woken.store(false, SeqCst);
            let result = round(&mut Context::from_waker(waker));
            // Who wakes from here on wakes the task.
            self.inside.store(false, SeqCst);
            if result.is_some() || !self.woken.load(SeqCst) {
                return result;
            }
        }
        cx.waker().wake_by_ref();
        None
    }
}
