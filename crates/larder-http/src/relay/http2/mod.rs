//! Connections of clients of HTTP/2 (RFC 9113): many requests at a time, each of which is decided and relayed by itself.
//!
//! One task serves a connection: in each turn it has h2 read, lets the [lanes](lane) run that serve requests, has h2 write, and sends
//! all that was written with one call. A [`Stream`](stream::Stream) is the client's side of an exchange, as a connection of HTTP/1 is.
//!
//! | | bound |
//! |---|---|
//! | requests of a connection at one time | [`STREAMS_MAX`] |
//! | memory for replies and heads | [`memory`]; requests wait, and are refused when their client takes nothing |
//! | a reply of which the client takes nothing | `Limits::client_write`; then the stream is reset |
//! | a socket that takes no bytes | `Limits::client_write`; then the connection ends |
//! | bytes of a request's body that the server has not taken | [`STREAM_WINDOW`], of a connection [`CONNECTION_WINDOW`] |
//! | malformed requests | [`MALFORMED_MAX`]; then the connection ends |
//! | resets, and frames that carry nothing | [`FrameLimits`](crate::http2::FrameLimits); then the connection ends |
//! | a connection without a request | `Limits::keepalive`; then it is told to end, and ends after `Limits::head` |

mod head;
mod lane;
mod memory;
mod shared;
mod socket;
mod stream;
mod waker;

pub use memory::StreamMemory;

use super::clock::Clock;
use super::deadline::Deadline;
use super::fault::{Http2Fault, Refusal};
use super::limits::Limits;
use super::proxy::Proxy;
use super::splice::Transport;
use super::wire::Wire;
use super::worker::{Place, Worker};
use crate::http2::Blocked;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::Reason;
use h2::server::Builder;
use memory::Account;
use shared::{Arrived, Shared, Waiting};
use socket::{Link, Socket};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use waker::TurnWaker;

/// Requests that one client may have under way on a connection.
const STREAMS_MAX: u32 = 100;
/// Requests on a connection that are refused as malformed. After another one the connection ends.
const MALFORMED_MAX: u32 = 32;
/// Flow-control windows for bodies of requests. Bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a reply that h2 holds while the socket has no room.
const SEND_BUFFER: usize = 64 << 10;
/// Time that a client has to read the rest of its replies, once they are written and its connection ends.
const LINGER: Duration = Duration::from_secs(30);
/// Time in which such a client sends something, since it reads.
const SILENCE: Duration = Duration::from_secs(5);
/// Time that the requests of a connection which has ended have to write their records.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// A connection as h2 drives it.
type Session<T> = h2::server::Connection<Socket<T>, Bytes>;

/// Serves a client's connection of HTTP/2 from its preface to its end.
///
/// `first_by`: the time by which the first request must have come, if that is limited otherwise than by `Limits`.
pub async fn serve_http2<T, P>(io: T, first_by: Option<Instant>, info: &P::Client, worker: &Worker<P>)
where
    T: Transport,
    P: Proxy,
{
    let limits = worker.proxy.limits(info);
    let address = worker.proxy.address(info);
    let blocked = Arc::<Blocked>::default();
    let shared = Rc::new(Shared {
        waiting: Waiting::default(),
        busy: Cell::new(0),
        head_bytes: Cell::new(0),
        malformed: Cell::new(0),
        memory: Account::new(worker.stream_memory.clone(), address, blocked.clone()),
        blocked,
    });
    let link = Rc::new(RefCell::new(Link::new(io, limits.client_write, &shared.blocked)));
    let time_left = || first_by.map(|by| by.saturating_duration_since(Clock::now()));
    let session = match shake(&link, &limits, time_left().unwrap_or(limits.head)).await {
        Ok(session) => session,
        Err(error) => {
            if error.kind() == io::ErrorKind::TimedOut {
                // There is no request to be answered.
                drop(worker.proxy.refuse(info, Refusal::TimedOut));
            }
            return;
        }
    };
    let lingers = Turns::new(session, link.clone(), shared.clone(), (worker, time_left(), limits.keepalive))
        .run(|first| lane::serve(info, worker, shared.clone(), first), worker, info)
        .await;
    // Gives back what requests that did not end have reserved.
    drop(shared);
    // h2 is gone with its side of the link.
    let Some(mut link) = Rc::into_inner(link).map(RefCell::into_inner) else { return };
    if lingers {
        part(link).await;
    } else {
        // The reason, if the socket has room for it.
        poll_fn(|cx| Poll::Ready(link.poll_flush(cx).is_ready())).await;
    }
}

