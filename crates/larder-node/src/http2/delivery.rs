//! Replies on their way to a client of HTTP/2, until their last byte is written.
//!
//! ```text
//! Body -> Paced: pieces of one frame -> hyper -> h2, which holds what the client has no room for -> the socket
//!           |                             `-- Piece: advanced as it is written, dropped when that is done
//!           `---------------- Delivery: the request, until all of these are gone
//! ```
//! h2 takes over what it cannot send yet, and hyper takes a reply for done with its last piece: so a request counts, keeps its place and
//! is watched until its pieces are gone, not until hyper has them.

use super::lock;
use crate::body::Body;
use crate::connection::Shared;
use crate::store::StoreError;
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// A reply goes out in pieces that fill the largest frame which every client takes (RFC 9113 section 4.2), and with its head one record
/// of TLS. Bytes.
const PIECE: usize = (16 << 10) - 9;
/// Requests that did not come to their end, after which a connection ends if they are more than half of all.
const BROKEN_MAX: u64 = 100;
/// Between two looks at whether the socket takes bytes again.
const BLOCKED_PAUSE: Duration = Duration::from_millis(250);

tokio::task_local! {
    /// Of the request that the task serves.
    static PACE: Arc<Pace>;
}

/// The requests of a connection.
#[derive(Debug)]
pub(super) struct UnderWay {
    requests: Mutex<Requests>,
    /// The connection is to end: its client does what clients do not.
    overdone: Notify,
}

#[derive(Debug)]
struct Requests {
    now: usize,
    begun: u64,
    /// Of those that have ended: which did not come to their end.
    broken: u64,
    idle_since: Instant,
}

impl UnderWay {
    pub(super) fn new() -> Self {
        let requests = Requests { now: 0, begun: 0, broken: 0, idle_since: Instant::now() };
        Self { requests: Mutex::new(requests), overdone: Notify::new() }
    }

    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        let mut requests = lock(&self.requests);
        requests.now += 1;
        requests.begun += 1;
        let beside_others = requests.now > 1;
        Turn { under_way: Arc::clone(self), beside_others, answered: false, torn: false }
    }

    /// `None` while there are any.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let requests = lock(&self.requests);
        (requests.now == 0).then_some(requests.idle_since)
    }

    /// Waits until the connection is to end for what its client does.
    pub(super) async fn overdone(&self) {
        self.overdone.notified().await;
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Turn {
    under_way: Arc<UnderWay>,
    /// Others of its connection were, when it came.
    pub(super) beside_others: bool,
    /// Its whole reply was given out, or cannot be.
    answered: bool,
    /// The client did not take it all, or asked what is no request.
    torn: bool,
}

impl Turn {
    /// It is refused for its form.
    pub(super) fn refuse(&mut self) {
        self.torn = true;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut requests = lock(&self.under_way.requests);
        requests.now -= 1;
        requests.idle_since = Instant::now();
        if self.torn || !self.answered {
            requests.broken += 1;
            if requests.broken > BROKEN_MAX && requests.broken * 2 > requests.begun {
                self.under_way.overdone.notify_one();
            }
        }
    }
}

/// What a reply holds until it is delivered: its request counts so long.
struct Delivery {
    pace: Arc<Pace>,
    /// Once its last piece is given.
    body: Mutex<Option<Body>>,
    turn: Mutex<Turn>,
    _place: Option<OwnedSemaphorePermit>,
}

/// How a reply gets on.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Pieces given and not gone.
    pieces: usize,
    /// When the client last took some of them, or the first of these was given.
    moved: Option<Instant>,
    /// Whoever waits until they are gone.
    waiting: Option<Waker>,
}

impl Pace {
    /// That of the request which this task serves.
    pub(super) fn of_task() -> Arc<Self> {
        PACE.try_with(Arc::clone).unwrap_or_default()
    }

    fn given(&self) {
        let mut state = lock(&self.0);
        state.pieces += 1;
        if state.pieces == 1 {
            state.moved = Some(Instant::now());
        }
    }

    fn gone(&self) {
        let mut state = lock(&self.0);
        state.pieces -= 1;
        state.moved = Some(Instant::now());
        if state.pieces == 0
            && let Some(waiting) = state.waiting.take()
        {
            waiting.wake();
        }
    }

