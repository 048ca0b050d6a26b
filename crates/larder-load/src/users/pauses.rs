//! Users who wait: one timer for all of a thread's.
//!
//! The runtime's own timers have a grain of a millisecond, by which every page would be late. Here one [`Alarm`] wakes
//! whoever is due, in the order of their times.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};

use crate::client::alarm::Alarm;
use crate::plan::Stop;

/// How far the alarm is set when nobody waits.
const FAR: Duration = Duration::from_secs(3_600);

/// Those who wait.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    waiting: RefCell<BinaryHeap<Reverse<Waiting>>>,
    changed: Notify,
    numbers: Cell<u64>,
    over: Cell<bool>,
}

#[derive(Debug)]
struct Waiting {
    due: Instant,
    number: u64,
    ring: oneshot::Sender<()>,
}

impl Pauses {
    /// Waits until `due`. False if the run is over before.
    pub(crate) async fn until(&self, due: Instant) -> bool {
        if self.over.get() {
            return false;
        }
        if due <= Instant::now() {
            return true;
        }
        let (ring, rung) = oneshot::channel();
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        self.waiting.borrow_mut().push(Reverse(Waiting { due, number, ring }));
        if self.waiting.borrow().peek().is_some_and(|first| first.0.number == number) {
            self.changed.notify_one();
        }
        rung.await.is_ok()
    }

    /// Wakes those who are due, until the run is over; then lets everyone go.
    ///
    /// # Errors
    /// If the system has no timer to give.
    pub(crate) async fn drive(&self, mut over: watch::Receiver<bool>) -> io::Result<()> {
        let (mut alarm, never) = (Alarm::new()?, Stop::default());
        while !*over.borrow_and_update() {
            let next = self.wake(Instant::now());
            tokio::select! {
                rung = alarm.until(next, &never) => drop(rung?),
                () = self.changed.notified() => {}
                changed = over.changed() => if changed.is_err() { break },
            }
        }
        self.over.set(true);
        // Dropping the bells tells that nobody will ring.
        self.waiting.borrow_mut().clear();
        Ok(())
    }

    /// Wakes all who are due; returns when the next one is.
    fn wake(&self, now: Instant) -> Instant {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(Reverse(first)) = waiting.peek() {
            if first.due > now {
                return first.due;
            }
            if let Some(Reverse(due)) = waiting.pop() {
                // Nobody is there any more if the wait was given up.
                let _ = due.ring.send(());
            }
        }
        now + FAR
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due).then(self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[tokio::test]
    async fn they_wake_in_the_order_of_their_times_and_never_early() {
        let pauses = Rc::new(Pauses::default());
        let (over, heard) = watch::channel(false);
        let woken = RefCell::new(Vec::new());
        let begun = Instant::now();
        let wait = |ms: u64| {
            let (pauses, woken) = (&pauses, &woken);
            async move {
                assert!(pauses.until(begun + Duration::from_millis(ms)).await);
                assert!(begun.elapsed() >= Duration::from_millis(ms));
                woken.borrow_mut().push(ms);
            }
        };
        let users = async {
            tokio::join!(wait(30), wait(10), wait(20), wait(0));
            over.send_replace(true);
        };
        let (driven, ()) = tokio::join!(pauses.drive(heard), users);
        driven.unwrap();
        assert_eq!(*woken.borrow(), [0, 10, 20, 30]);
    }

    #[tokio::test]
    async fn the_end_of_the_run_ends_every_wait() {
        let pauses = Pauses::default();
        let (over, heard) = watch::channel(false);
        let far = Instant::now() + FAR;
        let users = async {
            let (one, two, ()) = tokio::join!(pauses.until(far), pauses.until(far), async {
                over.send_replace(true);
            });
            (one, two)
        };
        let (driven, waited) = tokio::join!(pauses.drive(heard), users);
        driven.unwrap();
        assert_eq!(waited, (false, false));
        assert!(!pauses.until(Instant::now()).await);
    }
}
