//! HTTP/2 connections of clients (RFC 9113). The requests of a connection are concurrent, and each is decided
//! and relayed independently.
//!
//! One task serves a connection. In each turn, h2 reads, the [stream tasks](stream_task) run, h2 writes, and
//! all written bytes are sent with one system call. A [`ClientStream`](stream::ClientStream) is the client
//! side of an exchange, like an HTTP/1 connection.
//!
//! | subject | limit |
//! |---|---|
//! | concurrent requests of a connection | [`STREAMS_MAX`] |
//! | memory for replies and heads | [`memory`]; requests wait, and are refused if their client reads nothing |
//! | a reply of which the client reads nothing | `Limits::client_write`; then the stream is reset |
//! | a socket that accepts no bytes | `Limits::client_write`; then the connection is closed |
//! | bytes of request bodies that servers have not accepted | [`STREAM_WINDOW`] per request, [`CONNECTION_WINDOW`] per connection |
//! | malformed requests | [`MALFORMED_MAX`]; then the connection is closed |
//! | resets, and frames without content | [`FrameLimits`](crate::http2::FrameLimits); then the connection is closed |
//! | an idle connection | `Limits::keepalive`; then GOAWAY is sent, and after `Limits::head` the connection is closed |

mod head;
mod memory;
mod shared;
mod socket;
mod stream;
mod stream_task;
mod waker;

pub use memory::StreamMemory;

use super::buffered_stream::BufferedStream;
use super::clock::Clock;
use super::deadline::Deadline;
use super::fault::{Http2Fault, Refusal};
use super::limits::Limits;
use super::proxy::Proxy;
use super::splice::Transport;
use super::worker::{Registration, Worker};
use crate::http2::SocketProgress;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::Reason;
use h2::server::Builder;
use memory::MemoryAccount;
use shared::{IdleTasks, IncomingRequest, SharedState};
use socket::{BufferedSocket, SocketHandle};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use waker::TurnWaker;

/// Largest number of concurrent requests on a connection.
const STREAMS_MAX: u32 = 100;
/// Largest number of malformed requests on a connection. After a further one the connection is closed.
const MALFORMED_MAX: u32 = 32;
/// Flow-control window for the body of one request, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
/// Flow-control window for the bodies of all requests on a connection, in bytes.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a reply that h2 buffers while the socket is blocked.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Longest time for a client to read the rest of its replies after its connection has ended.
const LINGER: Duration = Duration::from_secs(30);
/// Longest silence of such a client. A client that reads sends frames.
const READ_SILENCE_MAX: Duration = Duration::from_secs(5);
/// Longest time for the requests of a closed connection to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The server side of a connection in the h2 crate.
type Session<T> = h2::server::Connection<SocketHandle<T>, Bytes>;

/// Serves an HTTP/2 connection of a client from its preface to its end.
///
/// `first_by` is the deadline of the first request, if it differs from that in `Limits`.
pub async fn serve_http2<T, P>(io: T, first_by: Option<Instant>, client_data: &P::Client, worker: &Worker<P>)
where
    T: Transport,
    P: Proxy,
{
    let limits = worker.proxy.limits(client_data);
    let address = worker.proxy.address(client_data);
    let socket_progress = Arc::<SocketProgress>::default();
    let shared = Rc::new(SharedState {
        idle_tasks: IdleTasks::default(),
        pending_requests: Cell::new(0),
        head_bytes: Cell::new(0),
        malformed: Cell::new(0),
        memory: MemoryAccount::new(worker.stream_memory.clone(), address, socket_progress.clone()),
        socket_progress,
    });
    let socket = Rc::new(RefCell::new(BufferedSocket::new(io, limits.client_write, &shared.socket_progress)));
    let time_left = || first_by.map(|by| by.saturating_duration_since(Clock::now()));
    let session = match handshake(&socket, &limits, time_left().unwrap_or(limits.head)).await {
        Ok(session) => session,
        Err(error) => {
            if error.kind() == io::ErrorKind::TimedOut {
                // There is no request to answer. The proxy only counts the refusal.
                drop(worker.proxy.refuse(client_data, Refusal::TimedOut));
            }
            return;
        }
    };
    let client_reads =
        ConnectionTask::new(session, socket.clone(), shared.clone(), (worker, time_left(), limits.keepalive))
            .run(|first| stream_task::serve(client_data, worker, shared.clone(), first), worker, client_data)
            .await;
    // Releases the memory of requests that have not ended.
    drop(shared);
    // h2 was dropped together with its handle of the socket.
    let Some(mut socket) = Rc::into_inner(socket).map(RefCell::into_inner) else { return };
    if client_reads {
        close_after_client(socket).await;
    } else {
        // The reason of the end is sent if the socket accepts it now.
        poll_fn(|cx| Poll::Ready(socket.poll_flush(cx).is_ready())).await;
    }
}

