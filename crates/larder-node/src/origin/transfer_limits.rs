//! Time limits for the other side of a transfer: a deadline for silence, and a minimum rate.
//!
//! ```text
//! credit = credit_max at first, and at most; waiting reduces it by its time, n bytes add n / rate_min
//! late     if one wait exceeds `silence`, or the credit is used up
//! ```
//! Only the time in which the node waits counts. A transfer that is never slower than `rate_min` over
//! `credit_max` may continue for any time. The credit does not grow beyond `credit_max`, so a fast beginning
//! does not pay for a slow rest.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The time limits of a transfer; see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferLimits {
    silence: Duration,
    credit: Duration,
    credit_max: Duration,
    /// Minimum rate in bytes per second; 0 accepts any rate.
    rate_min: u64,
}

impl TransferLimits {
    pub(crate) fn new(silence: Duration, credit_max: Duration, rate_min: u64) -> Self {
        Self { silence, credit: credit_max, credit_max, rate_min }
    }

    /// Returns the longest time that the next wait may take.
    pub(crate) fn next_timeout(&self) -> Duration {
        if self.rate_min == 0 { self.silence } else { self.silence.min(self.credit) }
    }

    pub(crate) fn record_wait(&mut self, time: Duration) {
        self.credit = self.credit.saturating_sub(time);
    }

    pub(crate) fn record_bytes(&mut self, bytes: usize) {
        if let Some(ns) = (bytes as u64).saturating_mul(1_000_000_000).checked_div(self.rate_min) {
            self.credit = self.credit.saturating_add(Duration::from_nanos(ns)).min(self.credit_max);
        }
    }
}

/// The time limits of a transfer, with a timer.
#[derive(Debug)]
pub(crate) struct TransferTimer {
    limits: TransferLimits,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl TransferTimer {
    pub(crate) fn new(limits: TransferLimits) -> Self {
        Self { limits, since: None, timer: None }
    }

    /// Records that the other side is silent. Ready once the other side is late.
    pub(crate) fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let left = self.limits.next_timeout();
        let begins = self.since.is_none();
        let until = *self.since.get_or_insert_with(Instant::now) + left;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if begins {
            timer.as_mut().reset(until);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(())
    }

    /// Records `bytes` from the other side.
    pub(crate) fn record_bytes(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.limits.record_wait(since.elapsed());
        }
        self.limits.record_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_transfer_at_the_minimum_rate_continues_and_a_slower_one_ends() {
        let slow_after = |bytes: usize, pause: Duration| {
            let mut limits = TransferLimits::new(10 * S, 60 * S, 100);
            (0..10_000).find(|_| {
                let late = pause > limits.next_timeout();
                limits.record_wait(pause);
                limits.record_bytes(bytes);
                late
            })
        };
        assert_eq!(slow_after(100, S), None);
        // Each pause takes 1 s and gives 0.5 s back, so the 60 s are used up after 120 pauses.
        assert!(slow_after(50, S).is_some_and(|pauses| (118..=121).contains(&pauses)));
        assert_eq!(slow_after(1_000_000, 11 * S), Some(0), "silence has a limit of its own");
    }

    #[test]
    fn a_fast_start_does_not_compensate_a_slow_rest() {
        let mut limits = TransferLimits::new(10 * S, 60 * S, 100);
        limits.record_bytes(usize::MAX);
        for _ in 0..6 {
            assert_eq!(limits.next_timeout(), 10 * S);
            limits.record_wait(10 * S);
        }
        assert_eq!(limits.next_timeout(), Duration::ZERO);
    }

    #[test]
    fn without_a_minimum_rate_only_the_idle_time_is_limited() {
        let mut limits = TransferLimits::new(10 * S, S, 0);
        for _ in 0..1_000 {
            assert_eq!(limits.next_timeout(), 10 * S);
            limits.record_wait(9 * S);
            limits.record_bytes(1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_runs_only_while_waiting_for_the_peer() {
        let mut timer = TransferTimer::new(TransferLimits::new(10 * S, 12 * S, 1));
        let start = Instant::now();
        assert!(poll_fn(|cx| Poll::Ready(timer.poll_late(cx))).await.is_pending());
        tokio::time::sleep(5 * S).await;
        timer.record_bytes(1);
        // Nobody waits for the other side now.
        tokio::time::sleep(100 * S).await;
        poll_fn(|cx| timer.poll_late(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 5 + 100 + 8, "12 s, less 5, and 1 for the byte");
    }
}
