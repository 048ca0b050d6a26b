//! The deadline of a connection.

use super::clock::Clock;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep_until};

/// A deadline that moves with every message. Moving it is cheap: the timer is not reset. If the timer expires
/// too early, it is set again.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
    /// The timer is set and will wake the task, or has expired.
    is_set: bool,
}

impl Deadline {
    /// Creates a deadline at `timeout` from now.
    pub(super) fn new(timeout: Duration) -> Self {
        let at = Clock::after(timeout);
        Self { at, timer: Box::pin(sleep_until(at.into())), is_set: false }
    }

    /// Moves the deadline to `timeout` from now.
    pub(super) fn set(&mut self, timeout: Duration) {
        let at = Clock::after(timeout);
        // A timer that expires after the deadline is useless.
        self.is_set &= at >= self.at;
        self.at = at;
    }

    /// Waits for the deadline. Every call must come from the same task.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_set && !self.timer.is_elapsed() {
                return Poll::Pending;
            }
            // The timer uses the system clock, which is ahead of the clock of the thread.
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
