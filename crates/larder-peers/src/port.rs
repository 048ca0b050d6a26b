//! Where members connect to: accepts, learns who it is, and serves what the connection is for.

use crate::config::LinksConfig;
use crate::connect::{Ends, Stream};
use crate::control::Inbound;
use crate::counters::{Counters, Held, rise};
use crate::hello::{Answer, Hello, Kind};
use crate::links::BodyError;
use crate::member::Peer;
use crate::name::Name;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Streams that the other side may open beyond those it counts: it takes an ended one for ended sooner.
const STREAMS_SLACK: u32 = 64;

type Gauge = fn(&Counters) -> &AtomicU64;

/// Answers the requests that members forward: a function of the request and the member's name.
pub trait Service: Clone + Send + Sync + 'static {
    /// The reply's body.
    type Body: Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static;

    /// Answers one request.
    fn call(
        &self,
        request: Request<Incoming>,
        from: Name,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;
}

impl<F, R, B> Service for F
where
    F: Fn(Request<Incoming>, Name) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    type Body = B;

    fn call(
        &self,
        request: Request<Incoming>,
        from: Name,
    ) -> impl Future<Output = Response<B>> + Send + 'static {
        self(request, from)
    }
}

/// What accepted connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Requests under way may end.
    Draining,
    Over,
}

/// The accepting side.
pub(crate) struct Port<S> {
    pub(crate) config: LinksConfig,
    pub(crate) ends: Arc<Ends>,
    pub(crate) inbound: Arc<Inbound>,
    pub(crate) service: S,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl<S: Service> Port<S> {
    /// Accepts until draining begins, then waits for what is under way.
    pub(crate) async fn run(self, listener: TcpListener) {
        let port = Arc::new(self);
        let places = Arc::new(Semaphore::new(port.config.accepted_max as usize));
        let mut phase = port.phase.clone();
        loop {
            let accepted = tokio::select! {
                    _ = phase.wait_for(|phase| *phase != Phase::Serving) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted.map(|(io, _)| (io, Arc::clone(&places).try_acquire_owned())) {
                Ok((io, Ok(place))) => {
                    tokio::spawn(Arc::clone(&port).accepted(io, place));
                }
                Ok((_, Err(_))) => rise(&port.ends.counters.links_refused),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        // Until the phase is over, which ends all that is left.
        let _ = places.acquire_many(port.config.accepted_max).await;
    }

    async fn accepted(self: Arc<Self>, io: TcpStream, _place: OwnedSemaphorePermit) {
        let address = io.peer_addr().ok();
        let mut phase = self.phase.clone();
        let greeting = timeout(self.ends.deadline, self.greet(io));
        let greeted = tokio::select! {
            greeted = greeting => greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            () = reached(&mut phase, Phase::Over) => return,
        };
        match greeted {
            Ok((Kind::Data, from, stream)) => self.serve(stream, from.name, phase).await,
            Ok((Kind::Control, from, stream)) => {
                tokio::select! {
                    () = self.inbound.receive(stream, from) => {}
                    // Messages that still come concern a member that leaves.
                    () = reached(&mut phase, Phase::Draining) => {}
                }
            }
            Err(error) => {
                rise(&self.ends.counters.links_refused);
                tracing::debug!(?address, %error, "a connection was refused");
            }
        }
    }

    /// Learns who has connected, and for what.
    async fn greet(&self, io: TcpStream) -> io::Result<(Kind, Peer, Stream)> {
        io.set_nodelay(true)?;
        let ends = &self.ends;
        let mut stream = ends.accept(io).await.map_err(io::Error::other)?;
        let Hello { kind, from, to } = Hello::receive(&mut stream).await?;
        let answer = match *self.phase.borrow() {
            _ if to != ends.own.name => Answer::Another,
            Phase::Serving => Answer::Welcome,
            Phase::Draining | Phase::Over => Answer::Leaving,
        };
        answer.send(&mut stream, ends.own.incarnation()).await?;
        match answer {
            Answer::Welcome => Ok((kind, from, stream)),
            Answer::Another | Answer::Leaving => Err(io::Error::other("not for this member, or not now")),
        }
    }

    async fn serve(&self, stream: Stream, from: Name, mut phase: watch::Receiver<Phase>) {
        let config = &self.config;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(config.window_bytes)
            .initial_connection_window_size(config.connection_window_bytes())
            .max_concurrent_streams(config.streams_max.saturating_add(STREAMS_SLACK))
            .max_header_list_size(config.head_bytes_max)
            .max_send_buf_size(config.window_bytes as usize)
            .auto_date_header(false)
            // Clients that go away all at once are no attack of the peer's.
            .max_pending_accept_reset_streams(config.streams_max.saturating_add(STREAMS_SLACK) as usize)
            .keep_alive_interval(config.ping)
            .keep_alive_timeout(config.ping_timeout);
        let _link = Held::new(&self.ends.counters, (|counters| &counters.data_links) as Gauge);
        let name = from.clone();
        let service = service_fn(|request| {
            rise(&self.ends.counters.requests_in);
            let reply = self.service.call(request, from.clone());
            async move { Ok::<_, Infallible>(reply.await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = reached(&mut phase, Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = &mut connection => ended,
                    () = reached(&mut phase, Phase::Over) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%name, %error, "a data connection broke");
        }
    }
}

/// Waits for a phase; a network that was dropped is over.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // Fails only when the network was dropped.
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}