/// Ends a connection, once the client has had time to read the last frames. It sends frames while it reads.
async fn part<T: Transport>(mut link: Link<T>) {
    if poll_fn(|cx| link.poll_flush(cx)).await.is_ok() {
        Wire::new(link.into_inner()).linger(&mut Deadline::new(SILENCE), SILENCE, LINGER).await;
    }
}

/// Reads the preface, for `patience` at most.
async fn shake<T>(link: &Rc<RefCell<Link<T>>>, limits: &Limits, patience: Duration) -> io::Result<Session<T>>
where
    T: Transport,
{
    let shaking = Builder::new()
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(Socket(link.clone()));
    let mut shaking = pin!(shaking);
    let mut deadline = Deadline::new(patience);
    poll_fn(|cx| {
        if let Poll::Ready(session) = shaking.as_mut().poll(cx) {
            return Poll::Ready(session.map_err(|_| io::ErrorKind::InvalidData.into()));
        }
        // A client may wait for the settings before it sends its own.
        if let Poll::Ready(Err(error)) = link.borrow_mut().poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    })
    .await
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The client was told that it may ask no more.
    Leaving,
    /// The connection is gone, and requests under way learn of it.
    Over {
        /// The client can read what was sent last.
        lingers: bool,
    },
}

/// The turns of a connection.
struct Turns<'a, T, P: Proxy, F> {
    session: Option<Session<T>>,
    link: Rc<RefCell<Link<T>>>,
    shared: Rc<Shared>,
    lanes: FuturesUnordered<F>,
    place: Place<'a, P>,
    stage: Stage,
    /// For a connection without requests, and for requests without a connection.
    deadline: Deadline,
    /// The first request has a deadline of its own, and has not come.
    awaits_first: bool,
    was_busy: bool,
}

