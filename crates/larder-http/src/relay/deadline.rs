//! One deadline per connection.

use super::clock::Clock;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep_until};

/// A deadline that is moved with every message. Moving it costs nothing: the timer stays where it was set, and is set again when it
/// goes off too early.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
    /// The timer is to wake the task, or has.
    is_set: bool,
}

impl Deadline {
    pub(super) fn new(patience: Duration) -> Self {
        let at = Clock::after(patience);
        Self { at, timer: Box::pin(sleep_until(at.into())), is_set: false }
    }

    /// Moves the deadline to `patience` from now.
    pub(super) fn set(&mut self, patience: Duration) {
        let at = Clock::after(patience);
        // A timer that goes off later than that is of no use.
        self.is_set &= at >= self.at;
        self.at = at;
    }

    /// Whether the deadline has passed. The task must be the same each time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_set && !self.timer.is_elapsed() {
                return Poll::Pending;
            }
            // The timer has gone off by the system's clock, which is ahead of the thread's.
            if self.is_set && Clock::read() >= self.at {
                self.is_set = false;
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.at.into());
            self.is_set = true;
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
