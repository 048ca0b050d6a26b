//! How a client takes what is sent to it.
//!
//! h2 takes over what a client has no room for, and TLS takes what the socket has no room for. A reply that has been handed to h2 is
//! therefore not at its client. [`Pace`] follows the pieces of one reply until h2 has written them, and [`WriteDeadline`] the bytes of
//! the connection until its socket has taken them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Since when a connection's socket has taken no bytes, and for how long it took none in all before.
#[derive(Debug, Default)]
pub struct Blocked(Mutex<(Option<Instant>, Duration)>);

impl Blocked {
    /// Whether the socket has no room now.
    pub fn is_blocked(&self) -> bool {
        lock(&self.0).0.is_some()
    }

    /// The time in which the socket had no room, in all.
    pub fn total(&self) -> Duration {
        let (since, before) = *lock(&self.0);
        before + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn set(&self, blocked: bool) {
        let mut state = lock(&self.0);
        match (state.0, blocked) {
            (None, true) => state.0 = Some(Instant::now()),
            (Some(since), false) => *state = (None, state.1 + since.elapsed()),
            _ => {}
        }
    }
}

/// A deadline for a socket that takes no bytes.
#[derive(Debug)]
pub struct WriteDeadline {
    timeout: Duration,
    blocked: Option<Arc<Blocked>>,
    /// Bytes that the socket has taken from TLS.
    sent: u64,
    /// Runs while the socket takes nothing.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteDeadline {
    /// A deadline that notes in `blocked` when the socket has no room.
    pub const fn new(timeout: Duration, blocked: Option<Arc<Blocked>>) -> Self {
        Self { timeout, blocked, sent: 0, timer: None }
    }

    /// Looks at the outcome of a write or flush. `sent` is what [`crate::ClientIo::sent`] says. Returns true if the deadline has passed.
    pub fn is_late<T>(
        &mut self,
        cx: &mut Context<'_>,
        sent: Option<u64>,
        written: &Poll<io::Result<T>>,
    ) -> bool {
        if let Some(blocked) = &self.blocked {
            blocked.set(written.is_pending());
        }
        // What TLS has taken the client has not.
        if sent.map_or(written.is_ready(), |sent| sent != self.sent) {
            self.timer = None;
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

/// The progress of one reply. Its pieces are those that h2 was given and has not written.
#[derive(Debug)]
pub struct Pace {
    blocked: Arc<Blocked>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pieces: usize,
    /// When the client last took part of a piece, or the first of these pieces was given; and how long the connection had been blocked
    /// by then.
    moved: Option<(Instant, Duration)>,
    /// The task that waits until the pieces are gone.
    waiting: Option<Waker>,
}

impl Pace {
    /// A reply of which nothing has been sent, on a connection that notes in `blocked` when its socket has no room.
    pub fn new(blocked: Arc<Blocked>) -> Self {
        Self { blocked, state: Mutex::default() }
    }

    /// Notes that h2 was given a piece.
    pub fn given(&self) {
        let mut state = lock(&self.state);
        state.pieces += 1;
        if state.pieces == 1 {
            state.moved = Some((Instant::now(), self.blocked.total()));
        }
    }

    /// Notes that a piece was written, or thrown away.
    pub fn gone(&self) {
        let mut state = lock(&self.state);
        state.pieces = state.pieces.saturating_sub(1);
        state.moved = Some((Instant::now(), self.blocked.total()));
        if state.pieces == 0
            && let Some(waiting) = state.waiting.take()
        {
            waiting.wake();
        }
    }

    /// Notes that part of a piece was written.
    pub fn moved(&self) {
        lock(&self.state).moved = Some((Instant::now(), self.blocked.total()));
    }

    /// Waits until all pieces are gone. One task waits at a time.
    pub fn poll_gone(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.pieces == 0 {
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// How long a piece has waited for the client to take any of it while the socket took bytes. While the socket takes none, its own
    /// deadline runs.
    fn waits(&self) -> Duration {
        let state = lock(&self.state);
        let Some((since, blocked)) = state.moved.filter(|_| state.pieces > 0) else { return Duration::ZERO };
        since.elapsed().saturating_sub(self.blocked.total().saturating_sub(blocked))
    }

    /// Returns when a piece has waited for so long.
    pub async fn stalled(&self, patience: Duration) {
        loop {
            let left = patience.saturating_sub(self.waits());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}
