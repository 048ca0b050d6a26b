//! A timer queue for the users of a thread.
//!
//! The runtime's timers have a resolution of a millisecond, by which every page would be late. This queue uses one [`Timer`]
//! and wakes waiters in the order of their deadlines.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};

use crate::client::timer::Timer;
use crate::plan::StopHandle;

/// Timer setting when no task waits.
const FAR: Duration = Duration::from_secs(3_600);

/// Tasks that wait, by deadline.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    waiting: RefCell<BinaryHeap<Reverse<Waiter>>>,
    changed: Notify,
    next_number: Cell<u64>,
    over: Cell<bool>,
}

#[derive(Debug)]
struct Waiter {
    due: Instant,
    number: u64,
    wake: oneshot::Sender<()>,
}

impl TimerQueue {
    /// Waits until `due`. Returns false if the run ends before.
    pub(crate) async fn wait_until(&self, due: Instant) -> bool {
        if self.over.get() {
            return false;
        }
        if due <= Instant::now() {
            return true;
        }
        let (wake, woken) = oneshot::channel();
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        self.waiting.borrow_mut().push(Reverse(Waiter { due, number, wake }));
        if self.waiting.borrow().peek().is_some_and(|first| first.0.number == number) {
            self.changed.notify_one();
        }
        woken.await.is_ok()
    }

    /// Wakes waiters when they are due, until the run is over; then ends all waits.
    ///
    /// # Errors
    /// If no timer can be created.
    pub(crate) async fn drive(&self, mut over: watch::Receiver<bool>) -> io::Result<()> {
        let (mut timer, never) = (Timer::new()?, StopHandle::default());
        while !*over.borrow_and_update() {
            let next = self.wake_due(Instant::now());
            tokio::select! {
                woken = timer.wait_until(next, &never) => drop(woken?),
                () = self.changed.notified() => {}
                changed = over.changed() => if changed.is_err() { break },
            }
        }
        self.over.set(true);
        // Dropping the senders ends the waits with `false`.
        self.waiting.borrow_mut().clear();
        Ok(())
    }

    /// Wakes all waiters that are due. Returns the deadline of the next one.
    fn wake_due(&self, now: Instant) -> Instant {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(Reverse(first)) = waiting.peek() {
            if first.due > now {
                return first.due;
            }
            if let Some(Reverse(due)) = waiting.pop() {
                // An error means that the wait was cancelled.
                let _ = due.wake.send(());
            }
        }
        now + FAR
    }
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiter {}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due).then(self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[tokio::test]
    async fn waiters_wake_in_the_order_of_their_deadlines_and_never_early() {
        let timers = Rc::new(TimerQueue::default());
        let (over, heard) = watch::channel(false);
        let woken = RefCell::new(Vec::new());
        let started = Instant::now();
        let wait = |ms: u64| {
            let (timers, woken) = (&timers, &woken);
            async move {
                assert!(timers.wait_until(started + Duration::from_millis(ms)).await);
                assert!(started.elapsed() >= Duration::from_millis(ms));
                woken.borrow_mut().push(ms);
            }
        };
        let users = async {
            // Waiters that are due at one poll run in the order of `join!`, so a busy machine needs wide gaps.
            tokio::join!(wait(600), wait(200), wait(400), wait(0));
            over.send_replace(true);
        };
        let (driven, ()) = tokio::join!(timers.drive(heard), users);
        driven.unwrap();
        assert_eq!(*woken.borrow(), [0, 200, 400, 600]);
    }

    #[tokio::test]
    async fn the_end_of_the_run_ends_all_waits() {
        let timers = TimerQueue::default();
        let (over, heard) = watch::channel(false);
        let far = Instant::now() + FAR;
        let users = async {
            let (one, two, ()) = tokio::join!(timers.wait_until(far), timers.wait_until(far), async {
                over.send_replace(true);
            });
            (one, two)
        };
        let (driven, waited) = tokio::join!(timers.drive(heard), users);
        driven.unwrap();
        assert_eq!(waited, (false, false));
        assert!(!timers.wait_until(Instant::now()).await);
    }
}
