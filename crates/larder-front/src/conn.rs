//! The client's side of a connection: what Pingora reads from and writes to.
//!
//! Pingora's own stream would serve, but it has no limit on how long or how large a request header may be (its
//! timeouts are per read, its one size limit is a megabyte), hides the socket once a request is being read, and
//! sends a large reply's header by itself. This stream adds a deadline over the whole header, a deadline for idle
//! connections, a size limit, and one `writev` for a header and the body that follows it. When a limit is broken it
//! hands the socket back to the connection's task, which answers.

use crate::clock::Clock;
use crate::dial::{Announced, ShownByTls, Ties};
use crate::failure::Failure;
use crate::handoff::{Delivery, Outcome};
use crate::request::{Client, Security};
use async_trait::async_trait;
use bytes::BytesMut;
use larder_core::Time;
use larder_edge::ClientIo;
use larder_edge::http2::{Blocked, Flood, FrameLimits, WriteDeadline};
use larder_http::h1::{Fault, Framing};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

/// Writes up to this size wait for a flush or for more: about one segment, so that a small reply is one write.
const COALESCE_BYTES: usize = 1460;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Between two requests.
    Idle = 0,
    /// Reading a header.
    Head = 1,
    /// A request is being served.
    Serving = 2,
}

/// The limits a connection is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnLimits {
    pub(crate) header_bytes_max: usize,
    pub(crate) header: Duration,
    pub(crate) keepalive: Duration,
    /// For a socket of HTTP/2 that takes no bytes. With HTTP/1 the engine has this deadline.
    pub(crate) client_write: Duration,
    /// A client that ends its side after a request without a body still gets its reply. Where connections are handed to
    /// nodes, which do so too; elsewhere such a client counts as gone.
    pub(crate) half_close: bool,
    /// HTTP/2 is spoken at the same address.
    pub(crate) http2_too: bool,
}

/// What the connection's task, its stream and its requests share. All fields are written by one task at a time;
/// they are atomics because the stream must be `Sync`.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) client: SocketAddr,
    /// Where the client connected, as far as that is known.
    server: Option<SocketAddr>,
    /// Connections to nodes that are this client's alone.
    pub(crate) ties: Ties,
    phase: AtomicU8,
    head_bytes: AtomicUsize,
    line_seen: AtomicBool,
    answered_in_head: AtomicBool,
    /// When the phase began. Nanoseconds of the switch's clock; 0 in `Head` until it is needed.
    since_ns: AtomicU64,
    broken: AtomicBool,
    /// The request being served has no body: what may still come from the client is the next request, or its end.
    bodyless: AtomicBool,
    /// The node has refused the other protocol that the request asked for.
    no_other: AtomicBool,
    /// Bytes have come behind a request that asks for another protocol.
    past_other: AtomicBool,
    rescued: Mutex<Rescued>,
    /// The limit on frames of HTTP/2 that the client has exceeded.
    flood: OnceLock<Flood>,
    /// How the connection is delivered.
    pub(crate) delivery: Delivery,
    /// What TLS has shown of the client; none where there is no TLS.
    pub(crate) security: Option<Security>,
    /// What was decided of its first request before it was read.
    outcome: Mutex<Option<Outcome>>,
}

/// How a connection ends that is not simply closed.
#[derive(Debug, Default)]
pub(crate) struct Rescued {
    /// What is still to be answered.
    pub(crate) unanswered: Option<Failure>,
    /// The connection, once its stream is dropped.
    pub(crate) io: Option<ClientIo>,
}

impl Link {
    /// A client's connection whose first header is awaited from `now` on.
    pub(crate) fn new(of: Client, now: Time) -> Self {
        let outcome = of.take_outcome();
        Self {
            client: of.address,
            server: of.server,
            ties: Ties::default(),
            phase: AtomicU8::new(Phase::Head as u8),
            head_bytes: AtomicUsize::new(0),
            line_seen: AtomicBool::new(false),
            answered_in_head: AtomicBool::new(false),
            since_ns: AtomicU64::new(now.as_nanos().max(1)),
            broken: AtomicBool::new(false),
            bodyless: AtomicBool::new(false),
            no_other: AtomicBool::new(false),
            past_other: AtomicBool::new(false),
            rescued: Mutex::default(),
            flood: OnceLock::new(),
            delivery: of.delivery,
            security: of.security,
            outcome: Mutex::new(outcome),
        }
    }

