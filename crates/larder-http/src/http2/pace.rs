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

/// How a connection's socket takes bytes.
#[derive(Debug)]
pub struct Blocked(Mutex<Room>);

#[derive(Debug)]
struct Room {
    /// Since when the socket has no room, if it has none.
    since: Option<Instant>,
    /// The time in which it had no room before.
    before: Duration,
    /// When it last took bytes.
    moved_at: Instant,
}

impl Default for Blocked {
    fn default() -> Self {
        Self(Mutex::new(Room { since: None, before: Duration::ZERO, moved_at: Instant::now() }))
    }
}

impl Blocked {
    /// Whether the socket has no room now.
    pub fn is_blocked(&self) -> bool {
        lock(&self.0).since.is_some()
    }

    /// The time in which the socket had no room, in all.
    pub fn total(&self) -> Duration {
        let room = lock(&self.0);
        room.before + room.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// When the socket last took bytes.
    pub fn moved_at(&self) -> Instant {
        lock(&self.0).moved_at
    }

    /// Notes that the socket has taken bytes.
    pub fn moved(&self) {
        lock(&self.0).moved_at = Instant::now();
    }

    fn set(&self, blocked: bool) {
        let mut room = lock(&self.0);
        match (room.since, blocked) {
            (None, true) => room.since = Some(Instant::now()),
            (Some(since), false) => {
                room.since = None;
                room.before += since.elapsed();
            }
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

    /// Looks at the outcome of a write or flush. `sent` counts bytes that the socket has taken, if that is known. Returns true if the deadline has passed.
    pub fn is_late<T>(
        &mut self,
        cx: &mut Context<'_>,
        sent: Option<u64>,
        written: &Poll<io::Result<T>>,
    ) -> bool {
        if let Some(blocked) = &self.blocked {
            blocked.set(written.is_pending());
        }
        // TLS may have taken bytes that the client has not.
        if sent.map_or(written.is_ready(), |sent| sent != self.sent) {
            self.timer = None;
            if let Some(blocked) = &self.blocked {
                blocked.moved();
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

    /// Returns when a piece has waited for so long; `patience` may change meanwhile.
    pub async fn stalled(&self, patience: impl Fn() -> Duration) {
        loop {
            let left = patience().saturating_sub(self.waits());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}
