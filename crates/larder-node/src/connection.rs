//! A client connection as hyper sees it, with deadlines, and the count of requests in flight.
//!
//! Deadlines: a request's head must be complete some time after its first byte (the connection's first head, after
//! the accept); a kept-alive connection may be silent for another, longer time; and a client must take some of a
//! reply's bytes now and then. One timer for reading is kept and moved, which costs next to nothing per request.
//!
//! In flight is a request until the last byte of its reply is in the kernel's socket buffer, or the connection is
//! gone. hyper drops a reply's body when it has taken the last piece into its own buffer, and asks for a flush only
//! when that buffer is empty: so a dropped body makes its request *finishing*, and the next flush ends it.

mod in_flight;

pub(crate) use in_flight::InFlight;

use crate::config::Limits;
use crate::edge::Entered;
use crate::guarded::Guarded;
use crate::handover::{Departure, Life, REQUESTS, Standing};
use crate::hints;
use crate::lateral::Later;
use crate::origin::tunnel::Opened;
use crate::server::Arrived;
use crate::stats::Counters;
use bytes::{Buf as _, Bytes};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use larder_edge::ClientIo;
use larder_handoff::FlowKey;
use larder_http::http2::{Blocked, Flood, WriteDeadline};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// What a connection's socket and its requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counters: Arc<Counters>,
    /// Whether a request has been read and not answered: then reading has no deadline.
    busy: AtomicBool,
    /// Whether any request has been read.
    used: AtomicBool,
    finishing: AtomicU64,
    /// Interim replies to the request that is under way.
    pub(crate) hints: hints::Waiting,
    /// Its requests come side by side, in frames of HTTP/2.
    frames: bool,
    /// Its write side is shut, and what still comes is thrown away.
    lingers: AtomicBool,
    /// When its socket takes no bytes; noted for HTTP/2 only.
    pub(crate) blocked: Arc<Blocked>,
    /// Of a connection that a front-end has handed over: it has decided by the first request alone.
    pub(crate) handed: Option<Later>,
    /// Whether the client is told of no end: the connection goes on elsewhere.
    open: AtomicBool,
    /// Its addresses, if it can be handed over to a peer.
    flow: Option<FlowKey>,
    /// The address at its other end: the client's own if the connection was handed over.
    pub(crate) peer: Option<IpAddr>,
    /// What is known of it from before its first request, if anything.
    entered: Option<Arc<Entered>>,
    /// Of the next request: see [`Bound`].
    bound: Mutex<Bound>,
    /// What is known of its requests, if it can be handed over to a peer or was.
    life: Mutex<Option<Life>>,
    departure: Mutex<Option<Departure>>,
    departs: Notify,
    /// It leaves, with the request that is being handled.
    departed: AtomicBool,
    /// The place where it becomes a tunnel to the origin.
    pub(crate) tunnel: Opened,
}

/// What is settled of a connection's next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Nothing.
    #[default]
    Free,
    /// The connection was to be handed over with it, and stays: it is relayed if a peer serves it.
    Stays,
    /// A peer has handed the connection over with it: this node serves it.
    Taken,
}

/// What a connection brings along.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// A front-end has handed it over.
    pub(crate) handed: Option<Later>,
    /// It has had requests elsewhere.
    pub(crate) used: bool,
    /// Its addresses, if it can be handed over to a peer.
    pub(crate) flow: Option<FlowKey>,
    pub(crate) bound: Bound,
    pub(crate) life: Option<Life>,
    pub(crate) entered: Option<Arc<Entered>>,
    /// The address at its other end; `None` if the connection is gone.
    pub(crate) peer: Option<IpAddr>,
    /// Its requests come side by side, in frames of HTTP/2.
    pub(crate) frames: bool,
}

impl Shared {
    /// Of a connection.
    pub(crate) fn new(counters: Arc<Counters>, brought: Brought) -> Arc<Self> {
        let Brought { handed, used, flow, bound, life, entered, peer, frames } = brought;
        Arc::new(Self {
            counters,
            handed,
            flow,
            entered,
            peer,
            bound: Mutex::new(bound),
            life: Mutex::new(life),
            departure: Mutex::default(),
            departs: Notify::new(),
            departed: AtomicBool::new(false),
            tunnel: Opened::default(),
            busy: AtomicBool::new(false),
            used: AtomicBool::new(used),
            finishing: AtomicU64::new(0),
            hints: hints::Waiting::default(),
            open: AtomicBool::new(false),
            frames,
            lingers: AtomicBool::new(false),
            blocked: Arc::default(),
        })
    }