/// Closes a connection after the client has had time to read the last frames. A client that reads sends
/// frames.
async fn close_after_client<T: Transport>(mut socket: BufferedSocket<T>) {
    if poll_fn(|cx| socket.poll_flush(cx)).await.is_ok() {
        BufferedStream::new(socket.into_inner())
            .linger(&mut Deadline::new(READ_SILENCE_MAX), READ_SILENCE_MAX, LINGER)
            .await;
    }
}

/// Performs the connection preface of HTTP/2 (RFC 9113 section 3.4), within `timeout`.
async fn handshake<T>(
    socket: &Rc<RefCell<BufferedSocket<T>>>,
    limits: &Limits,
    timeout: Duration,
) -> io::Result<Session<T>>
where
    T: Transport,
{
    let handshake = Builder::new()
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .handshake(SocketHandle(socket.clone()));
    let mut handshake = pin!(handshake);
    let mut deadline = Deadline::new(timeout);
    poll_fn(|cx| {
        if let Poll::Ready(session) = handshake.as_mut().poll(cx) {
            return Poll::Ready(session.map_err(|_| io::ErrorKind::InvalidData.into()));
        }
        // A client may wait for the SETTINGS frame before it sends its own.
        if let Poll::Ready(Err(error)) = socket.borrow_mut().poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    })
    .await
}

/// The stage in the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The connection accepts requests.
    Open,
    /// GOAWAY was sent, so that the client sends no further request.
    Draining,
    /// The connection is closed. Its pending requests are ending.
    Closed {
        /// The client may still read the last frames.
        client_reads: bool,
    },
}

/// The task of a connection: it runs h2 and the stream tasks in turns.
struct ConnectionTask<'a, T, P: Proxy, F> {
    session: Option<Session<T>>,
    socket: Rc<RefCell<BufferedSocket<T>>>,
    shared: Rc<SharedState>,
    tasks: FuturesUnordered<F>,
    registration: Registration<'a, P>,
    stage: ConnectionStage,
    /// The deadline of an idle connection, or of pending requests after the end of the connection.
    deadline: Deadline,
    /// The first request has a separate deadline and has not arrived.
    awaits_first_request: bool,
    /// There was a pending request in the previous turn.
    was_busy: bool,
}

