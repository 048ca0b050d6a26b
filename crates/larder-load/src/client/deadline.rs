//! A request timeout without a timer operation for each request.
//!
//! The timer is set once and not touched when requests start and end. When it fires, it compares the time with the current
//! deadline and is set again if that is later. So it is set once for each timeout period instead of once for each request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The deadline of the current request on one connection.
#[derive(Debug)]
pub(crate) struct Deadline {
    until: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        let until = Instant::now() + limit;
        Self { until, sleep: Box::pin(sleep_until(until)) }
    }

    /// Sets the deadline to `now` plus `limit`. `now` must not decrease.
    pub(crate) fn restart(&mut self, now: std::time::Instant, limit: Duration) {
        self.until = Instant::from_std(now) + limit;
    }

    /// Ready when the deadline has passed.
    pub(crate) fn poll_passed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= self.until {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_restarted_deadline_passes_at_its_new_time() {
        let start = Instant::now();
        let mut deadline = Deadline::after(Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(4)).await;
        deadline.restart(Instant::now().into_std(), Duration::from_secs(5));
        poll_fn(|cx| deadline.poll_passed(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 9);
    }
}
