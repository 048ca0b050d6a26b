//! One deadline per connection.

use super::clock::Clock;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep_until};

/// A deadline that is moved with every message. Moving it costs nothing: the timer stays where it was set, and is set anew when it
/// goes off too early.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
    /// The timer wakes the task.
    is_set: bool,
}

impl Deadline {
    pub(super) fn new(patience: Duration) -> Self {
        let at = Clock::now() + patience;
        Self { at, timer: Box::pin(sleep_until(at.into())), is_set: false }
    }

    /// So long from now.
    pub(super) fn set(&mut self, patience: Duration) {
        let at = Clock::now() + patience;
        // A timer that goes off later than that is of no use.
        self.is_set &= at >= self.at;
        self.at = at;
    }

    /// Whether the deadline has passed. The task must be the same each time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_set && Clock::now() < self.timer.deadline().into_std() {
                return Poll::Pending;
            }
            if self.is_set && self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if Clock::now() >= self.at {
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