    /// Whether its write side is shut, and what still comes is thrown away.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.load(Relaxed)
    }

    /// Whether requests come side by side, in frames of HTTP/2.
    pub(crate) fn has_frames(&self) -> bool {
        self.frames
    }

    /// Whether no request has been read yet.
    pub(crate) fn is_unused(&self) -> bool {
        !self.used.load(Relaxed)
    }

    /// Whether a request has been answered to its last byte and no other one has been read.
    pub(crate) fn rests(&self) -> bool {
        self.used.load(Relaxed) && !self.busy.load(Relaxed) && self.finishing.load(Relaxed) == 0
    }

    /// What is settled of the request that has just been read, which counts from here on.
    pub(crate) fn take_bound(&self, parts: &mut http::request::Parts) -> Bound {
        let bound = std::mem::take(&mut *lock(&self.bound));
        let told = parts.headers.remove(REQUESTS);
        if let Some(life) = &mut *lock(&self.life) {
            life.brings(bound, parts, told.as_ref());
        }
        bound
    }

    /// What is known of the connection from before its first request, if anything.
    pub(crate) fn entered(&self) -> Option<&Entered> {
        self.entered.as_deref()
    }

    /// Whether a peer has handed the connection over with the request that has just been read.
    pub(crate) fn is_taken(&self) -> bool {
        *lock(&self.bound) == Bound::Taken
    }

    /// The connection is not served here any more, or by another part of this node.
    pub(crate) fn take_life(&self) -> Option<Life> {
        lock(&self.life).take()
    }

    /// How the connection stands towards being handed over.
    pub(crate) fn standing(&self) -> Standing {
        let requests = lock(&self.life).as_ref().map_or(0, Life::requests);
        Standing { flow: self.flow, rests: self.finishing.load(Relaxed) == 0, requests }
    }

    /// The connection is to be handed over, with the request that is being handled: its handler has ended by then.
    pub(crate) async fn depart(&self, departure: Departure) -> std::convert::Infallible {
        *lock(&self.departure) = Some(departure);
        self.departs.notify_one();
        std::future::pending().await
    }

    /// Waits until it is.
    pub(crate) async fn departing(&self) -> Departure {
        loop {
            self.departs.notified().await;
            let departure = lock(&self.departure).take();
            if let Some(departure) = departure {
                self.departed.store(true, Relaxed);
                return departure;
            }
        }
    }

    /// From here on the end of hyper's work is not that of the connection.
    pub(crate) fn keep_open(&self) {
        self.open.store(true, Relaxed);
    }

    /// Notes that a head has been read.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.busy.store(true, Relaxed);
        let later = self.used.swap(true, Relaxed);
        self.counters.in_flight.rise();
        InFlight::new(Arc::clone(self), later)
    }

    fn flushed(&self) -> bool {
        if self.finishing.load(Relaxed) == 0 {
            return false;
        }
        let finished = self.finishing.swap(0, Relaxed);
        self.counters.in_flight.fall(finished);
        self.busy.store(false, Relaxed);
        finished > 0
    }
}

/// Time a client of HTTP/2 may be silent while it reads what was sent to it, once nothing more will be.
const LINGER: Duration = Duration::from_secs(10);
/// Time it has for all of that.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(30);

/// Which deadline for reading runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    /// The rest of a head.
    Head,
    /// The first byte of the next head.
    Silence,
    /// Frames of HTTP/2, at any time: who serves them has deadlines of its own.
    Frames,
}

/// A socket with deadlines.
pub(crate) struct Socket {
    stream: TokioIo<Guarded>,
    /// Bytes to be written before any others.
    unsent: Bytes,
    /// Since hyper last held no bytes, none have been written: what it gives next begins with a message.
    at_boundary: bool,
    shared: Arc<Shared>,
    head_timeout: Duration,
    idle_timeout: Duration,
    write_deadline: WriteDeadline,
    awaiting: Awaiting,
    /// The read timer, set to the deadline if `read_armed`.
    read_timer: Pin<Box<Sleep>>,
    read_armed: bool,
    /// Until when what still comes is thrown away, once the write side is shut.
    lingers_until: Option<Instant>,
}

