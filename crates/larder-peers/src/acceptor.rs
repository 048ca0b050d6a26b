//! Accepts connections of members, identifies the member, and serves the connection by its kind.

use crate::config::LinksConfig;
use crate::control_links::InboundLinks;
use crate::counters::{GaugeGuard, increment};
use crate::data_links::BodyError;
use crate::handshaker::{Handshaker, LinkStream};
use crate::hello::{Hello, HelloReply, LinkKind};
use crate::member::PeerId;
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
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Delay after a failed accept, for example when file descriptors run out.
const ACCEPT_ERROR_DELAY: Duration = Duration::from_millis(50);
/// Streams allowed beyond the limit of the other side, which counts a stream as closed before this side does.
const STREAMS_SLACK: u32 = 64;

/// Answers forwarded requests. Implemented for functions of the request and the sending member's name.
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

/// Lifecycle of the accepting side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No new connections and requests; requests in flight may finish.
    Draining,
    /// All connections are closed.
    Stopped,
}

/// The listening side of a member.
pub(crate) struct Acceptor<S> {
    pub(crate) config: LinksConfig,
    pub(crate) handshaker: Arc<Handshaker>,
    pub(crate) inbound: Arc<InboundLinks>,
    pub(crate) service: S,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl<S: Service> Acceptor<S> {
    /// Accepts connections until draining begins, then waits for the open ones.
    pub(crate) async fn run(self, listener: TcpListener) {
        let acceptor = Arc::new(self);
        let permits = Arc::new(Semaphore::new(acceptor.config.accepted_max as usize));
        let mut phase = acceptor.phase.clone();
        loop {
            let accepted = tokio::select! {
                _ = phase.wait_for(|phase| *phase != Phase::Serving) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted.map(|(io, _)| (io, Arc::clone(&permits).try_acquire_owned())) {
                Ok((io, Ok(permit))) => {
                    tokio::spawn(Arc::clone(&acceptor).handle(io, permit));
                }
                Ok((_, Err(_))) => increment(&acceptor.handshaker.counters.links_refused),
                Err(error) => {
                    larder_log::limited_warn!(%error, "peer link: accept failed");
                    sleep(ACCEPT_ERROR_DELAY).await;
                }
            }
        }
        drop(listener);
        // Every open connection holds a permit. `Stopped` closes the remaining connections.
        let _ = permits.acquire_many(acceptor.config.accepted_max).await;
    }

    /// Serves one connection to its end.
    async fn handle(self: Arc<Self>, io: TcpStream, _permit: OwnedSemaphorePermit) {
        let address = io.peer_addr().ok();
        let mut phase = self.phase.clone();
        let handshake = timeout(self.handshaker.timeout, self.handshake(io));
        let accepted = tokio::select! {
            accepted = handshake => accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            () = wait_for_phase(&mut phase, Phase::Stopped) => return,
        };
        match accepted {
            Ok((LinkKind::Data, from, stream)) => self.serve(stream, from.name, phase).await,
            Ok((LinkKind::Control, from, stream)) => {
                tokio::select! {
                    () = self.inbound.receive(stream, from) => {}
                    // This member leaves, so further messages to it have no effect.
                    () = wait_for_phase(&mut phase, Phase::Draining) => {}
                }
            }
            Err(error) => {
                increment(&self.handshaker.counters.links_refused);
                tracing::debug!(?address, %error, "peer link: refused");
            }
        }
    }

    /// Authenticates the other side and reads its hello.
    async fn handshake(&self, io: TcpStream) -> io::Result<(LinkKind, PeerId, LinkStream)> {
        io.set_nodelay(true)?;
        let handshaker = &self.handshaker;
        let mut stream = handshaker.accept(io).await.map_err(io::Error::other)?;
        let Hello { kind, from, to } = Hello::receive(&mut stream).await?;
        let answer = match *self.phase.borrow() {
            _ if to != handshaker.local.name => HelloReply::WrongName,
            Phase::Serving => HelloReply::Welcome,
            Phase::Draining | Phase::Stopped => HelloReply::Leaving,
        };
        answer.send(&mut stream, handshaker.local.incarnation()).await?;
        match answer {
            HelloReply::Welcome => Ok((kind, from, stream)),
            HelloReply::WrongName | HelloReply::Leaving => {
                Err(io::Error::other("addressed to another member, or this member is leaving"))
            }
        }
    }

    /// Serves forwarded requests on a data link.
    async fn serve(&self, stream: LinkStream, from: Name, mut phase: watch::Receiver<Phase>) {
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
            // Many clients that disconnect at once cause many resets, which are not an attack of the peer.
            .max_pending_accept_reset_streams(config.streams_max.saturating_add(STREAMS_SLACK) as usize)
            .keep_alive_interval(config.ping)
            .keep_alive_timeout(config.ping_timeout);
        let _link = GaugeGuard::new(&self.handshaker.counters, |counters| &counters.data_links);
        let name = from.clone();
        let service = service_fn(|request| {
            increment(&self.handshaker.counters.requests_in);
            let reply = self.service.call(request, from.clone());
            async move { Ok::<_, Infallible>(reply.await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let result = tokio::select! {
            result = &mut connection => result,
            () = wait_for_phase(&mut phase, Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    result = &mut connection => result,
                    () = wait_for_phase(&mut phase, Phase::Stopped) => return,
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!(%name, %error, "data link: failed");
        }
    }
}

/// Waits until the phase is `wanted` or a later one. Returns also if the network was dropped.
async fn wait_for_phase(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // An error means that the network was dropped.
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}
