//! A timer with a precision of about ten microseconds.
//!
//! The runtime's timers have a resolution of a millisecond and round up, so that every scheduled request would be late. On
//! Linux this timer is a timerfd (timerfd_create(2)) in the runtime's poll set, elsewhere the runtime's timer.

use std::io;
use std::time::{Duration, Instant};

use crate::plan::StopHandle;

/// Longest sleep before the stop handle is checked again.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A high-resolution timer.
#[derive(Debug)]
pub(crate) struct Timer {
    #[cfg(target_os = "linux")]
    timer: tokio::io::unix::AsyncFd<rustix::fd::OwnedFd>,
}

impl Timer {
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "unsound only for types whose descriptor can change or close; an OwnedFd's cannot, and the successor needs unsafe code"
        )]
        let timer = tokio::io::unix::AsyncFd::with_interest(timer, tokio::io::Interest::READABLE)?;
        Ok(Self { timer })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits until `due`, or until `stop`. Returns whether it had to wait.
    pub(crate) async fn wait_until(&mut self, due: Instant, stop: &StopHandle) -> io::Result<bool> {
        let mut waited = false;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || stop.is_stopped() {
                return Ok(waited);
            }
            waited = true;
            self.sleep(left.min(STOP_POLL_INTERVAL)).await?;
        }
    }

    #[cfg(target_os = "linux")]
    async fn sleep(&mut self, span: Duration) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // `span` is at most `STOP_POLL_INTERVAL`, so the conversion cannot fail.
        let value = Timespec::try_from(span).unwrap_or(zero);
        let once = Itimerspec { it_interval: zero, it_value: value };
        // Setting the timer resets its expiration count, so the count need not be read.
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        self.timer.readable().await?.clear_ready();
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    async fn sleep(&mut self, span: Duration) -> io::Result<()> {
        tokio::time::sleep(span).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_never_fires_early() {
        let mut timer = Timer::new().unwrap();
        for micros in [0, 1, 50, 700, 3_000] {
            let due = Instant::now() + Duration::from_micros(micros);
            timer.wait_until(due, &StopHandle::default()).await.unwrap();
            assert!(Instant::now() >= due);
        }
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait() {
        let mut timer = Timer::new().unwrap();
        let stop = StopHandle::default();
        stop.stop();
        let far = Instant::now() + Duration::from_secs(3_600);
        assert!(!timer.wait_until(far, &stop).await.unwrap());
    }
}