impl Socket {
    /// A socket whose stream is preceded by `first` for reading and by `unsent` for writing.
    pub(crate) fn new(
        stream: ClientIo,
        first: Bytes,
        unsent: Bytes,
        shared: Arc<Shared>,
        limits: &Limits,
    ) -> Self {
        let blocked = shared.frames.then(|| Arc::clone(&shared.blocked));
        Self {
            stream: TokioIo::new(Guarded::new(stream, first)),
            unsent,
            at_boundary: true,
            shared,
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            write_deadline: WriteDeadline::new(limits.write_timeout, blocked),
            awaiting: Awaiting::Head,
            read_timer: Box::pin(sleep_until(Instant::now() + limits.head_timeout)),
            read_armed: true,
            lingers_until: None,
        }
    }

    /// The socket of an HTTP/2 connection. Its frames are limited, and may come at any time.
    pub(crate) fn of_frames(mut self) -> Self {
        self.stream.inner_mut().limit_frames();
        self.awaiting = Awaiting::Frames;
        self
    }

    /// The first head has to be complete by then, since the connection came earlier.
    pub(crate) fn head_by(&mut self, then: Instant) {
        self.read_timer.as_mut().reset(then);
    }

    /// The connection with what has been read of it, `read` before what is left here; nothing if it cannot go on.
    pub(crate) fn into_resting(self, read: Bytes, handed: Option<Later>) -> Option<Arrived> {
        let (life, entered) = (self.shared.take_life(), self.shared.entered.clone());
        if !self.unsent.is_empty() {
            return None;
        }
        let (stream, first) = self.stream.into_inner().into_parts();
        let first = if first.is_empty() { read } else { [read, first].concat().into() };
        let unsent = Bytes::new();
        let bound = Bound::Free;
        Some(Arrived { stream, first, unsent, used: true, handed, bound, life, entered, head_by: None })
    }

    /// Called when the socket has nothing to read.
    fn poll_read_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.awaiting == Awaiting::Frames || self.shared.busy.load(Relaxed) {
            return Poll::Pending;
        }
        if !self.read_armed {
            let timeout = match self.awaiting {
                Awaiting::Head => self.head_timeout,
                Awaiting::Silence | Awaiting::Frames => self.idle_timeout,
            };
            self.read_timer.as_mut().reset(Instant::now() + timeout);
            self.read_armed = true;
        }
        ready!(self.read_timer.as_mut().poll(cx));
        let (count, what) = match self.awaiting {
            Awaiting::Head => (&self.shared.counters.head_timeouts, "the request's head took too long"),
            Awaiting::Silence | Awaiting::Frames => {
                (&self.shared.counters.idle_timeouts, "the connection was silent too long")
            }
        };
        count.add(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
    }

