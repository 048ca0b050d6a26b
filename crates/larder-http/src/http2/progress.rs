//! Progress of the bytes that are sent to a client.
//!
//! TLS buffers bytes for which the socket has no room. [`WriteDeadline`] therefore follows the bytes of a
//! connection until its socket has accepted them, and [`SocketProgress`] records when the socket is blocked.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The record of when the socket of a connection accepted bytes. Several tasks share it.
#[derive(Debug)]
pub struct SocketProgress(Mutex<SocketState>);

#[derive(Debug)]
struct SocketState {
    /// Start of the current period in which the socket is blocked; `None` if it accepts bytes.
    blocked_since: Option<Instant>,
    /// Total length of the earlier periods in which the socket was blocked.
    blocked_before: Duration,
    /// Time at which the socket last accepted bytes.
    last_progress: Instant,
}

impl Default for SocketProgress {
    fn default() -> Self {
        Self(Mutex::new(SocketState {
            blocked_since: None,
            blocked_before: Duration::ZERO,
            last_progress: Instant::now(),
        }))
    }
}

impl SocketProgress {
    /// Returns whether the socket is blocked now.
    pub fn is_blocked(&self) -> bool {
        lock(&self.0).blocked_since.is_some()
    }

    /// Returns the total time for which the socket was blocked, including the current period.
    pub fn blocked_time(&self) -> Duration {
        let state = lock(&self.0);
        state.blocked_before + state.blocked_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the time at which the socket last accepted bytes.
    pub fn last_progress(&self) -> Instant {
        lock(&self.0).last_progress
    }

    /// Records that the socket has accepted bytes.
    pub fn record_progress(&self) {
        lock(&self.0).last_progress = Instant::now();
    }

    /// Records whether the socket is blocked.
    fn record_blocked(&self, blocked: bool) {
        let mut state = lock(&self.0);
        match (state.blocked_since, blocked) {
            (None, true) => state.blocked_since = Some(Instant::now()),
            (Some(since), false) => {
                state.blocked_since = None;
                state.blocked_before += since.elapsed();
            }
            _ => {}
        }
    }
}

/// A deadline for a socket that accepts no bytes.
#[derive(Debug)]
pub struct WriteDeadline {
    timeout: Duration,
    progress: Option<Arc<SocketProgress>>,
    /// Bytes that the socket had accepted from TLS at the last write.
    sent: u64,
    /// The running timer; `None` while the socket accepts bytes.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteDeadline {
    /// Creates a deadline that records in `progress` when the socket is blocked.
    pub const fn new(timeout: Duration, progress: Option<Arc<SocketProgress>>) -> Self {
        Self { timeout, progress, sent: 0, timer: None }
    }

    /// Takes the result of a write or flush into account. `sent` is the total number of bytes that the socket
    /// has accepted, if it is known. Returns true if the deadline has expired.
    pub fn poll_expired<T>(
        &mut self,
        cx: &mut Context<'_>,
        sent: Option<u64>,
        written: &Poll<io::Result<T>>,
    ) -> bool {
        if let Some(progress) = &self.progress {
            progress.record_blocked(written.is_pending());
        }
        // TLS may have accepted bytes that the socket has not accepted.
        if sent.map_or(written.is_ready(), |sent| sent != self.sent) {
            self.timer = None;
            if let Some(progress) = &self.progress {
                progress.record_progress();
            }
        }
        self.sent = sent.unwrap_or_default();
        if written.is_ready() {
            return false;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        timer.as_mut().poll(cx).is_ready()
    }
}