    /// Whom connections for this client are from; `None` if it is not known where the client connected.
    pub(crate) fn announced(&self) -> Option<Announced> {
        let shown = |security: &Security| ShownByTls {
            version: security.version,
            certificate: security.client_cert.is_some(),
        };
        let tls = self.security.as_ref().map(shown);
        Some(Announced { client: self.client, server: self.server?, tls })
    }

    /// What was decided of the first request, once.
    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A header has been read; the request is served from here on. If it is `bodyless`, a client that ends its side has
    /// still to get its reply.
    pub(crate) fn serving(&self, bodyless: bool) {
        self.bodyless.store(bodyless, Relaxed);
        self.phase.store(Phase::Serving as u8, Relaxed);
    }

    /// The protocol that the request asked for is not spoken: requests go on. Not so if bytes have come that may have been of
    /// that protocol, and which nobody has looked at: then the connection must end.
    pub(crate) fn stays_http(&self) -> bool {
        self.no_other.store(true, Relaxed);
        !self.past_other.load(Relaxed)
    }

    /// The request has ended at `now`; the next one may come.
    pub(crate) fn idle_since(&self, now: Time) {
        self.since_ns.store(now.as_nanos().max(1), Relaxed);
    }

    /// The connection waits for its next request.
    pub(crate) fn idle(&self) {
        self.head_bytes.store(0, Relaxed);
        self.line_seen.store(false, Relaxed);
        self.phase.store(Phase::Idle as u8, Relaxed);
    }

    /// The connection has been answered and is to be closed, but not before the client could read the answer.
    pub(crate) fn linger(&self) {
        self.broken.store(true, Relaxed);
    }

    /// The end of a broken connection.
    pub(crate) fn take_rescued(&self) -> Rescued {
        if !self.broken.load(Relaxed) {
            return Rescued::default();
        }
        std::mem::take(&mut *self.rescued.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The limit on frames of HTTP/2 that the client has exceeded, if any.
    pub(crate) fn flood(&self) -> Option<Flood> {
        self.flood.get().copied()
    }

    /// The relay engine refused what it read as a header.
    pub(crate) fn was_malformed(&self) -> bool {
        self.answered_in_head.load(Relaxed)
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Head,
            _ => Phase::Serving,
        }
    }

    fn since(&self) -> Time {
        Time::from_nanos(self.since_ns.load(Relaxed))
    }

    fn condemn(&self, failure: Failure) {
        self.rescued.lock().unwrap_or_else(PoisonError::into_inner).unanswered = Some(failure);
        self.broken.store(true, Relaxed);
    }
}

/// The stream.
#[derive(Debug)]
pub(crate) struct ClientStream {
    /// Taken only when the stream is dropped.
    io: Option<ClientIo>,
    link: Arc<Link>,
    limits: ConnLimits,
    clock: Clock,
    pending: BytesMut,
    deadline: Option<(Time, Pin<Box<Sleep>>)>,
    /// What the client sends, if that is HTTP/1.
    framing: Option<Box<Framing>>,
    /// What the engine gets instead of bytes that make no sense, and nothing behind it.
    poison: Option<&'static [u8]>,
    /// The limits of a connection of HTTP/2.
    frames: Option<Box<Frames>>,
}

/// Limits of an HTTP/2 connection.
#[derive(Debug)]
struct Frames {
    limits: FrameLimits,
    deadline: WriteDeadline,
    /// Bytes that were written to the socket, or to TLS.
    written: u64,
}

impl ClientStream {
    /// A stream of HTTP/1.
    pub(crate) fn new(io: ClientIo, link: Arc<Link>, limits: ConnLimits, clock: Clock) -> Self {
        let framing = Some(Box::default());
        Self {
            io: Some(io),
            link,
            limits,
            clock,
            pending: BytesMut::new(),
            deadline: None,
            framing,
            poison: None,
            frames: None,
        }
    }