    fn moved(&self) {
        lock(&self.0).moved = Some(Instant::now());
    }

    /// Waits until all pieces are gone. One waits at a time: the body's reader, and then the task.
    fn poll_gone(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.pieces == 0 {
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Since when a piece waits without the client's taking any.
    fn waits_since(&self) -> Option<Instant> {
        let state = lock(&self.0);
        state.moved.filter(|_| state.pieces > 0)
    }

    /// Returns when a piece has waited so long, though the connection takes bytes: where it does not, it has a deadline of its own.
    async fn stalled(&self, shared: &Shared, patience: Duration) {
        loop {
            let until = self.waits_since().unwrap_or_else(Instant::now) + patience;
            if until > Instant::now() {
                sleep_until(until).await;
                continue;
            }
            let blocked = shared.blocked_lately(patience);
            if !blocked {
                return;
            }
            tokio::time::sleep(BLOCKED_PAUSE).await;
        }
    }
}

/// Runs the requests of a connection, each in a task of its own, which ends if the client takes nothing of its reply for so long.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) shared: Arc<Shared>,
    pub(super) under_way: Arc<UnderWay>,
    pub(super) patience: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let Self { shared, under_way, patience } = self.clone();
        let pace = Arc::<Pace>::default();
        tokio::spawn(PACE.scope(Arc::clone(&pace), async move {
            let mut stalled = pin!(pace.stalled(&shared, patience));
            tokio::select! {
                biased;
                () = stream => {}
                () = &mut stalled => return shared.counters.write_timeouts.add(1),
            }
            // hyper has done with it; its last piece may still be here.
            tokio::select! {
                biased;
                () = poll_fn(|cx| pace.poll_gone(cx)) => {}
                () = &mut stalled => {
                    shared.counters.write_timeouts.add(1);
                    // Nothing can end it but the end of all.
                    under_way.overdone.notify_one();
                }
            }
        }));
    }
}

/// A reply's body in pieces.
pub(super) struct Paced {
    /// `None` once it is the delivery's.
    body: Option<Body>,
    rest: Bytes,
    /// Pieces that it was cut into.
    cut: usize,
    /// It cannot be given out: no fault of the client's.
    failed: bool,
    delivery: Arc<Delivery>,
}

impl Paced {
    pub(super) fn new(body: Body, turn: Turn, place: Option<OwnedSemaphorePermit>) -> Self {
        let (pace, turn) = (Pace::of_task(), Mutex::new(turn));
        let delivery = Arc::new(Delivery { pace, body: Mutex::default(), turn, _place: place });
        Self { body: Some(body), rest: Bytes::new(), cut: 0, failed: false, delivery }
    }

    /// All of it has been given.
    fn is_given(&self) -> bool {
        self.rest.is_empty() && self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}

impl http_body::Body for Paced {
    type Data = Piece;
    type Error = StoreError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, StoreError>>> {
        let this = &mut *self;
        if this.is_given() {
            // A client that leaves the end of a longer reply loses that reply: hyper must not have done with it before.
            return this.delivery.pace.poll_gone(cx).map(|()| None);
        }
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        if this.rest.is_empty() {
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => this.rest = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    this.failed = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => return this.delivery.pace.poll_gone(cx).map(|()| None),
            }
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE));
        this.cut += 1;
        this.delivery.pace.given();
        Poll::Ready(Some(Ok(Frame::data(Piece { bytes, delivery: Arc::clone(&this.delivery) }))))
    }

    /// A reply of one piece ends with it, without a frame for the end alone.
    fn is_end_stream(&self) -> bool {
        self.cut <= 1 && self.is_given()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint);
        hint.exact().map_or(hint, |left| SizeHint::with_exact(left + self.rest.len() as u64))
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        if self.failed || self.is_given() {
            lock(&self.delivery.turn).answered = true;
        }
        *lock(&self.delivery.body) = self.body.take();
    }
}

/// A piece of a reply, until it is written or thrown away.
pub(super) struct Piece {
    bytes: Bytes,
    delivery: Arc<Delivery>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.delivery.pace.moved();
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.bytes.has_remaining() {
            lock(&self.delivery.turn).torn = true;
        }
        self.delivery.pace.gone();
    }
}