impl<'a, T, P, F> Turns<'a, T, P, F>
where
    T: Transport,
    P: Proxy,
    F: Future<Output = ()>,
{
    fn new(
        session: Session<T>,
        link: Rc<RefCell<Link<T>>>,
        shared: Rc<Shared>,
        (worker, first, keepalive): (&'a Worker<P>, Option<Duration>, Duration),
    ) -> Self {
        Self {
            session: Some(session),
            link,
            shared,
            lanes: FuturesUnordered::new(),
            place: worker.enter(),
            stage: Stage::Open,
            deadline: Deadline::new(first.unwrap_or(keepalive)),
            awaits_first: first.is_some(),
            was_busy: false,
        }
    }

    /// Serves requests until the connection ends. Returns whether the client can read what was sent last.
    async fn run(mut self, lane: impl Fn(Arrived) -> F, worker: &Worker<P>, info: &P::Client) -> bool {
        let turn_waker = Arc::new(TurnWaker::default());
        let waker = Waker::from(turn_waker.clone());
        poll_fn(|cx| {
            let over = turn_waker.turn(&waker, cx, |cx| {
                self.leave_if_ending(cx, worker, info);
                self.accept(cx, &lane, worker, info);
                while let Poll::Ready(Some(())) = self.lanes.poll_next_unpin(cx) {}
                self.end_if_malformed(cx, worker, info);
                self.rest(cx, worker, info)
            });
            if let Some(lingers) = over {
                return Poll::Ready(lingers);
            }
            let flushed = self.link.borrow_mut().poll_flush(&mut Context::from_waker(&waker));
            if matches!(flushed, Poll::Ready(Err(_))) && self.session.is_some() {
                if self.link.borrow().is_stalled {
                    worker.proxy.on_http2_fault(info, Http2Fault::Stalled);
                }
                self.end(false);
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    /// Tells the client to send no more requests if the worker ends. What is on its way is served.
    fn leave_if_ending(&mut self, cx: &Context<'_>, worker: &Worker<P>, info: &P::Client) {
        let is_over = self.place.is_over(cx);
        if (is_over || worker.is_ending()) && self.stage == Stage::Open {
            self.leave(worker.proxy.limits(info).head);
        }
    }

    fn leave(&mut self, patience: Duration) {
        if let Some(session) = &mut self.session {
            session.graceful_shutdown();
        }
        self.stage = Stage::Leaving;
        self.deadline.set(patience);
    }

    /// Has h2 read and write, and gives requests to lanes.
    fn accept(
        &mut self,
        cx: &mut Context<'_>,
        lane: &impl Fn(Arrived) -> F,
        worker: &Worker<P>,
        info: &P::Client,
    ) {
        while let Some(session) = &mut self.session {
            match session.poll_accept(cx) {
                Poll::Ready(Some(Ok(arrived))) => {
                    self.shared.busy.set(self.shared.busy.get() + 1);
                    if let Some(arrived) = self.shared.waiting.give(arrived) {
                        self.lanes.push(lane(arrived));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let is_calmed = error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM);
                    let flood = self.link.borrow().flood.map(Http2Fault::Flood);
                    let stalled = self.link.borrow().is_stalled.then_some(Http2Fault::Stalled);
                    let fault = flood.or(stalled).or_else(|| is_calmed.then_some(Http2Fault::OtherFlood));
                    if let Some(fault) = fault {
                        worker.proxy.on_http2_fault(info, fault);
                    }
                    // h2 has told a client that broke the rules which one it was.
                    self.end(fault.is_none() && !error.is_io());
                }
                // The client has left, or has been told to and has got all replies.
                Poll::Ready(None) => self.end(true),
                Poll::Pending => return,
            }
        }
    }

    fn end_if_malformed(&mut self, cx: &mut Context<'_>, worker: &Worker<P>, info: &P::Client) {
        if self.shared.malformed.get() > MALFORMED_MAX
            && let Some(session) = &mut self.session
        {
            worker.proxy.on_http2_fault(info, Http2Fault::Malformed);
            session.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            // Writes the reason.
            let _ = session.poll_accept(cx);
            self.end(false);
        }
    }

    /// The connection is gone. Its streams learn of that from h2.
    fn end(&mut self, lingers: bool) {
        self.session = None;
        self.stage = Stage::Over { lingers };
        self.deadline.set(END_PATIENCE);
    }

    /// Looks after a connection without requests. Returns whether the client can read what was sent last, once the connection is over.
    fn rest(&mut self, cx: &mut Context<'_>, worker: &Worker<P>, info: &P::Client) -> Option<bool> {
        let is_busy = self.shared.busy.get() > 0;
        if let Stage::Over { lingers } = self.stage {
            let is_late = self.deadline.poll(cx).is_ready();
            return (!is_busy || is_late).then_some(lingers);
        }
        if is_busy {
            (self.was_busy, self.awaits_first) = (true, false);
            return None;
        }
        let limits = worker.proxy.limits(info);
        if std::mem::replace(&mut self.was_busy, false) {
            self.deadline.set(if self.stage == Stage::Open { limits.keepalive } else { limits.head });
        }
        if self.deadline.poll(cx).is_ready() {
            if self.shared.blocked.is_blocked() {
                // Its last reply is not at the client. The deadline for writes runs.
                self.deadline.set(limits.keepalive);
            } else if self.stage == Stage::Open {
                if std::mem::take(&mut self.awaits_first) {
                    drop(worker.proxy.refuse(info, Refusal::TimedOut));
                } else {
                    worker.proxy.on_idle(info);
                }
                self.leave(limits.head);
            } else {
                self.end(true);
            }
            cx.waker().wake_by_ref();
        }
        None
    }
}