    /// A stream of HTTP/2, whose framing is the engine's business. It notes in `blocked` when the socket has no room.
    pub(crate) fn frames(
        io: ClientIo,
        link: Arc<Link>,
        limits: ConnLimits,
        clock: Clock,
        blocked: Arc<Blocked>,
    ) -> Self {
        let mut stream = Self::new(io, link, limits, clock);
        let now = tokio::time::Instant::now();
        stream.framing = None;
        stream.frames = Some(Box::new(Frames {
            limits: FrameLimits::new(now).with_resets(now),
            deadline: WriteDeadline::new(limits.client_write, Some(blocked)),
            written: 0,
        }));
        stream
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Resolves when the client has closed the connection or reset it. Pends for ever when it has sent bytes that
    /// nobody has read yet, behind which a close cannot be seen.
    pub(crate) async fn closed(&self) {
        let Some(io) = &self.io else { return };
        let mut byte = [0; 1];
        match io.tcp().peek(&mut byte).await {
            Ok(0) | Err(_) => {}
            Ok(_) => std::future::pending().await,
        }
    }

    fn io(&mut self) -> io::Result<Pin<&mut ClientIo>> {
        self.io.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn condemn(&self, failure: Failure) -> Poll<io::Result<()>> {
        self.link.condemn(failure);
        Poll::Ready(Err(io::Error::other(failure.name())))
    }

    /// Notes what was read of a header.
    fn note_head(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.link.phase() == Phase::Idle {
            self.link.since_ns.store(0, Relaxed);
            self.link.phase.store(Phase::Head as u8, Relaxed);
        }
        let before = self.link.head_bytes.load(Relaxed);
        self.link.head_bytes.store(before + bytes.len(), Relaxed);
        if !self.link.line_seen.load(Relaxed) && bytes.contains(&b'\n') {
            self.link.line_seen.store(true, Relaxed);
        }
    }

    /// Reads, and lets the engine have what has one meaning only. Bytes that have none end the connection: the engine refuses
    /// the message that they belong to, and those before it are served.
    fn poll_framed(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.poison.is_some() {
            return self.give_poison(buf);
        }
        let before = buf.filled().len();
        ready!(self.io()?.poll_read(cx, buf))?;
        if let Some(frames) = &mut self.frames
            && let Err(flood) = frames.limits.receive(&buf.filled()[before..], tokio::time::Instant::now())
        {
            let _ = self.link.flood.set(flood);
            return Poll::Ready(Err(io::Error::other(flood)));
        }
        let Some(framing) = &mut self.framing else { return Poll::Ready(Ok(())) };
        if framing.is_other() && self.link.no_other.swap(false, Relaxed) {
            framing.go_on();
        }
        if let Err(broken) = framing.check(&buf.filled()[before..]) {
            tracing::debug!(client = %self.link.client, fault = ?broken.fault, "a request makes no sense");
            // Where HTTP/2 is spoken too, what begins like neither is no request that could be answered.
            let neither = self.limits.http2_too
                && self.link.head_bytes.load(Relaxed) == 0
                && broken.fault == Fault::RequestLine
                && !buf.filled()[before..].windows(5).any(|bytes| bytes == b"HTTP/");
            buf.set_filled(before + broken.good);
            self.poison = Some(if neither { b"" } else { broken.poison() });
            if broken.good == 0 {
                return self.give_poison(buf);
            }
        } else if framing.is_other() && buf.filled().len() > before {
            self.link.past_other.store(framing.has_other(), Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    fn give_poison(&mut self, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = self.poison.unwrap_or_default();
        if rest.is_empty() {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::InvalidData)));
        }
        let (now, later) = rest.split_at(rest.len().min(buf.remaining()));
        buf.put_slice(now);
        self.poison = Some(later);
        Poll::Ready(Ok(()))
    }

    /// The header is not complete and nothing more has come: has it taken too long?
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let phase = self.link.phase();
            if phase == Phase::Head && self.link.since() == Time::ZERO {
                self.link.idle_since(self.clock.now());
            }
            let allowed = if phase == Phase::Head { self.limits.header } else { self.limits.keepalive };
            let due = self.link.since() + allowed;
            match &mut self.deadline {
                // A timer that fires early is moved on when it fires, so that a request costs no timer operation.
                Some((armed, sleep)) if *armed <= due => {
                    ready!(sleep.as_mut().poll(cx));
                    if self.clock.now() >= due {
                        return match phase {
                            Phase::Head => self.condemn(Failure::HeaderTimeout),
                            // An end of file: the connection closes as if the client had closed it.
                            _ => Poll::Ready(Ok(())),
                        };
                    }
                    self.deadline = None;
                }
                _ => {
                    let Some(at) = self.clock.instant(due) else { return Poll::Pending };
                    self.deadline = Some((due, Box::pin(tokio::time::sleep_until(at.into()))));
                }
            }
        }
    }