impl<'a, T, P, F> ConnectionTask<'a, T, P, F>
where
    T: Transport,
    P: Proxy,
    F: Future<Output = ()>,
{
    fn new(
        session: Session<T>,
        socket: Rc<RefCell<BufferedSocket<T>>>,
        shared: Rc<SharedState>,
        (worker, first, keepalive): (&'a Worker<P>, Option<Duration>, Duration),
    ) -> Self {
        Self {
            session: Some(session),
            socket,
            shared,
            tasks: FuturesUnordered::new(),
            registration: worker.register(),
            stage: ConnectionStage::Open,
            deadline: Deadline::new(first.unwrap_or(keepalive)),
            awaits_first_request: first.is_some(),
            was_busy: false,
        }
    }

    /// Serves requests until the connection ends. Returns whether the client may still read the last frames.
    async fn run(
        mut self,
        start_task: impl Fn(IncomingRequest) -> F,
        worker: &Worker<P>,
        client_data: &P::Client,
    ) -> bool {
        let turn_waker = Arc::new(TurnWaker::default());
        let waker = Waker::from(turn_waker.clone());
        poll_fn(|cx| {
            let over = turn_waker.run_turn(&waker, cx, |cx| {
                self.drain_if_ending(cx, worker, client_data);
                self.accept(cx, &start_task, worker, client_data);
                while let Poll::Ready(Some(())) = self.tasks.poll_next_unpin(cx) {}
                self.close_if_malformed(cx, worker, client_data);
                self.poll_idle(cx, worker, client_data)
            });
            if let Some(client_reads) = over {
                return Poll::Ready(client_reads);
            }
            let flushed = self.socket.borrow_mut().poll_flush(&mut Context::from_waker(&waker));
            if matches!(flushed, Poll::Ready(Err(_))) && self.session.is_some() {
                if self.socket.borrow().is_stalled {
                    worker.proxy.on_http2_fault(client_data, Http2Fault::Stalled);
                }
                self.close(false);
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    /// Sends GOAWAY if the worker is ending. Requests that are on their way are served.
    fn drain_if_ending(&mut self, cx: &Context<'_>, worker: &Worker<P>, client_data: &P::Client) {
        let must_end = self.registration.must_end(cx);
        if (must_end || worker.is_ending()) && self.stage == ConnectionStage::Open {
            self.start_draining(worker.proxy.limits(client_data).head);
        }
    }

    /// Sends GOAWAY, and sets the deadline for the end of the idle connection.
    fn start_draining(&mut self, timeout: Duration) {
        if let Some(session) = &mut self.session {
            session.graceful_shutdown();
        }
        self.stage = ConnectionStage::Draining;
        self.deadline.set(timeout);
    }

    /// Has h2 read and write, and assigns requests to stream tasks.
    fn accept(
        &mut self,
        cx: &mut Context<'_>,
        start_task: &impl Fn(IncomingRequest) -> F,
        worker: &Worker<P>,
        client_data: &P::Client,
    ) {
        while let Some(session) = &mut self.session {
            match session.poll_accept(cx) {
                Poll::Ready(Some(Ok(incoming))) => {
                    self.shared.pending_requests.set(self.shared.pending_requests.get() + 1);
                    if let Some(incoming) = self.shared.idle_tasks.assign(incoming) {
                        self.tasks.push(start_task(incoming));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let is_calmed = error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM);
                    let flood = self.socket.borrow().flood.map(Http2Fault::Flood);
                    let stalled = self.socket.borrow().is_stalled.then_some(Http2Fault::Stalled);
                    let fault = flood.or(stalled).or_else(|| is_calmed.then_some(Http2Fault::OtherFlood));
                    if let Some(fault) = fault {
                        worker.proxy.on_http2_fault(client_data, fault);
                    }
                    // h2 has sent the error code to a client that violated HTTP/2.
                    self.close(fault.is_none() && !error.is_io());
                }
                // The client has closed the connection, or has all replies after GOAWAY.
                Poll::Ready(None) => self.close(true),
                Poll::Pending => return,
            }
        }
    }

    /// Closes the connection if the client has sent too many malformed requests.
    fn close_if_malformed(&mut self, cx: &mut Context<'_>, worker: &Worker<P>, client_data: &P::Client) {
        if self.shared.malformed.get() > MALFORMED_MAX
            && let Some(session) = &mut self.session
        {
            worker.proxy.on_http2_fault(client_data, Http2Fault::Malformed);
            session.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            // This sends the error code.
            let _ = session.poll_accept(cx);
            self.close(false);
        }
    }

    /// Closes the connection. Its streams get the error from h2.
    fn close(&mut self, client_reads: bool) {
        self.session = None;
        self.stage = ConnectionStage::Closed { client_reads };
        self.deadline.set(END_TIMEOUT);
    }

    /// Handles the deadlines of an idle or closed connection. Returns a value when the task must end: whether
    /// the client may still read the last frames.
    fn poll_idle(
        &mut self,
        cx: &mut Context<'_>,
        worker: &Worker<P>,
        client_data: &P::Client,
    ) -> Option<bool> {
        let is_busy = self.shared.pending_requests.get() > 0;
        if let ConnectionStage::Closed { client_reads } = self.stage {
            let is_late = self.deadline.poll(cx).is_ready();
            return (!is_busy || is_late).then_some(client_reads);
        }
        if is_busy {
            (self.was_busy, self.awaits_first_request) = (true, false);
            return None;
        }
        let limits = worker.proxy.limits(client_data);
        if std::mem::replace(&mut self.was_busy, false) {
            self.deadline.set(if self.stage == ConnectionStage::Open {
                limits.keepalive
            } else {
                limits.head
            });
        }
        if self.deadline.poll(cx).is_ready() {
            if self.shared.socket_progress.is_blocked() {
                // The client has not received the last reply. The write deadline of the socket is running.
                self.deadline.set(limits.keepalive);
            } else if self.stage == ConnectionStage::Open {
                if std::mem::take(&mut self.awaits_first_request) {
                    drop(worker.proxy.refuse(client_data, Refusal::TimedOut));
                } else {
                    worker.proxy.on_idle(client_data);
                }
                self.start_draining(limits.head);
            } else {
                self.close(true);
            }
            cx.waker().wake_by_ref();
        }
        None
    }
}