    /// Writes what was left unsent when the connection came.
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unsent))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_unsent_in_time(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unsent.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let written = self.poll_unsent(cx);
        self.after_write(cx, written)
    }

    /// Before bytes of hyper are written: writes the interim replies that wait, or drops those that come too late. Takes none
    /// before the earlier ones have left, so that their limit holds for a client that does not read.
    fn poll_hints(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent_in_time(cx))?;
        if self.shared.hints.are_some() {
            if self.at_boundary {
                self.unsent = self.shared.hints.take().into();
            } else {
                self.shared.hints.drop_late();
            }
        }
        self.poll_unsent_in_time(cx)
    }

    /// A client of HTTP/2 sends while it reads: what would come to a closed socket would have the kernel throw away what is still to be
    /// read. So it is taken until the client ends its side or is silent for [`LINGER`], for [`LINGER_MAX`] at most.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [MaybeUninit::uninit(); 4_096];
        let last = self.lingers_until.unwrap_or_else(Instant::now);
        loop {
            let mut taken = ReadBuf::uninit(&mut bytes);
            match Pin::new(self.stream.inner_mut()).poll_read(cx, &mut taken) {
                // A client that sends without end would not let the timer have its turn.
                Poll::Ready(Ok(())) if !taken.filled().is_empty() && Instant::now() < last => {
                    self.read_timer.as_mut().reset(last.min(Instant::now() + LINGER));
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return self.read_timer.as_mut().poll(cx).map(Ok),
            }
        }
    }

    fn after_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if !self.write_deadline.is_late(cx, self.stream.inner().sent(), &written) {
            return written;
        }
        self.shared.counters.write_timeouts.add(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")))
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Nothing else may ever be written here, and the client waits for it.
        if let Poll::Ready(Err(error)) = self.poll_unsent(cx) {
            return Poll::Ready(Err(error));
        }
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Pending => self.poll_read_deadline(cx),
            Poll::Ready(Err(error)) => {
                if let Some(flood) = Flood::of(&error) {
                    self.shared.counters.http2_floods.add(1);
                    tracing::debug!(%flood, "HTTP/2 connection closed");
                }
                Poll::Ready(Err(error))
            }
            ready => {
                if self.awaiting == Awaiting::Silence {
                    self.awaiting = Awaiting::Head;
                    self.read_armed = false;
                }
                ready
            }
        }
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_hints(cx))?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.at_boundary &= !written.is_ready();
        self.after_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_hints(cx))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.at_boundary &= !written.is_ready();
        self.after_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper asks for a flush when it holds no bytes.
        self.at_boundary = true;
        self.shared.hints.drop_late();
        ready!(self.poll_hints(cx))?;
        // With TLS, what was written is not all in the kernel's buffer before.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        ready!(self.after_write(cx, flushed))?;
        if self.shared.flushed() && self.awaiting != Awaiting::Frames {
            self.awaiting = Awaiting::Silence;
            self.read_armed = false;
            // hyper has looked for a further head while the reply was under way, and looks again only when woken:
            // so the timer must know whom to wake. It cannot have run out yet.
            let _ = self.poll_read_deadline(cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shared.open.load(Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_unsent_in_time(cx))?;
        if self.lingers_until.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.after_write(cx, shut))?;
            if self.awaiting != Awaiting::Frames {
                return Poll::Ready(Ok(()));
            }
            let now = Instant::now();
            self.lingers_until = Some(now + LINGER_MAX);
            self.shared.lingers.store(true, Relaxed);
            self.read_timer.as_mut().reset(now + LINGER);
        }
        self.poll_linger(cx)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Shared {
    /// The connection is gone, with all it held; what was not sent never will be.
    fn drop(&mut self) {
        self.flushed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// hyper as it is reads a head only once the reply before has left it; whatever it will do, such a connection stays.
    #[test]
    fn a_connection_does_not_rest_before_its_replies_have_left() {
        let shared = Shared::new(Arc::default(), Brought::default());
        assert!(shared.standing().rests);
        let (first, second) = (shared.begin(), shared.begin());
        drop(first);
        assert!(!shared.standing().rests, "the end of the first reply is in the buffer");
        assert!(shared.flushed() && shared.standing().rests);
        drop(second);
        assert!(!shared.standing().rests);
    }

    /// hyper flushes each time that it waits for the final reply.
    #[tokio::test]
    async fn interim_replies_to_a_client_that_does_not_read_stay_within_their_limit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let shared = Shared::new(Arc::default(), Brought::default());
        let (parts, ()) = http::Request::new(()).into_parts();
        let line = hints::HintLine::of_request(&shared, &parts).unwrap();
        let (stream, limits) = (ClientIo::Clear(stream), Limits::default());
        let mut socket = Socket::new(stream, Bytes::new(), Bytes::new(), shared, &limits);
        let hint = Bytes::from(vec![b'x'; 16 << 10]);
        // More than the kernel's buffers hold.
        for nth in 0..2_000 {
            line.send(&hint);
            let flushed = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut socket).poll_flush(cx))).await;
            assert!(!matches!(flushed, Poll::Ready(Err(_))), "{flushed:?}");
            assert!(socket.unsent.len() <= hints::WAITING_MAX, "{} after {nth}", socket.unsent.len());
            tokio::task::yield_now().await;
        }
        assert!(!socket.unsent.is_empty() && socket.shared.hints.are_some());
    }
}