    fn poll_pending_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let Some(io) = self.io.as_mut() else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            let written = ready!(Pin::new(io).poll_write(cx, &self.pending))?;
            self.consume_pending(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what is pending and this, with one call if the socket has room.
    fn poll_write_together(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.pending.len() + buf.len() <= COALESCE_BYTES {
            self.pending.extend_from_slice(buf);
            return Poll::Ready(Ok(buf.len()));
        }
        while !self.pending.is_empty() {
            let Some(io) = self.io.as_mut() else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            let parts = [IoSlice::new(&self.pending), IoSlice::new(buf)];
            let written = ready!(Pin::new(io).poll_write_vectored(cx, &parts))?;
            let held = self.pending.len();
            self.consume_pending(written)?;
            if written > held {
                return Poll::Ready(Ok(written - held));
            }
        }
        let written = ready!(self.io()?.poll_write(cx, buf))?;
        self.note_written(written);
        Poll::Ready(Ok(written))
    }

    fn note_written(&mut self, bytes: usize) {
        if let Some(frames) = &mut self.frames {
            frames.written += bytes as u64;
        }
    }

    /// Holds the outcome of a write against the deadline of a connection of HTTP/2.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let (Some(frames), Some(io)) = (&mut self.frames, &self.io) else { return written };
        // Bytes that are pending or in TLS are not written yet.
        let sent = io.sent().unwrap_or(frames.written);
        if frames.deadline.is_late(cx, Some(sent), &written) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")));
        }
        written
    }

    fn consume_pending(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.note_written(written);
        if written >= self.pending.len() {
            self.pending.clear();
        } else {
            let _ = self.pending.split_to(written);
        }
        Ok(())
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.link.phase() == Phase::Serving {
            let before = buf.filled().len();
            let read = this.poll_framed(cx, buf);
            let ended =
                matches!(read, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0;
            // A client may end its side once it has asked (RFC 9112 section 9.6). Whether it is gone altogether shows when it
            // is written to.
            return if ended && this.limits.half_close && this.link.bodyless.load(Relaxed) {
                Poll::Pending
            } else {
                read
            };
        }
        // Asked for more, so what has come is no complete header yet.
        if this.link.head_bytes.load(Relaxed) > this.limits.header_bytes_max {
            let in_request_line = !this.link.line_seen.load(Relaxed);
            return this.condemn(if in_request_line { Failure::UriTooLong } else { Failure::HeaderTooLarge });
        }
        let before = buf.filled().len();
        match this.poll_framed(cx, buf) {
            Poll::Ready(Ok(())) => {
                this.note_head(&buf.filled()[before..]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => this.poll_deadline(cx),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.link.phase() == Phase::Head {
            this.link.answered_in_head.store(true, Relaxed);
        }
        let written = this.poll_write_together(cx, buf);
        if let (Some(frames), Poll::Ready(Ok(count))) = (&mut this.frames, &written) {
            frames.limits.send(&buf[..*count]);
        }
        this.in_time(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match this.poll_pending_out(cx) {
            Poll::Ready(Ok(())) => this.io()?.poll_flush(cx),
            other => other,
        };
        this.in_time(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_pending_out(cx))?;
        // A broken connection is brought to its end by its task.
        if this.link.broken.load(Relaxed) {
            return Poll::Ready(Ok(()));
        }
        this.io()?.poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.io.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

impl Ssl for ClientStream {}
impl Peek for ClientStream {}

impl Drop for ClientStream {
    fn drop(&mut self) {
        let Some(io) = self.io.take() else { return };
        if !self.pending.is_empty() {
            // What a dropped reply has produced so far: a client that gets it learns more than from nothing.
            io.try_write(&self.pending);
        }
        if self.link.broken.load(Relaxed) {
            self.link.rescued.lock().unwrap_or_else(PoisonError::into_inner).io = Some(io);
        }
    }
}
