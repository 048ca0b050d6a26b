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
use larder_http::http2::{Allowance, Blocked, Pace};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// A reply goes out in pieces that fill the largest frame which every client takes (RFC 9113 section 4.2), and with its head one record
/// of TLS. Bytes.
const PIECE: usize = (16 << 10) - 9;
/// Between two looks at whether there is a place.
const PLACE_PAUSE: Duration = Duration::from_millis(50);

tokio::task_local! {
    /// Of the request that the task serves.
    static PACE: Arc<Pace>;
}

/// The requests of a connection.
#[derive(Debug)]
pub(super) struct UnderWay {
    requests: Mutex<Requests>,
    /// One of them has ended.
    ended: Notify,
    /// Its client breaks off more than clients do.
    overdone: Notify,
    /// The end of a reply cannot be delivered, nor taken back.
    stuck: Notify,
}

#[derive(Debug)]
struct Requests {
    now: usize,
    begun: u64,
    /// One of them goes by the connection's own place.
    own_place: bool,
    /// Requests that the client may still break off.
    breaks: Allowance,
    idle_since: Instant,
}

impl UnderWay {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let requests =
            Requests { now: 0, begun: 0, own_place: false, breaks: Allowance::resets(now), idle_since: now };
        Self {
            requests: Mutex::new(requests),
            ended: Notify::new(),
            overdone: Notify::new(),
            stuck: Notify::new(),
        }
    }

    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        let mut requests = lock(&self.requests);
        requests.now += 1;
        requests.begun += 1;
        let under_way = Arc::clone(self);
        Turn { under_way, own_place: false, answered: false, torn: false, excused: false }
    }

    /// Whether there has been none.
    pub(super) fn is_unused(&self) -> bool {
        lock(&self.requests).begun == 0
    }

    /// `None` while there are any.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let requests = lock(&self.requests);
        (requests.now == 0).then_some(requests.idle_since)
    }

    /// Waits until the client has broken off more than clients do.
    pub(super) async fn overdone(&self) {
        self.overdone.notified().await;
    }

    /// Waits until the connection must end, since the end of a reply cannot be delivered.
    pub(super) async fn stuck(&self) {
        self.stuck.notified().await;
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Turn {
    under_way: Arc<UnderWay>,
    /// It goes by the connection's own place.
    own_place: bool,
    /// Its whole reply was given out.
    answered: bool,
    /// The client did not take it all, or asked what is no request.
    torn: bool,
    /// If it does not come to its end, that is no fault of the client's.
    excused: bool,
}

impl Turn {
    /// It is refused for its form.
    pub(super) fn refuse(&mut self) {
        self.torn = true;
    }

    /// Waits until it may go on, for `patience` at most: by the connection's own place, one at a time, or by one that `take` gives it.
    /// `Err` if there is none.
    pub(super) async fn place(
        &mut self,
        patience: Duration,
        take: impl Fn() -> Option<Place>,
    ) -> Result<Place, NoPlace> {
        let until = Instant::now() + patience;
        loop {
            if self.takes_own() {
                return Ok(Place::Own);
            }
            if let Some(place) = take() {
                return Ok(place);
            }
            let pause = until.min(Instant::now() + PLACE_PAUSE);
            if pause <= Instant::now() {
                return Err(NoPlace);
            }
            tokio::select! {
                () = self.under_way.ended.notified() => {}
                () = sleep_until(pause) => {}
            }
        }
    }

    fn takes_own(&mut self) -> bool {
        let mut requests = lock(&self.under_way.requests);
        self.own_place = !std::mem::replace(&mut requests.own_place, true);
        self.own_place
    }
}

/// By which a request goes on.
#[derive(Debug)]
pub(super) enum Place {
    /// The connection's.
    Own,
    /// One more, until it is dropped.
    Further(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit),
    /// None, at a node that ends: it gives none any more, and answers what has begun.
    Ending,
}

/// There was no place in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoPlace;

impl Drop for Turn {
    fn drop(&mut self) {
        let mut requests = lock(&self.under_way.requests);
        let now = Instant::now();
        requests.now -= 1;
        requests.idle_since = now;
        if self.own_place {
            requests.own_place = false;
        }
        if (self.torn || !self.answered) && !self.excused && !requests.breaks.take(now) {
            // The client is told to ask no more. If it goes on after this, the connection ends.
            requests.breaks.leave(0.25);
            self.under_way.overdone.notify_one();
        }
        drop(requests);
        self.under_way.ended.notify_one();
    }
}

/// What a reply holds until it is delivered: its request counts so long.
struct Delivery {
    pace: Arc<Pace>,
    /// Once its last piece is given.
    body: Mutex<Option<Body>>,
    turn: Mutex<Turn>,
    _place: Place,
}

/// The pace of the request that this task serves.
pub(super) fn pace_of_task(blocked: &Arc<Blocked>) -> Arc<Pace> {
    let own = PACE.try_with(Arc::clone);
    debug_assert!(own.is_ok(), "requests run in tasks of their own");
    own.unwrap_or_else(|_| Arc::new(Pace::new(Arc::clone(blocked))))
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
        let pace = Arc::new(Pace::new(Arc::clone(&shared.blocked)));
        tokio::spawn(PACE.scope(Arc::clone(&pace), async move {
            let _watch = PanicWatch(Arc::clone(&shared));
            let mut stalled = pin!(pace.stalled(|| patience));
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
                    under_way.stuck.notify_one();
                }
            }
        }));
    }
}

/// Counts and logs a panic of the task that holds it. Nobody waits for that task's end.
struct PanicWatch(Arc<Shared>);

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.counters.panics.add(1);
            tracing::error!("HTTP/2 request lost: its task panicked");
        }
    }
}

/// A reply's body in pieces.
pub(super) struct Paced {
    /// `None` once it is the delivery's.
    body: Option<Body>,
    rest: Bytes,
    /// Pieces that it was cut into.
    cut: usize,
    delivery: Arc<Delivery>,
}

impl Paced {
    /// A reply's body, whose client may leave it at any time if it has no end.
    pub(super) fn new(body: Body, pace: Arc<Pace>, mut turn: Turn, place: Place) -> Self {
        turn.excused = body.is_endless();
        let turn = Mutex::new(turn);
        let delivery = Arc::new(Delivery { pace, body: Mutex::default(), turn, _place: place });
        Self { body: Some(body), rest: Bytes::new(), cut: 0, delivery }
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
                    lock(&this.delivery.turn).excused = true;
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
        if self.is_given() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Brought;

    #[tokio::test]
    async fn a_panic_in_a_request_is_counted() {
        let shared = Shared::new(Arc::default(), Brought { frames: true, ..Brought::default() });
        let counters = Arc::clone(&shared.counters);
        let streams =
            Streams { shared, under_way: Arc::new(UnderWay::new()), patience: Duration::from_secs(60) };
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        streams.execute(async move {
            let _ended = ended;
            panic!("a fault");
        });
        assert!(end.await.is_err());
        // The task's own future is dropped before what watches it.
        while counters.panics.read() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(counters.panics.read(), 1);
        streams.execute(async {});
        tokio::task::yield_now().await;
        assert_eq!(counters.panics.read(), 1);
    }
}
